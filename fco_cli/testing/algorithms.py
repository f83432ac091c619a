"""Checks of algorithms. `ALGORITHM_CHECKS` lists those that every federated method must pass; see `check_algorithm`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np

from fco_cli.algorithms import Varying
from fco_cli.algorithms.arrays import Scalar, Symmetric, slot_count
from fco_cli.algorithms.numpy_backend import numpy_clients
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.problem.layout import Array, stack_numbers
from fco_cli.problem.mirror_maps import Entropy, PNorm
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.streams import message_keys
from fco_cli.simulation.memory import ProcessMemory
from fco_cli.simulation.smoothness import estimate_smoothness
from fco_cli.testing.problems import (
    bind,
    is_refused,
    kernels_as_python,
    make_cohorts,
    make_limit_problem,
    make_problem,
    optimum_of,
    run_checks,
    run_rounds,
    supported_regularizer,
    with_full_gradients,
)

Kind = Any  # a subclass of Federated
Limit = Literal["optimum", "bias", "vanishing"]
TOLERANCE = 1e-12  # relative difference between backends


def check_algorithm(kind: Kind, *, limit: Limit | None = None, compiled: bool = False, **options: float) -> None:
    """Check a federated algorithm: declarations, stacks, resuming, backends, transforms, lost messages, its limit.

    Parameters
    ----------
    kind
        The class, a subclass of `Federated`.
    limit
        What the method converges to on a convex problem with full gradients: "optimum"; "bias", an error proportional
        to `client_lr` (client drift); "vanishing", an error that decreases with the rounds. None: not checked. The
        problem has a regularizer (the first of `l1`, `l1_ball` and `none` that the method supports), and its optimum
        depends on the weight of psi. A method that minimizes another objective fails all three: `FedMid`, whose limit
        is the solution for 2 psi, or `FedAvg`, which ignores psi. Its limit must be None.
    compiled
        If True, also compare the machine code with the reference. Compilation takes up to half a minute.
    **options
        Options of the algorithm for the check of the limit.

    Raises
    ------
    AssertionError
        With the name of the first check that fails.

    Examples
    --------
    >>> from fco_cli.algorithms.fedmid import FedMidOsp
    >>> check_algorithm(FedMidOsp, limit="bias")  # doctest: +SKIP
    """
    assert getattr(kind, "federated", False), f"{kind.__name__} does not derive from Federated"
    with kernels_as_python():
        run_checks(kind.__name__, ALGORITHM_CHECKS, kind)
        if limit is not None:
            run_checks(kind.__name__, [LIMIT_CHECKS[limit]], kind, **options)
    if compiled:
        with kernels_as_python(False):
            run_checks(kind.__name__, [check_backends_agree], kind)


def _suited(kind: Kind) -> tuple[Any, Problem]:
    """Return the algorithm with default options, and a problem that it supports."""
    algorithm = kind()
    return algorithm, make_problem(supported_regularizer(algorithm))


def _create(kind: Any, **options: Any) -> Any:
    """Return an object of a registered class, whose options have defaults."""
    return kind(**options)


def check_options(kind: Kind) -> None:
    """Options have defaults, and types that configurations and sweeps support."""
    algorithm = kind()
    assert algorithm.name == kind.name
    for field in fields(kind):
        value = getattr(algorithm, field.name)
        assert isinstance(value, str | bool | int | float), f"option {field.name} has the value {value!r}"
    assert algorithm.numbers.shape == (1,)


def check_declarations(kind: Kind) -> None:
    """State, messages, memory and costs of a round have the declared names and shapes."""
    algorithm, problem = _suited(kind)
    bound, size = bind(algorithm, problem, [0.01, 0.02]), problem.layout.size
    w = np.zeros((2, size))
    state, memory = bound.initial_state(w), bound.initial_client_arrays(w)
    sent, remembered = slot_count(bound.sent, size), slot_count(bound.remembered, size)
    assert memory.shape == (remembered, *w.shape)
    (cohort,) = make_cohorts(bound, problem, 1)
    result = bound.round(state, cohort, np.repeat(memory[None], len(cohort.clients), axis=0))
    assert result.state.keys() == state.keys(), "server_step returns other arrays than initial_state"
    for array in bound.broadcast:
        assert state[array.name].shape == array.shape(*w.shape), f"the state {array.name!r} is not a {array}"
    clients = len(cohort.clients)
    assert result.messages.shape == (clients, sent, *w.shape)
    assert result.memory.shape == (clients, *memory.shape)
    assert result.arrived.all(), "a message is not finite"
    assert np.isfinite(bound.output(result.state)).all(), "the model is not finite"
    assert bound.output(result.state).shape[-1] == size
    costs = bound.costs(cohort)
    vectors = [sum(a.slots(size) for a in b if not isinstance(a, Scalar)) for b in (bound.sent, bound.broadcast)]
    assert (costs.vectors_up, costs.vectors_down) == (clients * vectors[0], clients * vectors[1])
    scalars = sum(isinstance(array, Scalar) for array in bound.sent)
    dense, padding = clients * scalars, sum(a.padding(size) for a in bound.sent if isinstance(a, Symmetric))
    dense += costs.vectors_up * size - clients * padding
    assert np.all(costs.bytes_up + clients * bound.bytes_saved == dense * w.itemsize)


def check_inputs_are_unchanged(kind: Kind) -> None:
    """A round modifies neither the state nor the memory that it receives."""
    algorithm, problem = _suited(kind)
    bound, size = bind(algorithm, problem), problem.layout.size
    state = bound.initial_state(np.full((1, size), 0.5))
    memory = np.ones((problem.data.clients, slot_count(bound.remembered, size), 1, size))
    before = copy.deepcopy(state)
    (cohort,) = make_cohorts(bound, problem, 1)
    bound.round(state, cohort, memory)
    for name, values in before.items():
        np.testing.assert_array_equal(state[name], values, f"a round modifies the state {name!r}")
    assert (memory == 1).all(), "a round modifies the memory of the last round"


def check_stack_equals_alone(kind: Kind) -> None:
    """A job gives the same bits alone and in a stack of jobs with other rates, strengths and options."""
    algorithm, problem = _suited(kind)
    several = [
        replace(algorithm, **{key: factor * getattr(algorithm, key) + shift for key in kind.varying_options()})
        for factor, shift in ((1, 0), (0.5, 0.01), (0.9, 0.02))
    ]
    psi: list[Any] = [problem.regularizer] * 3
    if hasattr(psi[0], "strength"):
        psi = [replace(psi[0], strength=strength) for strength in (0.3, 0.1, 0.5)]
    rates, server_rates = np.array([0.05, 0.02, 0.03]), np.array([0.7, 1.0, 0.4])

    def run(jobs: list[int]) -> tuple[Array, Array]:
        own, numbers = stack_numbers(several[j] for j in jobs), stack_numbers(psi[j] for j in jobs)
        bound: Any = several[0].bind(problem, Varying(rates[jobs], server_rates[jobs], numbers, own))
        models, _, memory = run_rounds(bound, make_cohorts(bound, problem, 4))
        return np.array(models), memory.read(np.arange(problem.data.clients))

    models, memory = run([0, 1, 2])
    for j in range(3):
        alone, own = run([j])
        np.testing.assert_array_equal(models[:, j], alone[:, 0], "the model depends on the other jobs of the stack")
        np.testing.assert_array_equal(memory[:, :, j], own[:, :, 0], "the memory depends on the other jobs")


def check_resume(kind: Kind) -> None:
    """Continuing from the state and the memory of a round gives the bits of an uninterrupted run."""
    algorithm, problem = _suited(kind)
    bound = bind(algorithm, problem, [0.05, 0.02], 0.7)
    cohorts = make_cohorts(bound, problem, 5, sampled=2)
    whole, _, _ = run_rounds(bound, cohorts)
    _, state, memory = run_rounds(bound, cohorts[:3])
    state, memory = copy.deepcopy(state), copy.deepcopy(memory)
    again = bind(algorithm, problem, [0.05, 0.02], 0.7)  # nothing may be stored in the object
    rest, _, _ = run_rounds(again, cohorts[3:], state, memory)
    np.testing.assert_array_equal(rest, whole[3:], "a resumed run differs: the state must hold all that a round needs")


def check_clients_need_only_their_rows(kind: Kind) -> None:
    """A client's message and memory follow from the broadcast arrays, its memory and its own rows."""
    algorithm, problem = _suited(kind)
    bound = bind(algorithm, problem, 0.02)
    w = np.zeros((1, problem.layout.size))
    cohort = make_cohorts(bound, problem, 2)[1]
    memory = np.repeat(bound.initial_client_arrays(w)[None], len(cohort.clients), axis=0)
    result = bound.round(bound.initial_state(w), cohort, memory)
    state = bound.start_round(bound.initial_state(w), cohort)
    received = {array.name: state[array.name] for array in bound.broadcast}
    for i, m in enumerate(cohort.clients):
        edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        own = problem.data.client(int(m))
        keys = message_keys(cohort.seed, cohort.round, np.array([m]))
        message, kept = bound.client_update(received, memory[i], own, cohort.order, edges, keys)
        np.testing.assert_array_equal(message, result.messages[i], "a message depends on rows of other clients")
        np.testing.assert_array_equal(kept, result.memory[i], "the memory depends on rows of other clients")


