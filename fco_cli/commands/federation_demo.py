"""`make federation-demo`: cross-validation of a sparse model by a coordinator and four hospitals on this machine.

The same run is simulated, the models are compared bitwise, and all files and processes are removed. `Loopback` starts
the federation by the commands of its parties; tests use it too.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.files import as_csv
from fco_cli.results import PathResult, read_result

WAIT_SECONDS = 120.0
STOP_SECONDS = 5.0  # between a signal and SIGKILL
FEATURES = [
    "age",
    "sex",
    "chest_pain",
    "pressure",
    "cholesterol",
    "sugar",
    "heart_rate",
    "angina",
    "depression",
    "slope",
]
TRUTH = np.array([0.8, 0.6, 1.1, 0.0, 0.0, 0.0, -0.9, 0.7, 0.9, 0.0])
HOSPITALS = {"cleveland": 303, "hungarian": 294, "long-beach": 200, "zurich": 123}
PATH = ["experiment=path", "path.strengths=20", "path.folds=5"]


class Loopback:
    """Coordinator and sites as processes, which are stopped at the end of the context."""

    def __init__(
        self,
        folder: Path,
        data: dict[str, Path],
        options: Sequence[str] = (),
        port: int | None = None,
        policy: str = "demo",
    ) -> None:
        self.folder, self.data, self.options = folder, data, [*options, "--policy", policy]
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


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up on SIGTERM too
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))


def demonstrate(folder: Path) -> None:
    data = simulated_hospitals(folder)
    start = time.monotonic()
    with Loopback(folder / "parties", data, ["--label", "diagnosis"], policy="research") as federation:
        federation.up()
        print(f"a coordinator and {len(data)} hospitals have joined: {time.monotonic() - start:.0f} s")
        home, sites = federation.home("coordinator"), f"[{','.join(data)}]"
        where = ["federation=flare", f"federation.sites={sites}", f"federation.home={home}"]
        call("run", *PATH, "task.loss=logistic", *where, f"output_dir={folder}/sites")
    call("data", "convert", f"{folder}/pooled", f"{folder}/pooled.npz", "--label", "diagnosis")
    call("run", *PATH, "task.loss=logistic", f"task.path={folder}/pooled.npz", f"output_dir={folder}/simulated")
    compare(record(folder / "sites"), record(folder / "simulated"))


def simulated_hospitals(folder: Path) -> dict[str, Path]:
    """Write one table per hospital, with different distributions, to one folder; return their paths."""
    random = np.random.default_rng(0)
    (folder / "pooled").mkdir()
    paths = {}
    for name, rows in HOSPITALS.items():
        x = random.normal(random.normal(0, 0.5, len(FEATURES)), 1, (rows, len(FEATURES)))
        y = random.random(rows) < 1 / (1 + np.exp(-(x @ TRUTH)))
        paths[name] = folder / "pooled" / f"{name}.csv"
        table = ([*map(float, row), int(label)] for row, label in zip(x, y, strict=True))
        paths[name].write_text(as_csv([*FEATURES, "diagnosis"], table), encoding="utf-8")
    return paths


def call(command: str, *arguments: str) -> None:
    """Run a command and print its output without the lines on its record, whose folder is removed."""
    words = [sys.executable, "-m", f"fco_cli.commands.{command}", *arguments]
    output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    print("".join(line for line in output.splitlines(keepends=True) if not line.startswith(("record: ", "next: "))))


def record(output: Path) -> Path:
    """Return the record folder of the only path in `output`."""
    (result,) = output.rglob("result.json")
    return result.parent


def compare(sites: Path, simulated: Path) -> None:
    """Print the chosen models; exit with 1 unless all models are bitwise equal to the simulation's."""
    files = ["path.npz", "min/model.npz", "1se/model.npz"]
    same = all(_same(sites / name, simulated / name) for name in files)
    for name, choice in read_result(sites, PathResult)["chosen"].items():
        print(f"{name}: strength {choice['strength']:.4f}, {choice['nonzeros']} features, KKT {choice['kkt']:.0e}")
    print(f"models of the hospitals and of the simulation, bitwise: {'OK' if same else 'DIFFERENT'}")
    if not same:
        sys.exit(1)


def _same(one: Path, other: Path) -> bool:
    ours, theirs = np.load(one), np.load(other)
    return ours.files == theirs.files and all(np.array_equal(ours[name], theirs[name]) for name in ours.files)


if __name__ == "__main__":
    main()
