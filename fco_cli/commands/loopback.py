"""A whole federation on this machine, by the commands that its parties would type: for the demo and for tests."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

WAIT_SECONDS = 120.0
STOP_SECONDS = 5.0  # for a process to end when it is asked to


class Loopback:
    """A coordinator and sites as processes; at the end these, and no others, are ended."""

    def __init__(
        self, folder: Path, data: dict[str, Path], options: Sequence[str] = (), port: int | None = None
    ) -> None:
        self.folder, self.data, self.options = folder, data, list(options)
        self.address = f"localhost:{port or free_port()}"
        self.signed: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.stop(name, signal.SIGTERM)

    def up(self) -> None:
        """Everybody enrols and joins."""
        with ThreadPoolExecutor(2) as beside:
            requests = {name: beside.submit(self.request, name) for name in self.data}
            self.serve()
            for name, request in requests.items():
                self.approve(name, request.result())
                self.join(name)
        self.wait(lambda: all("Successfully registered client" in self.log(name) for name in self.data), "sites join")

    def serve(self) -> None:
        self.spawn("coordinator", "serve", self.address)
        self.wait(lambda: "serving" in self.log("coordinator"), "the coordinator's kits")

    def request(self, name: str) -> Path:
        return Path(self.call(name, "request", name).split("request: ")[1].split(" (the key")[0])

    def approve(self, name: str, request: Path) -> None:
        """The coordinator's signature; the fingerprint would come by another channel."""
        said = self.call("coordinator", "approve", str(request))
        self.fingerprint = said.split("--fingerprint ")[1].split()[0]
        self.signed[name] = Path(said.split("signed: ")[1].splitlines()[0])

    def join(self, name: str) -> None:
        words = ["--fingerprint", self.fingerprint, "--data", str(self.data[name]), *self.options]
        self.spawn(name, "join", str(self.signed[name]), *words)

    def home(self, party: str) -> Path:
        return self.folder / party

    def log(self, party: str) -> str:
        path = self.folder / f"{party}.log"
        return path.read_text(errors="replace", encoding="utf-8") if path.exists() else ""

    def call(self, party: str, *words: str) -> str:
        done = subprocess.run(self._command(party, words), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"fco-federate {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def spawn(self, party: str, *words: str) -> None:
        """A party's process, in a group of its own; its children are in the group too."""
        with (self.folder / f"{party}.log").open("ab") as log:
            self.processes[party] = subprocess.Popen(
                self._command(party, words), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def stop(self, party: str, number: int = signal.SIGKILL) -> None:
        """End a party's processes, those of its jobs too, which are in groups of their own; after a moment without a
        choice."""
        import psutil  # comes with NVIDIA FLARE

        process = self.processes.pop(party)
        with suppress(psutil.NoSuchProcess):
            all_of_it = [one := psutil.Process(process.pid), *one.children(recursive=True)]
            for sent in (number, signal.SIGKILL):
                for one in all_of_it:
                    with suppress(psutil.NoSuchProcess):
                        one.send_signal(sent)
                end = time.monotonic() + STOP_SECONDS
                while any(map(_is_running, all_of_it)) and time.monotonic() < end:
                    time.sleep(0.05)
        process.wait()

    def wait(self, ready: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not ready():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended: {self.log(name)[-2000:]}")
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not after {seconds:g} s; logs in {self.folder}")
            time.sleep(0.2)

    def _command(self, party: str, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "fco_cli.commands.federate", "--home", str(self.home(party)), *words]


def _is_running(process: Any) -> bool:
    """Whether a process has not ended; one that nobody has asked how it ended is still listed."""
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
