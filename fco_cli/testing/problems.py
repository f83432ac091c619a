"""Small problems, cohorts and runs that the checks share: quick to compute, uneven enough to expose errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State, Varying
from fco_cli.algorithms.transforms import NoTransform, Transform
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss, all_losses
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9)  # rows of the clients, unequal so that errors in weights or in partial batches show
NUMBERS = {"strength": 0.7, "l2_strength": 0.4, "radius": 1.5}  # moderate values of parameters
LABELS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "real": lambda random, n: random.standard_normal(n),
    "binary": lambda random, n: random.integers(2, size=n).astype(float),
    "counts": lambda random, n: random.poisson(2, n).astype(float),
    "classes": lambda random, n: np.append(2.0, random.integers(3, size=n - 1)),
}


@contextmanager
def kernels_as_python(enabled: bool = True) -> Iterator[None]:
    """Run kernels as plain Python within the block (True), or compiled (False)."""
    import numba

    settings: Any = numba.config
    before, settings.DISABLE_JIT = settings.DISABLE_JIT, int(enabled)
    try:
        yield
    finally:
        settings.DISABLE_JIT = before


def run_checks(subject: str, checks: Iterable[Callable[..., None]], *arguments: Any, **options: Any) -> None:
    """Call the checks one by one; raise AssertionError with the name of the first that fails."""
    for check in checks:
        try:
            check(*arguments, **options)
        except AssertionError as problem:
            raise AssertionError(f"{subject} fails {check.__name__}: {problem}") from problem


def make_regularizer(kind: Any, **numbers: float) -> Regularizer:
    """Return a regularizer with moderate values of the numbers that are not given."""
    own = {field.name: field.default for field in fields(kind) if field.type in ("float", "int", float, int)}
    usual = {key: 0.5 if default is MISSING else default for key, default in own.items()}
    return kind(**{key: numbers.get(key, NUMBERS.get(key, usual[key])) for key in own})


def no_regularizer() -> Regularizer:
    return make_regularizer(all_regularizers()["none"])


def valid_labels(loss: Loss, count: int, seed: int = 0) -> Array:
    """Return random labels that a loss accepts; raise AssertionError if it accepts none of those that are tried."""
    for draw in LABELS.values():
        labels = draw(np.random.default_rng(seed), count)
        if loss.accepts_labels(labels).all():
            return labels
    raise AssertionError(f"{loss.name} accepts neither numbers, classes nor counts as labels; pass `labels`")


def make_problem(
    regularizer: Regularizer | None = None,
    loss: Loss | None = None,
    sizes: Sequence[int] = SIZES,
    features: int = 6,
    labels: Array | None = None,
    seed: int = 0,
) -> Problem:
    """Return a random problem with a linear model and clients of unequal size; by default least squares."""
    loss, random = loss or all_losses()["squared"](), np.random.default_rng(seed)
    x = random.standard_normal((sum(sizes), features))
    y = valid_labels(loss, len(x), seed + 1) if labels is None else np.asarray(labels, float)
    data = ClientData(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    return Problem(data, Linear(features, loss.outputs(y)), loss, regularizer=regularizer or no_regularizer())


def is_refused(check: Callable[..., None], *arguments: Any) -> bool:
    """Return True if the call raises UserError; raise AssertionError if its message has several lines."""
    try:
        check(*arguments)
    except UserError as refusal:
        if "\n" in str(refusal):
            raise AssertionError(f"the message has several lines: {refusal}") from refusal
        return True
    return False


def supported_regularizer(algorithm: Algorithm, radius: float = NUMBERS["radius"]) -> Regularizer:
    """Return the first of an l1 penalty, an l1 ball and no regularizer that the algorithm supports."""
    known = all_regularizers()
    ball = make_regularizer(known["l1_ball"], radius=radius)
    choices = make_regularizer(known["l1"], strength=0.3), ball, no_regularizer()
    supported = [psi for psi in choices if not is_refused(algorithm.check_pair, psi, Euclidean())]
    assert supported, "check_pair refuses l1, l1_ball and none"
    return supported[0]


def make_limit_problem(algorithm: Algorithm) -> Problem:
    """Return a least-squares problem for checks of the limit of a method.

    With a regularizer some weights of the optimum are 0 and others are not, so that the optimum depends on the weight
    of psi. A method that applies another weight, as FedMiD does, has another limit.
    """
    return make_problem(supported_regularizer(algorithm, radius=0.5), features=3, seed=2)


def optimum_of(problem: Problem) -> Array:
    """Return the certified optimum of a problem."""
    from fco_cli.algorithms import all_algorithms

    kind: Any = all_algorithms()["optimum"]
    solver = bind(kind(tolerance=1e-13), problem)
    start = solver.initial_state(np.zeros((1, problem.layout.size)))
    return solver.output(solver.round(start).state)[0]


def bind(
    algorithm: Algorithm,
    problem: Problem,
    client_lr: float | Sequence[float] = 0.05,
    server_lr: float | Sequence[float] = 1.0,
    transform: Transform | None = None,
) -> Any:
    """Return the algorithm bound to a problem, with one job for each client learning rate."""
    rates = np.atleast_1d(np.array(client_lr, dtype=float))
    algorithm = algorithm.with_transform(transform or NoTransform())
    server_rates = np.broadcast_to(np.array(server_lr, dtype=float), rates.shape).copy()
    return algorithm.bind(problem, Varying.from_rates(algorithm, problem.regularizer, rates, server_rates))


def make_cohorts(algorithm: Any, problem: Problem, rounds: int, sampled: int | None = None) -> list[Cohort]:
    """Return the cohorts of the first rounds; all clients participate unless `sampled` is given and supported."""
    count = problem.data.clients if sampled is None or algorithm.full_participation else sampled
    hparams = Hparams(0.05, 0.7, rounds, count, batch_size=3, local_epochs=1)
    pace, kept = algorithm.local_step_rule, algorithm.rounds_per_cohort
    sampler = Sampler(problem.data.sizes, hparams, seed=0, pace=pace, rounds_per_cohort=kept)
    return [sampler.cohort(r) for r in range(rounds)]


def with_full_gradients(cohorts: Iterable[Cohort], sizes: Array) -> list[Cohort]:
    """Return cohorts of the same clients and numbers of steps, in which every batch has all rows of its client."""
    full = []
    for cohort in cohorts:
        rows = [np.arange(sizes[m]) for m, k in zip(cohort.clients, cohort.steps, strict=True) for _ in range(k)]
        edges = np.append(0, np.cumsum([len(batch) for batch in rows]))
        full.append(replace(cohort, order=np.concatenate(rows), edges=edges))
    return full


def run_rounds(
    algorithm: Algorithm, cohorts: Iterable[Cohort], state: State | None = None, memory: ProcessMemory | None = None
) -> tuple[list[Array], State, ProcessMemory]:
    """Run rounds of a bound algorithm. Return the models after each, the final state and the clients' memory."""
    w = np.zeros((len(algorithm.varying), algorithm.problem.layout.size), algorithm.problem.dtype)
    state = algorithm.initial_state(w) if state is None else state
    memory = memory or ProcessMemory(algorithm.initial_client_arrays(w))
    models = []
    for cohort in cohorts:
        result = algorithm.round(state, cohort, memory.read(cohort.clients) if algorithm.client_arrays else None)
        if algorithm.client_arrays:
            assert result.memory is not None
            assert result.arrived is not None
            memory.write(cohort.clients, result.memory, result.arrived)
        state = result.state
        models.append(algorithm.output(state).copy())
    return models, state, memory
