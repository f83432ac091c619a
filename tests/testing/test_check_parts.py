"""Checks of regularizers, losses and tasks: members pass (also in their own tests), and errors are found and named."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from fco_cli.config import Run
from fco_cli.config.compose import compose
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Loss, Squared
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.tasks import Task
from fco_cli.testing import check_loss, check_regularizer, check_task

SMALL = {
    "lasso": ["task.clients=5", "task.samples=8", "task.dimension=12", "task.ones=3"],
    "nuclear": ["task.clients=5", "task.samples=8", "task.dimension=4", "task.rank=2"],
    "mixture": ["task.clients=5", "task.samples=8", "task.dimension=12", "task.active=3"],
    "digits": ["task.clients=6", "task.test_fraction=0.85"],
}


def unregistered(kind):
    """Remove a class from the registry, which lists classes of imported modules (decorator)."""
    kind.__module__ = "not_imported"
    return kind


@pytest.mark.parametrize("name", ["l1", "l1_ball", "nuclear"])
def test_a_class_gets_moderate_numbers(name):
    check_regularizer(all_regularizers()[name])


@unregistered
@dataclass(kw_only=True)
class HalfStep(L1):
    """Thresholds by half of what the prox requires."""

    name: str = "half_step"

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        for i in range(z.shape[0]):
            out[i] = np.sign(z[i]) * max(abs(z[i]) - t * psi.strength / 2, 0.0) + 0 * z[i]


@unregistered
@dataclass(kw_only=True)
class LosesNan(L1):
    """Turns NaN into 0."""

    name: str = "loses_nan"

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        for i in range(z.shape[0]):
            size = abs(z[i]) - t * psi.strength
            out[i] = np.sign(z[i]) * size if size > 0 else 0.0


@unregistered
@dataclass(kw_only=True)
class WrongSign(L1):
    """Returns the negative subgradient."""

    name: str = "wrong_sign"

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = -psi.strength * np.sign(w[i])


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (HalfStep, "check_three_point_inequality"),
        (LosesNan, "check_divergence_is_preserved"),
        (WrongSign, "check_subgradient"),
    ],
)
def test_an_error_of_a_regularizer_is_found(kind, check):
    with pytest.raises(AssertionError, match=rf"^{kind.__name__} fails {check}: "):
        check_regularizer(kind(strength=0.7))


@unregistered
@dataclass(frozen=True)
class WrongSlope(Squared):
    """Half of the derivative."""

    name = "wrong_slope"

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] = scores[0] - y


@unregistered
@dataclass(frozen=True)
class NotConvex(Loss):
    """A bounded loss."""

    name = "not_convex"

    @staticmethod
    @kernel
    def value(scores, y):
        return 1 - np.exp(-((scores[0] - y) ** 2))

    @staticmethod
    @kernel
    def slope(scores, y):
        error = scores[0] - y
        scores[0] = 2 * error * np.exp(-(error**2))


def test_an_error_of_a_loss_is_found():
    with pytest.raises(AssertionError, match=r"^WrongSlope fails check_slope: "):
        check_loss(WrongSlope())
    with pytest.raises(AssertionError, match=r"^NotConvex fails check_convexity: "):
        check_loss(NotConvex())
    check_loss(NotConvex(), convex=False)


@pytest.mark.parametrize("name", ["lasso", "nuclear", "mixture", pytest.param("digits", marks=pytest.mark.ci)])
def test_tasks_pass_all_checks(name):
    check_task(Run.of(compose([f"task={name}", *SMALL[name], "hparams.clients_per_round=2"])).task)


@dataclass(kw_only=True)
class Ramp(Task):
    """Regression with the weights 1, 2, ..., 5, and possible errors; without a default name it is not registered."""

    strength: float = 0.1
    radius: float = 15.0
    error: str = ""
    calls: list[int] = field(default_factory=list)

    def build(self, seed, dtype):
        self.calls.append(seed)
        drawn = seed + len(self.calls) if self.error == "seed" else seed
        x = np.random.default_rng(drawn).standard_normal((4, 10, 5)).astype(dtype)
        y = x @ np.arange(1, 6, dtype=dtype)
        if self.error == "label":
            y[0, 0] = np.nan
        return TaskData(ClientData.of_equal_clients(x, y), Linear(5), Squared())

    @property
    def clients_available(self):
        return 5 if self.error == "clients" else 4

    def metrics(self, problem, w):
        return {"size": np.abs(w).mean()} if self.error == "metric" else {"size": np.abs(w).mean(axis=1)}


@pytest.mark.parametrize(
    ("error", "check"),
    [
        ("seed", "check_data_are_reproducible"),
        ("label", "check_data_are_valid"),
        ("clients", "check_data_are_valid"),
        ("metric", "check_metrics"),
    ],
)
def test_an_error_of_a_task_is_found(error, check):
    check_task(Ramp(name="ramp"))
    with pytest.raises(AssertionError, match=f"^Ramp fails {check}: "):
        check_task(Ramp(name="ramp", error=error))