def check_lost_messages(kind: Kind) -> None:
    """A message with NaN is dropped: the server continues with the others."""
    algorithm, problem = _suited(kind)
    x = problem.data.x.copy()
    x[problem.data.offsets[1] : problem.data.offsets[2]] = np.nan
    broken = replace(problem, training=replace(problem.data, x=x))
    bound = bind(algorithm, broken, 0.02)
    w = np.zeros((1, problem.layout.size))
    (cohort,) = make_cohorts(bound, broken, 1)
    memory = np.repeat(bound.initial_client_arrays(w)[None], len(cohort.clients), axis=0)
    result = bound.round(bound.initial_state(w), cohort, memory)
    assert result.dropped.tolist() == [1], "a message that is not finite must stay so, to be detected"
    assert np.isfinite(bound.output(result.state)).all(), "the other messages must give a finite model"


def check_mirror_maps(kind: Kind) -> None:
    """Other mirror maps are refused in one line, or models stay in the domain of the map."""
    algorithm, plain = _suited(kind)
    for mirror in (Entropy(), PNorm(power=1.5)):
        if is_refused(algorithm.check_pair, plain.regularizer, mirror):
            continue
        problem = TaskData(plain.data, plain.model, plain.loss).to_problem(plain.regularizer, mirror)
        bound = bind(algorithm, problem, 0.01, 0.9)
        start = problem.initial_models(problem.regularizer.numbers)
        memory, state = ProcessMemory(bound.initial_client_arrays(start)), bound.initial_state(start)
        models = np.array(run_rounds(bound, make_cohorts(bound, problem, 4, sampled=2), state, memory)[0])
        assert np.isfinite(models).all(), f"models are not finite with mirror={mirror.name}"
        calls_prox = algorithm.proxes.step or algorithm.proxes.server
        is_positive = models[..., : problem.layout.blocks[0].size].min() > 0
        assert mirror.name != "entropy" or not calls_prox or is_positive, (
            "with mirror=entropy, weights leave the positive orthant; refuse the map in check_pair"
        )


