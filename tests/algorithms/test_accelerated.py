from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import all_mirrors
from fco_cli.simulation.smoothness import automatic_rate_of_mean

SIZES = (7, 4, 9)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize(("loss", "psi"), [("squared", "l1"), ("logistic", "l1_ball"), ("squared", "group_lasso")])
def test_fista_converges_to_the_optimum_for_unequal_clients(
    make_problem, regularizer, make_algorithm, make_hparams, cohorts_of, drive, optimum_of, weighting, loss, psi
):
    """With client_lr=auto; the batch size has no effect, because clients take full gradients."""
    chosen = regularizer(psi, strength=0.1, group_size=3)
    problem = make_problem(chosen, loss, sizes=SIZES, weighting=weighting)
    algorithm = make_algorithm("fista", problem, automatic_rate_of_mean(problem, 0))
    ends = []
    for batch in (2, 100):
        hparams = make_hparams(clients_per_round="all", batch_size=batch, weighting=weighting)
        ends.append(drive(algorithm, cohorts_of(problem, hparams, 300))[0][-1][0])
    np.testing.assert_array_equal(*ends)
    np.testing.assert_allclose(ends[0], optimum_of(problem), atol=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_automatic_rate_is_that_of_the_mean_loss(make_problem, loss):
    problem = make_problem(loss=loss, weighting="examples")
    x = np.column_stack([problem.data.x, np.ones(len(problem.data.y))])
    curvature = np.linalg.eigvalsh(x.T @ x / len(x))[-1] * {"squared": 2, "logistic": 0.25}[loss]
    assert 0.9 / curvature < automatic_rate_of_mean(problem, 0) < 1 / curvature


def test_fista_requires_full_participation_and_the_euclidean_map(make_problem, regularizer, make_algorithm):
    problem = make_problem(regularizer("l1"))
    with pytest.raises(UserError, match=r"^hparams.clients_per_round: got 2, must be all 3 clients"):
        make_algorithm("fista", problem).check_participation(2, 3)
    with pytest.raises(UserError, match=r"^mirror: got 'entropy', must be euclidean"):
        make_algorithm("fista", problem).check_pair(problem.regularizer, all_mirrors()["entropy"]())
