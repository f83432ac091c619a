from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.path.curve import Curve


def test_mean_and_error_are_weighted_by_the_folds():
    losses, weights = np.array([[1.0, 4.0], [2.0, 0.0], [6.0, 1.0]]), np.array([1.0, 2.0, 1.0])
    curve = Curve.of(losses, weights)
    for j in range(2):
        mean = np.average(losses[:, j], weights=weights)
        np.testing.assert_allclose(curve.mean[j], mean)
        spread = np.average((losses[:, j] - mean) ** 2, weights=weights)
        np.testing.assert_allclose(curve.error[j], np.sqrt(spread / 2))
    equal = Curve.of(losses, np.ones(3))
    np.testing.assert_allclose(equal.error, losses.std(axis=0, ddof=1) / np.sqrt(3))


def test_min_is_the_smallest_and_1se_the_simplest_within_an_error_of_it():
    curve = Curve(np.array([9.0, 5.2, 4.6, 4.0, 4.0, 4.5]), np.array([9.0, 9.0, 9.0, 0.7, 3.0, 0.1]))
    assert curve.chosen == {"min": 3, "1se": 2}
    flat = Curve(np.ones(4), np.zeros(4))
    assert flat.chosen == {"min": 0, "1se": 0}


def test_models_without_a_finite_loss_are_never_chosen():
    assert Curve(np.array([2.0, np.inf, np.nan]), np.zeros(3)).best == 0
    with pytest.raises(UserError, match=r"^path: no model has a finite loss"):
        _ = Curve(np.full(3, np.nan), np.zeros(3)).best


def test_a_loss_that_has_overflowed_in_one_fold_only():
    curve = Curve.of(np.array([[1.0, np.inf, 3.0], [1.0, 1.0, 1.0]]), np.ones(2))
    assert curve.chosen == {"min": 0, "1se": 0}
