"""The texts of all algorithms on PyTorch tensors: equal iterates, stacks, resuming, transforms, other devices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.network import Network
from fco_cli.simulation.memory import ProcessMemory
from fco_cli.testing import algorithms as checks
from fco_cli.testing.problems import (
    bind,
    is_refused,
    make_cohorts,
    make_problem,
    make_regularizer,
    no_regularizer,
    run_rounds,
    supported_regularizer,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

FEDERATED = {name: kind for name, kind in all_algorithms().items() if kind.federated}
NEEDS_LINEAR_ROWS = ("fednl", "moments", "prox_newton")  # moments and Hessians of rows
NEEDS_CONVEXITY = ("quasi_newton",)
WITH_GRADIENTS = sorted(FEDERATED.keys() - set(NEEDS_LINEAR_ROWS))
FEW = ("fedavg", "feddualavg", "zhj", "feddr")  # checked one by one in the tests of minutes, the others in CI
TOLERANCE = 1e-10
BITS = [
    checks.check_declarations,
    checks.check_inputs_are_unchanged,
    checks.check_stack_equals_alone,
    checks.check_resume,
    checks.check_clients_need_only_their_rows,
    checks.check_lost_messages,
    checks.check_mirror_maps,
]


def module_of(widths):
    layers = [torch.nn.Linear(*pair) for pair in pairwise(widths)]
    return torch.nn.Sequential(*[layer for one in layers for layer in (one, torch.nn.ReLU())][:-1])


def twin_of(problem, module=None, **settings):
    """Return the problem with a module: of equal scores for equal parameters, unless another is given."""
    from fco_cli.problem.models.torch_model import TorchModel

    widths = problem.model.widths.tolist()
    module = module or module_of(widths)
    model = TorchModel(module, (widths[0],), widths[-1], problem.dtype, convex=problem.model.convex, **settings)
    if model.layout.size == problem.layout.size:
        model._initial = problem.model.initial()
    return replace(problem, model=model)


def network_problem(regularizer):
    """Return classification by a network with a hidden layer, as in task=femnist62_mlp, with 3 classes."""
    problem = make_problem(regularizer, all_losses()["softmax"]())
    return replace(problem, model=Network(6, (5,), 3, seed=0))


def iterates(algorithm, problem, transform=None, rates=(0.05, 0.02)):
    """Return the models after every round and the clients' memory."""
    bound = bind(algorithm, problem, rates, np.array([0.7, 1.0])[: len(rates)], transform)
    start = problem.initial_models(np.repeat(problem.regularizer.numbers, len(rates)).view(np.recarray))
    memory = ProcessMemory(bound.initial_client_arrays(start))
    models, _, memory = run_rounds(bound, make_cohorts(bound, problem, 4), bound.initial_state(start), memory)
    return np.array(models), memory.read(np.arange(problem.data.clients))


