"""Losses, one class each, registered by name."""

from fco_cli.problem.losses.base import Loss, all_losses
from fco_cli.problem.losses.classification import MAX_CLASSES, Logistic, Softmax, area_under_curve
from fco_cli.problem.losses.regression import TINY, Huber, Poisson, PoissonCurvature, Squared

__all__ = [
    "MAX_CLASSES",
    "TINY",
    "Huber",
    "Logistic",
    "Loss",
    "Poisson",
    "PoissonCurvature",
    "Softmax",
    "Squared",
    "all_losses",
    "area_under_curve",
]
