"""Every algorithm on the NumPy and the Numba backend, and every operation against its reference definition."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms, ops
from fco_cli.algorithms.arrays import Matrix, Scalar, Vector
from fco_cli.algorithms.numba_backend import bound_operations
from fco_cli.algorithms.numpy_backend import NumpyBatches, NumpyGeometry, numpy_clients
from fco_cli.algorithms.protocol import Federated
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.descent import Batches
from fco_cli.problem.mirror_maps import Entropy, Euclidean
from fco_cli.testing.algorithms import check_backends_agree

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
OPERATIONS = [
    name
    for name, value in vars(ops).items()
    if inspect.isfunction(value) and value.__module__ == ops.__name__ and name != "compiled_as"
]


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", FEDERATED)
def test_machine_code_gives_the_iterates_of_the_reference(name):
    check_backends_agree(all_algorithms()[name])


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_a_kernel_with_the_same_arguments(name, make_problem, regularizer):
    problem = make_problem(regularizer("l1"))
    reference, compiled = getattr(ops, name), bound_operations(problem, True).parts[name]
    assert list(inspect.signature(reference).parameters) == list(inspect.signature(compiled.python).parameters)
    assert (reference.__doc__ or "").strip()


# Arguments of every operation: its targets first.
def arguments_of(name, problem, geometry, batches, random):
    """Return one value per parameter of an operation, by the parameter's name."""
    size = problem.layout.size

    def vector():
        return random.standard_normal((2, size))

    special = {
        "geometry": geometry,
        "batches": batches,
        "k": 1,
        "triangle": random.standard_normal((4, 2, size)),
        "value": random.standard_normal(2),
        "fraction": 0.3,
        "columns": np.tile(np.arange(size), (2, 1)),
        "matrix": random.standard_normal((4, 2, size)),
        **{key: random.uniform(0.1, 1, 2) for key in ("t", "rate", "coefficient", "divisor", "radius")},
    }
    if name.endswith("triangle"):  # entries of the upper triangle, in rows of the parameters' size
        special |= {key: random.standard_normal((4, 2, size)) for key in ("target", "source")}
        special["share"] = np.array([0.3, 0.6])
    parameters = inspect.signature(getattr(ops, name)).parameters
    return [special[key] if key in special else vector() for key in parameters]


@pytest.mark.parametrize("map_name", ["euclidean", "entropy"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_agrees_with_its_reference(name, map_name, make_problem, regularizer):
    constraint = "l1_ball" if name == "assign_linear_minimizer" else "l1"
    psi = regularizer(constraint)
    problem = replace(make_problem(psi, sizes=(7,)), mirror=Entropy() if map_name == "entropy" else Euclidean())
    geometry = problem.geometry(np.repeat(psi.numbers, 2).view(np.recarray))
    data = problem.data
    batches = Batches(data.x, data.y, np.arange(7), np.array([0, 4, 7]), problem.model.widths, 2)
    results = []
    for backend in ("numpy", "numba"):
        numpy = backend == "numpy"
        own_geometry = NumpyGeometry(problem, geometry, True) if numpy else geometry
        own_batches = NumpyBatches(problem, batches) if numpy else batches
        values = arguments_of(name, problem, own_geometry, own_batches, np.random.default_rng(0))
        if map_name == "entropy" and name in ("to_dual", "as_dual"):
            values = [np.abs(value) if isinstance(value, np.ndarray) else value for value in values]
        operation = getattr(ops, name) if numpy else bound_operations(problem, True).parts[name]
        returned = operation(*values)
        target = values[0] if returned is None else returned
        results.append(target[..., : problem.layout.size] if np.ndim(target) else np.asarray(target))
    if name in ("buffer_like", "is_zero"):
        assert results[0].shape == results[1].shape
        assert name == "buffer_like" or results[0] == results[1]
    else:
        np.testing.assert_allclose(results[1], results[0], rtol=1e-12, atol=1e-13)


# Declared shapes.
@dataclass(kw_only=True)
class GaussNewton(Federated):
    """Newton's method for the squared loss: clients send gradient, curvature in every direction, and a number."""

    name: str = "gauss_newton"
    broadcast = (Vector("w"),)
    remembered = (Matrix("last"), Vector("count"))
    sent = (Vector("gradient"), Matrix("hessian"), Scalar("number"))
    accumulates_messages = False
    normalized = False
    full_participation = True

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_gradient(message.gradient, received.w, batches)
        for i in range(message.hessian.shape[0]):
            shifted = ops.copy(received.w)
            for j in range(shifted.shape[0]):
                shifted[j, i] += 1.0
            ops.assign_gradient(message.hessian[i], shifted, batches)
            ops.subtract(message.hessian[i], message.gradient)
            ops.assign(memory.last[i], message.hessian[i])
        for j in range(message.number.shape[0]):
            message.number[j] = 3.0

    def initial_state(self, w):
        return {"w": w, "number": np.zeros(len(w))}

    def server_step(self, state, aggregates):
        step = np.linalg.solve(aggregates.mean["hessian"], aggregates.mean["gradient"][:, :, None])[:, :, 0]
        return {"w": state["w"] - step, "number": aggregates.sum("number")}

    def output(self, state):
        return state["w"]


GaussNewton.__module__ = "not_imported"  # unregistered: the registry lists classes of imported modules


@pytest.mark.parametrize(
    "backend", ["numba", "numpy", pytest.param("machine", marks=[pytest.mark.ci, pytest.mark.machine_code])]
)
def test_matrices_and_scalars_travel(backend, make_problem, regularizer, cohorts_of, make_hparams):
    """One round of Newton's method solves the least-squares problem."""
    from fco_cli.algorithms import Varying

    problem = make_problem(regularizer("none"), sizes=(9, 12, 10))
    method = GaussNewton()
    bound = method.bind(problem, Varying.from_rates(method, problem.regularizer, np.ones(2), np.ones(2)))
    algorithm = numpy_clients(bound) if backend == "numpy" else bound
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3), 1)
    w = np.zeros((2, problem.layout.size))
    memory = np.repeat(algorithm.initial_client_arrays(w)[None], 3, axis=0)
    made = algorithm.round(algorithm.initial_state(w), cohort, memory)
    gradient = problem.risk(algorithm.output(made.state)).gradient
    assert np.abs(gradient).max() < 1e-9 * np.abs(problem.risk(w).gradient).max()
    np.testing.assert_allclose(made.state["number"], 3.0)
    size = problem.layout.size
    np.testing.assert_array_equal(made.memory[:, :size], made.messages[:, 1 : 1 + size])
    assert algorithm.costs(cohort).bytes_up == 3 * 8 * (size + size * size + 1)
    assert "server_lr" not in algorithm.uses
    assert algorithm.uses_mean_gradient


def test_a_missing_declaration_is_named():
    with pytest.raises(TypeError, match="accumulates_messages"):

        class Silent(Federated):
            name = "silent"
            broadcast = sent = (Vector("w"),)
            local_steps = all_algorithms()["fedavg"].local_steps

    with pytest.raises(TypeError, match="accumulates_messages"):

        class Remembering(all_algorithms()["fedavg"]):
            name = "remembering"
            remembered = (Vector("v"),)
