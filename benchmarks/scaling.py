"""Time and memory of training against jobs, clients, dimension, rounds and cores; one process per point."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FIGURE = Path(__file__).with_name("scaling.png")


@dataclass(frozen=True)
class Point:
    """A federated least squares problem: every client has 64 rows and takes part in every round, batches of ten."""

    jobs: int = 16
    clients: int = 32
    dimension: int = 1024
    rounds: int = 100
    cores: int = 2


AXES = {
    "jobs": [1, 4, 16, 64],
    "clients": [4, 8, 16, 32, 64],
    "dimension": [256, 1024, 4096, 16384],
    "rounds": [25, 100, 400],
    "cores": [1, 2],
}


def run_point(point: Point) -> tuple[float, float]:
    """Seconds of training and megabytes that it needed beyond what Python and Numba take."""
    import numpy as np

    from benchmarks.cases import BARE
    from benchmarks.measure import engine_rounds
    from fco_cli.kernels.compiled import set_threads
    from fco_cli.problem.data import ClientData
    from fco_cli.problem.losses import Squared
    from fco_cli.problem.models.linear import Linear
    from fco_cli.problem.problem import Problem
    from fco_cli.problem.regularizers import all_regularizers

    def training(clients: int, dimension: int, jobs: int, rounds: int):
        random = np.random.default_rng(0)
        x, y = random.standard_normal((clients, 64, dimension)), random.standard_normal((clients, 64))
        data = ClientData.of_equal_clients(x, y)
        problem = Problem(data, Linear(dimension), Squared(), regularizer=all_regularizers()["l1"](strength=0.01))
        return engine_rounds(BARE, problem, jobs, rounds, clients, batch=10, evaluated=False)

    set_threads(point.cores)
    training(2, 8, 2, 2)()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    work = training(point.clients, point.dimension, point.jobs, point.rounds)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start, _status("VmHWM") - before


def _status(key: str) -> float:
    """Megabytes of this process, from /proc."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 1024


def measure(point: Point) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.scaling", json.dumps(asdict(point))]
    seconds, megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(megabytes)


def draw(path: Path = FIGURE) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    measure(Point(rounds=1))  # compiles
    figure, (times, sizes) = plt.subplots(2, len(AXES), figsize=(13, 4.6), layout="constrained", sharey="row")
    for panel, below, (axis, values) in zip(times, sizes, AXES.items(), strict=True):
        seconds, megabytes = zip(*(measure(replace(Point(), **{axis: value})) for value in values), strict=True)
        rows = zip(values, seconds, megabytes, strict=True)
        print(f"{axis}: " + ", ".join(f"{v}: {s:.2f} s {m:.0f} MB" for v, s, m in rows), flush=True)
        power = -1 if axis == "cores" else 1
        ideal = [seconds[-1] * (value / values[-1]) ** power for value in values]
        panel.loglog(values, ideal, ":", color="gray", label="in proportion")
        panel.loglog(values, seconds, "o-", color="#0072B2", label="measured")
        below.loglog(values, megabytes, "s-", color="#D55E00")
        below.set_xlabel(axis)
        for one in (panel, below):
            one.set_xticks(values, [str(value) for value in values])
            one.minorticks_off()
            one.grid(alpha=0.25)
    times[0].set_ylabel("seconds of training")
    sizes[0].set(ylabel="MB of data and state", ylim=(1, 1000))
    times[0].legend(frameon=False, fontsize=8)
    figure.suptitle(
        "FedDualAvg: 16 jobs, 32 clients of 64 rows, 1024 features, 100 rounds, two cores; one of them changed"
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    print(*run_point(Point(**json.loads(sys.argv[1]))))
