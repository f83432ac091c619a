"""The texts of all algorithms on PyTorch tensors: equal iterates, stacks, resuming, transforms, other devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.losses import all_losses
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.problem.models.network import Network
from fco_cli.testing import algorithms as checks
from fco_cli.testing.problems import (
    bind,
    is_refused,
    make_cohorts,
    make_problem,
    make_regularizer,
    run_rounds,
    supported_regularizer,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

FEDERATED = {name: kind for name, kind in all_algorithms().items() if kind.federated}
NEEDS_LINEAR_ROWS = ("moments", "prox_newton")  # moments and Hessians
NEEDS_CONVEXITY = ("quasi_newton",)
TOLERANCE = 1e-10


def torch_model(model, dtype=np.dtype(float), **settings):
    """Return the twin of a linear model or network: equal scores for equal parameters."""
    from fco_cli.problem.models.torch_model import TorchModel

    widths = model.widths.tolist()
    layers = [torch.nn.Linear(*pair) for pair in zip(widths, widths[1:], strict=False)]
    between = [layer for one in layers for layer in (one, torch.nn.ReLU())][:-1]
    module = torch.nn.Sequential(*between)
    return TorchModel(module, (widths[0],), widths[-1], dtype, convex=model.convex, **settings)


def twin_of(problem, **settings):
    """Return a problem whose model is a module, with parameters in the same order."""
    return replace(problem, model=torch_model(problem.model, problem.dtype, **settings))


def network_problem(regularizer):
    """Return classification by an MLP, as in task=femnist62_mlp, with 3 classes."""
    problem = make_problem(regularizer, all_losses()["softmax"]())
    return replace(problem, model=Network(6, (5,), 3, seed=0))


def models_of(algorithm, problem, transform=None, rounds=4, sampled=None, numpy=False):
    bound = bind(algorithm, problem, [0.05, 0.02], [0.7, 1.0], transform)
    start = problem.initial_models(np.repeat(problem.regularizer.numbers, 2).view(np.recarray))
    from fco_cli.simulation.memory import ProcessMemory

    memory = ProcessMemory(bound.initial_client_arrays(start))
    cohorts = make_cohorts(bound, problem, rounds, sampled)
    models, _, memory = run_rounds(bound, cohorts, bound.initial_state(start), memory)
    return np.array(models), memory.read(np.arange(problem.data.clients))


@pytest.mark.parametrize("stack", ["loop", "vmap"])
@pytest.mark.parametrize("name", sorted(FEDERATED.keys() - set(NEEDS_LINEAR_ROWS)))
def test_a_linear_module_gives_the_iterates_of_the_linear_model(name, stack):
    algorithm = FEDERATED[name]()
    problem = make_problem(supported_regularizer(algorithm))
    twin = twin_of(problem, stack=stack)
    twin.model._initial = problem.model.initial()
    expected, memory = models_of(algorithm, problem)
    models, own = models_of(algorithm, twin)
    np.testing.assert_allclose(models, expected, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(own, memory, rtol=TOLERANCE, atol=TOLERANCE)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("stack", ["loop", "vmap"])
@pytest.mark.parametrize("name", sorted(FEDERATED.keys() - set(NEEDS_LINEAR_ROWS) - set(NEEDS_CONVEXITY)))
def test_a_module_with_hidden_layers_gives_the_iterates_of_the_network(name, stack):
    algorithm = FEDERATED[name]()
    problem = network_problem(supported_regularizer(algorithm))
    twin = twin_of(problem, stack=stack)
    twin.model._initial = problem.model.initial()
    expected, _ = models_of(algorithm, problem)
    models, _ = models_of(algorithm, twin)
    np.testing.assert_allclose(models, expected, rtol=TOLERANCE, atol=TOLERANCE)
