"""An optional peer: FedAvg as a plain PyTorch loop, and stacks on the PyTorch backend (extra `torch`).

`python -m benchmarks.torch_peer` saves two tables: rounds of FedAvg with a convolutional network on the digits, by a
plain loop and by the engine; and rounds of 49 jobs with a linear model, on Numba and on PyTorch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import Cell, format_cell, save
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.models.torch_model import TorchModel
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams

sys.path.append(str(Path(__file__).parents[1] / "examples"))
CLIENTS, PER_ROUND, BATCH, RATE = 20, 10, 10, 0.05


def digits_problem(dtype: str) -> Problem:
    """Return classification of the digits by the network of examples/my_net.py, with clients of equal size."""
    from my_net import Net
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rows = len(y) // CLIENTS * CLIENTS
    data = ClientData.of_equal_clients(
        (x[:rows] / 16).astype(dtype).reshape(CLIENTS, -1, 64), y[:rows].astype(dtype).reshape(CLIENTS, -1)
    )
    torch.manual_seed(0)
    model = TorchModel(Net(10), (1, 8, 8), 10, np.dtype(dtype))
    task = TaskData(data, model, all_losses()["softmax"]())  # type: ignore[arg-type]
    return task.to_problem(all_regularizers()["none"]())


def sampler_of(problem: Problem) -> Sampler:
    hparams = Hparams(RATE, 1.0, 1, PER_ROUND, BATCH, local_epochs=1, dtype=str(problem.dtype))
    return Sampler(problem.data.sizes, hparams, 0)


def engine(problem: Problem, jobs: int, name: str = "fedavg") -> Callable[[], None]:
    """Return a function that runs the next round of the engine, without evaluation."""
    algorithm = all_algorithms()[name]()
    rates = np.full(jobs, RATE, problem.dtype)
    varying = Varying.from_rates(algorithm, problem.regularizer, rates, np.ones(jobs, problem.dtype))
    bound, sampler = algorithm.bind(problem, varying), sampler_of(problem)
    state = [bound.initial_state(problem.initial_models(varying.psi)), 0]

    def work() -> None:
        state[0], state[1] = bound.round(state[0], sampler.cohort(state[1])).state, state[1] + 1

    work.state = state  # type: ignore[attr-defined]
    return work


def plain_loop(problem: Problem) -> Callable[[], None]:
    """Return a function that runs the next round of FedAvg: modules, losses and optimizers of PyTorch only."""
    from my_net import Net

    torch.manual_seed(0)
    dtype = getattr(torch, str(problem.dtype))
    server, client = Net(10).to(dtype), Net(10).to(dtype)
    x = torch.from_numpy(problem.data.x).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(problem.data.y).long()
    loss, sampler, done = torch.nn.CrossEntropyLoss(), sampler_of(problem), [0]

    def work() -> None:
        cohort, total = sampler.cohort(done[0]), None
        for i, m in enumerate(cohort.clients):
            client.load_state_dict(server.state_dict())
            optimizer = torch.optim.SGD(client.parameters(), lr=RATE)
            edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
            for low, high in pairwise(edges):
                rows = torch.from_numpy(problem.data.offsets[m] + cohort.order[low:high])
                optimizer.zero_grad()
                loss(client(x[rows]), y[rows]).backward()
                optimizer.step()
            own = [p.detach().clone() for p in client.parameters()]
            total = own if total is None else [a + b for a, b in zip(total, own, strict=True)]
        with torch.no_grad():
            for p, new in zip(server.parameters(), total, strict=True):
                p.copy_(new / len(cohort.clients))
        done[0] += 1

    work.server = server  # type: ignore[attr-defined]
    return work


def milliseconds(works: tuple[Callable[[], None], ...], repeats: int) -> list[float]:
    """Return the least processor time of a call of each, measured in turns.

    All of them use one thread, and the time is that of this thread: other processes disturb it least.
    """
    best = [np.inf] * len(works)
    for repeat in range(repeats + 1):
        for k, work in enumerate(works):
            start = time.thread_time()
            work()
            if repeat:  # the first call compiles
                best[k] = min(best[k], (time.thread_time() - start) * 1e3)
    return best


def linear_problem(features: int = 1024) -> Problem:
    """Return least squares with an l1 penalty in the sizes of the lasso of the paper."""
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 128, features))
    data = ClientData.of_equal_clients(x, x @ random.standard_normal(features))
    task = TaskData(data, Linear(features), all_losses()["squared"]())
    return task.to_problem(all_regularizers()["l1"](strength=0.5))


def main() -> None:
    torch.set_num_threads(1)
    set_threads(1)
    command = "NUMBA_NUM_THREADS=1 python -m benchmarks.torch_peer"
    rows: list[list[Cell]] = []
    for dtype in ("float32", "float64"):
        problem = digits_problem(dtype)
        plain, own = milliseconds((plain_loop(problem), engine(problem, 1)), 6)
        rows.append([dtype, plain, own, own / plain])
        print(" | ".join(map(format_cell, rows[-1])), flush=True)
    columns = ["a round of FedAvg, convolutional network", "plain PyTorch loop, ms", "the engine, ms", "ratio"]
    save("torch", command, columns, rows)
    rows, problem = [], linear_problem()
    for stack, repeats in (("vmap", 6), ("loop", 1)):
        model = TorchModel(torch.nn.Linear(1024, 1), (1024,), 1, problem.dtype, stack=stack)
        twin = replace(problem, model=model)  # type: ignore[arg-type]
        numba, own = milliseconds((engine(problem, 49, "fedmid"), engine(twin, 49, "fedmid")), repeats)
        rows.append([f"`model.stack={stack}`", numba, own, own / numba])
        print(" | ".join(map(format_cell, rows[-1])), flush=True)
    columns = ["a round of 49 jobs, linear model", "backend Numba, ms", "backend PyTorch, ms", "ratio"]
    save("torch_stack", command, columns, rows)


if __name__ == "__main__":
    main()
