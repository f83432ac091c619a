"""Links between scores and predictions, by the names that files with models store."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fco_cli.problem.layout import Array

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
