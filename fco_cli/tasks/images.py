"""Base class of image classification tasks: softmax regression or a network."""

from __future__ import annotations

from dataclasses import dataclass, field

from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Softmax
from fco_cli.problem.models.linear import Linear, Model
from fco_cli.problem.models.network import Network
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.base import Task
from fco_cli.tasks.metrics import density


@dataclass(kw_only=True)
class ImageClassification(Task):
    """Softmax cross-entropy with a ReLU network; `hidden` are the hidden layer widths, empty for a linear model.

    The configuration group `model` can replace this model.
    """

    hidden: list[int] = field(default_factory=list)

    main_metric = "validation_accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        network = "null or glorot: hidden layers cannot be trained from zeros"
        require(not self.hidden or self.start != "zeros", "task.start", self.start, network)
        require(
            all(width >= 1 for width in self.hidden), "task.hidden", self.hidden, "whole numbers >= 1, or an empty list"
        )

    def with_own_model(self, training: ClientData, held_out: ClientData, classes: int, seed: int) -> TaskData:
        """Return the task data with a linear model, or a network if `hidden` is set."""
        features = training.x.shape[1]
        model: Model = Linear(features, classes)
        if self.hidden:
            model = Network(features, tuple(self.hidden), classes, seed)
        return TaskData(training, model, Softmax(), held_out)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        return {"density": density(w[:, problem.layout.regularized] != 0)}