def check_transforms(kind: Kind) -> None:
    """Every transform of messages is refused in one line, or gives finite models."""
    algorithm, problem = _suited(kind)
    for transform in map(_create, all_transforms().values()):
        bound = bind(algorithm, problem, 0.01, transform=transform)
        if is_refused(bound.check_transform, "uniform"):
            continue
        assert not (transform.noisy and kind.accumulates_messages), "noise would accumulate in the server's state"
        models, _, memory = run_rounds(bound, make_cohorts(bound, problem, 4, sampled=2))
        assert np.isfinite(models).all(), f"models are not finite with transform={transform.name}"
        assert len(memory.initial) == slot_count(bound.client_arrays, problem.layout.size)


def check_backends_agree(kind: Kind) -> None:
    """The NumPy and the Numba backend give equal iterates."""
    algorithm, problem = _suited(kind)
    bound = bind(algorithm, problem, [0.05, 0.02], [0.7, 1.0])
    cohorts = make_cohorts(bound, problem, 4)
    expected = run_rounds(numpy_clients(bound), cohorts)[0]
    models = run_rounds(bound, cohorts)[0]
    np.testing.assert_allclose(models, expected, rtol=TOLERANCE, atol=TOLERANCE / 10)
    assert np.abs(expected).max() > 1e-3, "the model does not move"