def assert_equal_iterates(algorithm, problem, twin, transform=None):
    expected, memory = iterates(algorithm, problem, transform)
    models, own = iterates(algorithm, twin, transform)
    np.testing.assert_allclose(models, expected, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(own, memory, rtol=TOLERANCE, atol=TOLERANCE)
    assert np.abs(models[-1] - models[0]).max() > 1e-4, "the model does not move"


@pytest.mark.parametrize("stack", ["loop", "vmap"])
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_a_dense_module_gives_the_iterates_of_the_linear_model(name, stack):
    algorithm = FEDERATED[name]()
    problem = make_problem(supported_regularizer(algorithm))
    assert_equal_iterates(algorithm, problem, twin_of(problem, stack=stack))


@pytest.mark.parametrize("stack", ["loop", "vmap"])
@pytest.mark.parametrize("name", sorted(set(WITH_GRADIENTS) - set(NEEDS_CONVEXITY)))
def test_a_module_with_a_hidden_layer_gives_the_iterates_of_the_network(name, stack):
    algorithm = FEDERATED[name]()
    problem = network_problem(supported_regularizer(algorithm))
    assert_equal_iterates(algorithm, problem, twin_of(problem, stack=stack))


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_a_dense_module_gives_the_iterates_of_machine_code(name):
    algorithm = FEDERATED[name]()
    problem = make_problem(supported_regularizer(algorithm))
    assert_equal_iterates(algorithm, problem, twin_of(problem))


class Branches(torch.nn.Module):
    """A module that is not a sequence of layers, with a parameter without use and one of two uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3, bias=False)
        self.unused = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        x = self.first(x).tanh()
        return self.second(x) + 0.1 * (x @ self.second.weight.T).sin()


def test_vmap_gives_the_iterates_of_the_loop_for_any_module():
    problem = network_problem(no_regularizer())
    loop, vmap = (twin_of(problem, Branches(), stack=stack) for stack in ("loop", "vmap"))
    vmap.model._initial = loop.model._initial
    assert vmap.model.evaluation._layers is None
    assert_equal_iterates(FEDERATED["fedavg"](), loop, vmap)


@pytest.mark.parametrize("name", NEEDS_LINEAR_ROWS)
def test_methods_of_rows_refuse_modules(name):
    problem = twin_of(make_problem(make_regularizer(type(no_regularizer())), all_losses()["squared"]()))
    with pytest.raises(UserError, match="linear model"):
        bind(FEDERATED[name](), problem)


def test_quasi_newton_needs_a_module_declared_convex():
    algorithm = FEDERATED["quasi_newton"]()
    with pytest.raises(UserError, match="convex"):
        bind(algorithm, twin_of(network_problem(supported_regularizer(algorithm))))


def test_an_operation_on_moments_or_hessians_is_refused_in_one_line():
    from fco_cli.algorithms.torch_backend import TorchClients

    problem = twin_of(make_problem())
    bound = bind(FEDERATED["fedavg"](), problem)
    clients = TorchClients(bound)
    clients.local_steps = lambda *own: own[5].assign_curvature(None)
    bound.__dict__["_run_clients"] = clients
    (cohort,) = make_cohorts(bound, problem, 1)
    with pytest.raises(UserError, match="gradients only"):
        bound.round(bound.initial_state(np.zeros((1, problem.layout.size))), cohort)


@pytest.mark.parametrize("check", BITS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.ci) for name in WITH_GRADIENTS]
)
def test_methods_pass_their_checks_on_tensors(name, check, monkeypatch):
    monkeypatch.setattr(checks, "make_problem", lambda *own, **options: twin_of(make_problem(*own, **options)))
    check(FEDERATED[name])


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", ["fedavg", "feddualavg", "scaffold_prox", "feddr"])
def test_a_job_gives_the_same_bits_alone_and_in_a_stack_of_machine_code(name, monkeypatch):
    """At a size at which matrix libraries choose other kernels for other shapes and alignments."""

    def large(*own, **options):
        problem = make_problem(*own, **(options | {"features": 67, "sizes": (57, 33, 41)}))
        return twin_of(problem, torch.nn.Sequential(torch.nn.Linear(67, 37), torch.nn.ReLU(), torch.nn.Linear(37, 1)))

    monkeypatch.setattr(checks, "make_problem", large)
    checks.check_stack_equals_alone(FEDERATED[name])


@pytest.mark.parametrize("transform", sorted(all_transforms()))
def test_transforms_of_messages_give_equal_iterates_or_are_refused(transform):
    problem, algorithm = make_problem(), FEDERATED["fedavg"]()
    own = all_transforms()[transform]()
    if own.protects_rows:
        assert is_refused(bind, algorithm, twin_of(problem), 0.05, 1.0, own)
        return
    if own.noisy:
        bound = bind(algorithm, twin_of(problem), 0.05, 1.0, own)
        assert np.isfinite(run_rounds(bound, make_cohorts(bound, problem, 2))[0]).all()
        return
    assert_equal_iterates(algorithm, problem, twin_of(problem), own)


@pytest.mark.parametrize("loss", ["logistic", "huber", "poisson", "cox"])
def test_the_losses_are_those_of_kernels(loss):
    random = np.random.default_rng(0)
    labels = random.exponential(size=20) * random.choice([-1, 1], 20) if loss == "cox" else None
    problem = make_problem(loss=all_losses()[loss](), labels=labels)
    twin = twin_of(problem)
    w = random.standard_normal((3, problem.layout.size)) * 0.3
    expected, own = problem.risk(w), twin.risk(w)
    np.testing.assert_allclose(own.value, expected.value, rtol=1e-12)
    np.testing.assert_allclose(own.gradient, expected.gradient, rtol=1e-10, atol=1e-12)
    assert (own.accuracy is None) == (expected.accuracy is None)


def test_rows_with_weights_and_personal_models_have_the_same_metrics():
    from fco_cli.problem.risk import own_losses, scores_of

    problem = network_problem(no_regularizer())
    random = np.random.default_rng(0)
    problem = replace(problem, training=replace(problem.data, row_weights=random.uniform(0.5, 2, len(problem.data.y))))
    twin, w = twin_of(problem), random.standard_normal((2, problem.layout.size))
    expected, own = problem.risk(w), twin.risk(w)
    np.testing.assert_allclose(own.value, expected.value, rtol=1e-12)
    np.testing.assert_allclose(own.gradient, expected.gradient, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(own.accuracy, expected.accuracy)
    models, clients = np.stack([w, 2 * w]), np.array([2, 0])
    for first, second in zip(
        own_losses(problem.data, twin.model, problem.loss, models, clients),
        own_losses(problem.data, problem.model, problem.loss, models, clients),
        strict=True,
    ):
        np.testing.assert_allclose(first, second, rtol=1e-12)
    scores = scores_of(twin.model, problem.data, w)
    np.testing.assert_allclose(scores, scores_of(problem.model, problem.data, w), rtol=1e-11, atol=1e-13)


def test_a_pass_over_many_rows_has_several_parts(monkeypatch):
    from fco_cli.algorithms import torch_backend
    from fco_cli.problem.models import torch_model

    problem = make_problem()
    twin, w = twin_of(problem), np.random.default_rng(0).standard_normal((2, problem.layout.size))
    whole, scores = twin.risk(w), twin.model.scores(problem.data, w)
    steps = iterates(FEDERATED["fista"](), twin)[0]
    monkeypatch.setattr(torch_model, "ROWS_AT_A_TIME", 3)
    monkeypatch.setattr(torch_backend, "ROWS_AT_A_TIME", 3)
    parts = twin_of(problem)
    np.testing.assert_allclose(parts.risk(w).value, whole.value, rtol=1e-13)
    np.testing.assert_allclose(parts.risk(w).gradient, whole.gradient, rtol=1e-12)
    np.testing.assert_allclose(parts.model.scores(problem.data, w), scores, rtol=1e-12)
    np.testing.assert_allclose(iterates(FEDERATED["fista"](), parts)[0], steps, rtol=1e-12)
    one_batch = iterates(FEDERATED["fedavg"](), twin)[0]
    monkeypatch.setattr(torch_backend, "ROWS_AT_A_TIME", 1)  # the state of a step is its query
    np.testing.assert_allclose(iterates(FEDERATED["fedavg"](), parts)[0], one_batch, rtol=1e-12)


@pytest.mark.parametrize("name", ["centralized", "local", "optimum"])
def test_baselines_run_a_convex_module(name):
    kind = all_algorithms()[name]
    problem = make_problem(make_regularizer(type(supported_regularizer(kind()))))
    expected, own = (
        bound.output(bound.round(bound.initial_state(np.zeros((1, problem.layout.size)))).state)
        for bound in (bind(kind(), one) for one in (problem, twin_of(problem)))
    )
    np.testing.assert_allclose(own, expected, rtol=1e-7, atol=1e-9)


# Random numbers of the module.


def noisy_problem(**settings):
    problem = network_problem(no_regularizer())
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.3)
    return twin_of(problem, module, is_random=True, **settings)


def test_dropout_is_a_function_of_seed_round_and_client(monkeypatch):
    algorithm, problem = FEDERATED["fedavg"](), noisy_problem()
    torch.manual_seed(1)
    first = iterates(algorithm, problem)[0]
    state = torch.get_rng_state()
    torch.manual_seed(2)
    np.testing.assert_array_equal(iterates(algorithm, problem)[0], first)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state()), "the user's random numbers are unchanged"
    alone = iterates(algorithm, problem, rates=(0.05,))[0]
    np.testing.assert_array_equal(alone[:, 0], first[:, 0])
    together = iterates(algorithm, noisy_problem(stack="vmap"))[0]
    np.testing.assert_allclose(together, first, rtol=1e-12)
    plain = noisy_problem()
    plain.model.is_random = False
    plain.model.module[1].p = 0.0
    assert np.abs(iterates(algorithm, plain)[0] - first).max() > 1e-3, "dropout has an effect"
    w = np.random.default_rng(0).standard_normal((1, problem.layout.size))
    np.testing.assert_array_equal(problem.risk(w).value, plain.risk(w).value)  # evaluations are without dropout


# Devices.


@pytest.mark.parametrize("name", ["feddualavg", "scaffold_prox", "feddr", "mc_fedda", "fedavg_subgrad", "fedfw"])
def test_another_device_receives_copies_and_gives_the_same_bits(name, monkeypatch):
    """There is no other device here: copies on the CPU stand for its memory."""
    from fco_cli.algorithms import torch_backend
    from fco_cli.problem.models.torch_model import TorchModel

    algorithm = FEDERATED[name]()
    problem = twin_of(make_problem(supported_regularizer(algorithm)))
    expected = iterates(algorithm, problem, all_transforms()["topk"]())
    view, copied = TorchModel.to_tensor, []
    monkeypatch.setattr(torch_backend, "shares_memory", lambda tensor: copied.append(tensor) is not None)
    monkeypatch.setattr(TorchModel, "to_tensor", lambda model, array: view(model, array).clone())
    for own, values in zip(iterates(algorithm, problem, all_transforms()["topk"]()), expected, strict=True):
        np.testing.assert_array_equal(own, values)
    assert copied


def test_operations_on_arrays_stay_on_their_device():
    """Tensors of the device `meta` have no numbers: an operation that mixes devices fails."""
    from fco_cli.algorithms.torch_backend import operations

    ops = operations().parts
    z, w, t = (torch.empty(shape, device="meta", dtype=torch.float64) for shape in ((2, 5), (2, 5), (2,)))
    for name in ("copy", "buffer_like", "zeros_like"):
        assert (ops[name](z).shape, ops[name](z).device.type) == ((2, 5), "meta")
    ops["assign"](z, w)
    for name in ("add", "subtract"):
        ops[name](z, w)
    ops["assign_difference"](z, w, w)
    ops["assign_quotient"](z, w, t)
    for name in ("add_multiple", "subtract_multiple"):
        ops[name](z, t, w)
    for name in ("assign_scaled_difference", "add_scaled_difference"):
        ops[name](z, t, w, w)
    ops["corrected_dual_step"](z, w, w.clone(), w, t, w)
    assert ops["reflection"](z, w).device.type == z.device.type == "meta"
