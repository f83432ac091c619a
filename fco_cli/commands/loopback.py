"""Federation on this machine, started by the parties' commands, for the demo and tests."""

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
STOP_SECONDS = 5.0  # between a signal and SIGKILL


class Loopback:
    """Coordinator and sites as processes, which are stopped at the end of the context."""

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
        """Start the coordinator, enroll all sites and wait until they have joined."""
        with ThreadPoolExecutor(2) as executor:
            requests = {name: executor.submit(self.request, name) for name in self.data}
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
        """Sign a site's request as the coordinator and store the fingerprint."""
        output = self.call("coordinator", "approve", str(request))
        self.fingerprint = output.split("--fingerprint ")[1].split()[0]
        self.signed[name] = Path(output.split("signed: ")[1].splitlines()[0])

    def join(self, name: str) -> None:
        options = ["--fingerprint", self.fingerprint, "--data", str(self.data[name]), *self.options]
        self.spawn(name, "join", str(self.signed[name]), *options)

    def home(self, party: str) -> Path:
        return self.folder / party

    def log(self, party: str) -> str:
        path = self.folder / f"{party}.log"
        return path.read_text(errors="replace", encoding="utf-8") if path.exists() else ""

    def call(self, party: str, *arguments: str) -> str:
        """Run a party's command to its end and return its output."""
        done = subprocess.run(self._command(party, arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"fco-federate {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def spawn(self, party: str, *arguments: str) -> None:
        """Start a party's process in a new process group."""
        with (self.folder / f"{party}.log").open("ab") as log:
            self.processes[party] = subprocess.Popen(
                self._command(party, arguments),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self, party: str, number: int = signal.SIGKILL) -> None:
        """Stop a party's processes, including its jobs in other process groups; kill them after STOP_SECONDS."""
        import psutil  # comes with NVIDIA FLARE

        process = self.processes.pop(party)
        with suppress(psutil.NoSuchProcess):
            processes = [one := psutil.Process(process.pid), *one.children(recursive=True)]
            for sent in (number, signal.SIGKILL):
                for one in processes:
                    with suppress(psutil.NoSuchProcess):
                        one.send_signal(sent)
                end = time.monotonic() + STOP_SECONDS
                while any(map(_is_running, processes)) and time.monotonic() < end:
                    time.sleep(0.05)
        process.wait()

    def wait(self, ready: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until `ready` returns True; raise an error if a process ends or the time is over."""
        end = time.monotonic() + seconds
        while not ready():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended: {self.log(name)[-2000:]}")
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not after {seconds:g} s; logs in {self.folder}")
            time.sleep(0.2)

    def _command(self, party: str, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "fco_cli.commands.federate", "--home", str(self.home(party)), *arguments]


def _is_running(process: Any) -> bool:
    """Return True if a process has not ended; zombies have."""
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