def check_prox_calls(kind: Kind) -> None:
    """`proxes` declares the number of prox calls in the text of the local steps."""
    algorithm, problem = _suited(kind)
    bound = numpy_clients(bind(algorithm, problem))
    first, second = make_cohorts(bound, problem, 2)
    w = np.zeros((1, problem.layout.size))
    memory = np.repeat(bound.initial_client_arrays(w)[None], problem.data.clients, axis=0)
    result = bound.round(bound.initial_state(w), first, memory)  # in the first round, t may be 0
    counter: list[int] = bound.__dict__["prox_calls"]
    counter[0] = 0
    bound.round(result.state, second, result.memory)
    expected = bound.costs(second).prox_calls - bound.proxes.server
    assert counter[0] == expected, f"{counter[0]} local prox calls, declared {expected}"


ALGORITHM_CHECKS: list[Callable[[Kind], None]] = [
    check_options,
    check_declarations,
    check_inputs_are_unchanged,
    check_stack_equals_alone,
    check_resume,
    check_clients_need_only_their_rows,
    check_lost_messages,
    check_mirror_maps,
    check_transforms,
    check_backends_agree,
    check_prox_calls,
]


# Limits, on a heterogeneous least-squares problem with full gradients.


def distance_to_optimum(
    kind: Kind, rounds: int, rate: float = 1.0, slower: float = 1.0, server_lr: float = 1.0, **options: float
) -> tuple[float, float]:
    """Return the distance of the final model from the optimum and its KKT residual.

    The client rate is `rate` / L / `slower`, the server rate `server_lr` times `slower`.
    """
    algorithm: Any = kind(**options)
    problem = make_limit_problem(algorithm)
    largest = max(
        estimate_smoothness(replace(problem, training=problem.data.client(m)), 0, 1000)
        for m in range(problem.data.clients)
    )
    bound = bind(algorithm, problem, rate / largest / slower, slower * server_lr)
    cohorts = with_full_gradients(make_cohorts(bound, problem, rounds), problem.data.sizes)
    w = run_rounds(bound, cohorts)[0][-1]
    residual = problem.kkt_residual(w, problem.risk(w).gradient, problem.regularizer.numbers)[0]
    return float(np.abs(w[0] - optimum_of(problem)).max()), float(residual)


def check_limit_is_the_optimum(kind: Kind, **options: float) -> None:
    """The method converges to the optimum with a constant step size."""
    _, residual = distance_to_optimum(kind, rounds=150, **options)
    assert residual < 1e-8, f"KKT residual {residual:.1e} after 150 rounds"


def check_bias_is_proportional_to_client_lr(kind: Kind, **options: float) -> None:
    """With eta_s eta_c fixed, a tenth of eta_c gives about a tenth of the error."""
    far, near = (distance_to_optimum(kind, 150, 0.4, slower, **options)[0] for slower in (10, 100))
    assert far > 1e-6, f"the error is {far:.1e}: the limit seems to be the optimum"
    remains = "; if it does not decrease, another problem is solved (is the weight of psi right?)"
    assert 7 < far / near < 14, f"a tenth of client_lr divides the error by {far / near:.3g}, not by about 10{remains}"


def check_bias_vanishes(kind: Kind, **options: float) -> None:
    """Eight times the rounds give less than a third of the error."""
    early, late = (distance_to_optimum(kind, rounds, **options)[0] for rounds in (20, 160))
    assert late < early / 3, f"errors {early:.1e} after 20 rounds and {late:.1e} after 160"


LIMIT_CHECKS: dict[Limit, Callable[..., None]] = {
    "optimum": check_limit_is_the_optimum,
    "bias": check_bias_is_proportional_to_client_lr,
    "vanishing": check_bias_vanishes,
}
