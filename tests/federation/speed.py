"""Time of a round between sites on this machine: `python tests/federation/speed.py FEATURES ROUNDS [SITES [MASKED]]`.

SITES are 3 by default. With MASKED, sums are masked and need so many of the sites.

Prints the seconds to the first round, and the median seconds and total processor time of a round, with and without an
evaluation in each round. `speed_in_turns.py` compares two checkouts; it starts this file with `--in-turns`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from omegaconf import OmegaConf

from fco_cli import conf
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms import NoTransform
from fco_cli.commands.federation_demo import Loopback
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.settings import Flare, close_connection
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks.tabular import Custom

IN_TURNS = "--in-turns"
BLOCK = 25  # rounds
BITS = 40  # fraction bits of masked sums
SIZES = {"east": 60, "north": 85, "south": 43, "west": 52}


def main() -> None:
    features, rounds, *more = (int(one) for one in sys.argv[1:] if one != IN_TURNS)
    sites = sorted(SIZES)[: more[0] if more else 3]
    needed = more[1] if len(more) > 1 else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = files(Path(folder), features, sites)
        with Loopback(Path(folder) / "parties", data) as federation:
            federation.up()
            try:
                measure(str(federation.home("coordinator")), sites, rounds, needed)
            finally:
                close_connection()


def files(folder: Path, features: int, sites: list[str]) -> dict[str, Path]:
    random, paths = np.random.default_rng(7), {}
    for name in sites:
        rows = SIZES[name]
        x = random.normal(size=(rows, features))
        paths[name] = folder / f"{name}.npz"
        np.savez(paths[name], x=x, y=x[:, :20].sum(axis=1), client=np.full(rows, name))
    return paths


def measure(home: str, sites: list[str], rounds: int, needed: int | None) -> None:
    set_threads(1)
    options: dict[str, Any] = {}
    for file in ("base/tabular.yaml", "task/custom.yaml"):
        options |= OmegaConf.to_container(OmegaConf.load(Path(conf.__path__[0]) / file).task)  # type: ignore[operator]
    task = Custom(**options | {"path": "", "loss": "squared", "holdout": "none"})
    begin = time.monotonic()
    bits = None if needed is None else BITS
    flare = Flare(sites=sites, home=home, masks=needed is not None, min_sites=needed)
    bind_task = flare.bind_task(task, Hparams(1e-5, 1.0, rounds, len(sites), 10, 1, fraction_bits=bits), NoTransform())
    algorithm, psi = all_algorithms()["feddualavg"](), L1(strength=0.05)
    for every in (1, rounds):
        hparams = Hparams(1e-5, 1.0, rounds, len(sites), 10, 1, eval_every=every, fraction_bits=bits)
        problem = bind_task.data(0, "float64").to_problem(psi)
        setup = Setup(bind_task, problem, hparams, 0, algorithm, clients=remote_clients(problem.data, hparams, 0))
        varying = Varying.from_rates(algorithm, psi, np.array([1e-5]), np.ones(1))
        simulation, seconds, used = Simulation(setup, [Job()], varying), [], 0.0
        if IN_TURNS in sys.argv:
            run_blocks(simulation)
            continue
        while True:
            now = time.monotonic()
            if not simulation.advance():
                break
            seconds.append(time.monotonic() - now)
            if len(seconds) == 1:
                used = processor_seconds()
                if every == 1:
                    print(f"P = {problem.layout.size}: first round after {time.monotonic() - begin:.1f} s")
        used = (processor_seconds() - used) / (rounds - 1)
        print(
            f"evaluated every {every} rounds: median {np.median(seconds):.4f} s, fastest {min(seconds):.4f} s, "
            f"90 % below {np.quantile(seconds, 0.9):.4f} s; {used:.4f} s of processor time"
        )


def run_blocks(simulation: Simulation) -> None:
    """Run a block of rounds for every line `go` of the input and print the processor and wall seconds of a round."""
    for _ in range(BLOCK):
        simulation.advance()
    print("ready", flush=True)
    while sys.stdin.readline().strip() == "go":
        used, now = processor_seconds(), time.monotonic()
        for _ in range(BLOCK):
            assert simulation.advance(), "more ROUNDS are needed"
        print((processor_seconds() - used) / BLOCK, (time.monotonic() - now) / BLOCK, flush=True)


def processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (me, *me.children(recursive=True)))


main()
