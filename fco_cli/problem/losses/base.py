"""Base class of losses, and links between scores and predictions.

A loss defines kernels on the scores and the label of one row: `value`, `slope` and, for classification, `is_correct`.
descent.py contains the loops over jobs and rows. A loss also defines which labels are valid, the number of scores per
row, and additional metrics of held-out data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.problem.layout import Array
from fco_cli.problem.registry import Registry

# scipy.special is imported on use: it would slow the start of every site's process.


def _logit(scores: Array) -> Array:
    from scipy.special import expit

    return expit(scores)


def _softmax(scores: Array) -> Array:
    from scipy.special import softmax

    return softmax(scores, axis=1)


# predictions [N, C] from scores [N, C]
LINKS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda scores: scores,
    "log": np.exp,  # the prediction is a mean e^score
    "logit": _logit,  # the prediction is the probability of the second of two classes
    "softmax": _softmax,  # the predictions are the probabilities of all classes
    "log_hazard": lambda scores: scores,  # the score is the logarithm of a hazard ratio
}


@kernel
def never_correct(scores, y):
    """Return False: losses that are not for classification have no correct predictions."""
    return False


@kernel
def label_as_score(y):
    """Return the label as the optimal score."""
    return np.float64(y)


class RowKernels:
    """Kernels on one row: those of a loss and of the data's format."""

    slope: Kernel  # slope(scores, y): overwrites the scores with the derivatives of the loss
    value: Kernel  # value(scores, y) -> loss
    curvature: Kernel  # curvature(scores, y, out): writes the second derivatives of the loss
    is_correct: Kernel  # is_correct(scores, y) -> True if the prediction is correct
    label_of: Kernel  # label_of(y, row) -> label
    weight_of: Kernel  # weight_of(y, row) -> weight of the row in the client's loss
    optimal_score: Kernel  # optimal_score(y) -> the minimizing score
    observe: Kernel  # observe(scores, y, weight, j, i, observed): records something about the row
    each_row: Kernel  # each_row(scores, y, rows, observed, slopes): loop over jobs and rows (descent.py)


on_row: RowKernels = declared(RowKernels)


@dataclass(frozen=True)
class Loss:
    """Loss of one row; its kernels receive the scores [C] and the label, and may use the dataclass fields by name."""

    name: ClassVar[str]
    value: ClassVar[Kernel]  # value(scores, y) -> number
    slope: ClassVar[Kernel]  # slope(scores, y): overwrites the scores with the derivatives
    # curvature(scores, y, out): writes the second derivatives by the scores, the upper triangle row by row; None: the
    # loss has none. At a kink of the slope it is a generalized derivative.
    curvature: ClassVar[Kernel | None] = None
    # optimal_score(y) -> the minimizing score, possibly infinite; only for losses of one score, required by site_bias
    optimal_score: ClassVar[Kernel | None] = None
    # replaces descent.each_row if the loss is not a sum over rows; a batch must then contain all rows of a client
    client_loss: ClassVar[Kernel | None] = None
    # client_curvature(scores, y, rows, x, share, coefficients, packed): for a loss with `client_loss`, the Hessian of
    # one job (curvature.py)
    client_curvature: ClassVar[Kernel | None] = None
    # client_residuals(scores, y, rows, x, slopes, curvatures): for a loss with `client_loss`, replaces the features x
    # [B, F] by the gradients of the rows and their slopes by 1 (score_products.py)
    client_residuals: ClassVar[Kernel | None] = None
    is_correct: ClassVar[Kernel] = (
        never_correct  # is_correct(scores, y) -> True if the prediction is correct; for classification
    )
    link: ClassVar[str] = "identity"  # name of `predict` in files with models: a key of LINKS
    censored_labels: ClassVar[bool] = False  # labels are times, negative for censored rows; task.event makes them
    curvature_at_zero: ClassVar[float | None] = None  # of a quadratic model at score 0 (algo=moments), if it has one
    quadratic: ClassVar[bool] = False  # the loss is (score - y)^2: sufficient statistics can replace passes over data

    @property
    def curvature_bound(self) -> Loss:
        """Loss whose curvature at zero scores, where runs start, bounds the step size for this loss."""
        return self

    @property
    def classification(self) -> bool:
        """True if the loss is for classification."""
        return self.is_correct is not never_correct

    def bound_kernel(self, name: str) -> Kernel:
        """Return the kernel `name` with the parameters of this loss bound to it."""
        numbers: dict[str, Any] = {key: float(number) for key, number in asdict(self).items()}
        return specialize(getattr(self, name), **numbers)

    def predict(self, scores: Array) -> Array:
        """Return the predictions [N, C] of scores [N, C]: mean responses, probabilities or, by default, the scores."""
        return LINKS[self.link](scores)

    def describe_labels(self, classes: int | None = None) -> str:
        """Return a description of the valid labels; `classes` is the number of named classes, if any."""
        return "finite numbers"

    def accepts_labels(self, y: Array, classes: int | None = None) -> Array:
        """Return True for each valid label of y [N]."""
        return np.isfinite(y)

    def outputs(self, y: Array, classes: int | None = None) -> int:
        """Return the number of scores per row."""
        return 1

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """Return additional metrics of held-out data for scores [N] and labels y [N], both float64.

        `offsets` are the row offsets of the clients, as in ClientData.
        """
        return {}


all_losses: Registry[Loss] = Registry("loss", Loss, __package__)
