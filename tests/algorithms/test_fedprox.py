"""Tests of FedProx and of its effective number of steps."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import all_mirrors
from fco_cli.problem.problem import TaskData


@pytest.mark.parametrize("mirror", all_mirrors())
def test_strength_0_is_fedmid_osp(mirror, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive):
    """Bit for bit, with every mirror map."""
    plain = make_problem(regularizer("l1", strength=0.1))
    h = all_mirrors()[mirror](power=1.5) if mirror == "p_norm" else all_mirrors()[mirror]()
    problem = TaskData(plain.data, plain.model, plain.loss).to_problem(plain.regularizer, h)
    cohorts, start = cohorts_of(problem, make_hparams(), 5), problem.initial_models(problem.regularizer.numbers)
    models = [
        drive(algorithm, cohorts, algorithm.initial_state(start))[0]
        for algorithm in (
            make_algorithm("fedprox", problem, 0.01, 0.7, strength=0.0),
            make_algorithm("fedmid_osp", problem, 0.01, 0.7),
            make_algorithm("fedprox", problem, 0.01, 0.7, strength=5.0),
        )
    ]
    np.testing.assert_array_equal(models[0], models[1])
    assert np.isfinite(models[2]).all()
    assert np.abs(models[2][-1] - models[1][-1]).max() > 1e-4


@pytest.mark.parametrize("normalize", [True, False])
def test_against_plain_loops(normalize, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive):
    """Effective numbers of steps are computed as explicit sums."""
    problem = make_problem(regularizer("l1", strength=0.3), sizes=(7, 4, 9))
    hparams = make_hparams(clients_per_round=2, normalize_steps=normalize)
    data, eta_c, eta_s, strength = problem.data, 0.05, 0.7, 3.0
    cohorts, keep = cohorts_of(problem, hparams, 4), 1 - eta_c * strength
    models = drive(make_algorithm("fedprox", problem, eta_c, eta_s, strength=strength), cohorts)[0]
    w = np.zeros(problem.layout.size)
    for cohort, model in zip(cohorts, models, strict=True):
        changes, held = [], []
        for i, m in enumerate(cohort.clients):
            y = w.copy()
            for k in range(cohort.first[i], cohort.first[i + 1]):
                rows = data.offsets[m] + cohort.order[cohort.edges[k] : cohort.edges[k + 1]]
                slopes = 2 * (data.x[rows] @ y[:-1] + y[-1] - data.y[rows]) / len(rows)
                y = y - eta_c * (np.append(data.x[rows].T @ slopes, slopes.sum()) + strength * (y - w))
            changes.append(y - w)
            held.append(sum(keep**k for k in range(cohort.steps[i])))
        delta, time = np.mean(changes, axis=0), np.mean(held)
        if normalize:
            time = (1 - keep**cohort.mean_steps) / (1 - keep)
            delta = time * np.mean(np.array(changes) / np.array(held)[:, None], axis=0)
        z, threshold = w + eta_s * delta, 0.3 * eta_s * eta_c * time
        w = np.append(np.sign(z[:-1]) * np.maximum(np.abs(z[:-1]) - threshold, 0), z[-1])
        np.testing.assert_allclose(model[0], w, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("psi", ["l1", "l2_squared"])
def test_effective_steps_keep_the_bias_small(psi, make_problem, make_algorithm, regularizer, whole_steps, drive):
    """For any strength and K_m. With K in place of the effective steps psi would have too much weight."""
    problem = make_problem(regularizer(psi, strength=0.4), sizes=(7, 8, 9), features=3)
    cohorts = [whole_steps(problem, [6, 1, 3])] * 100
    solver = make_algorithm("optimum", problem)
    optimum = solver.output(solver.round(solver.initial_state(np.zeros((1, problem.layout.size)))).state)

    def error(strength, effective_steps=None):
        algorithm = make_algorithm("fedprox", problem, 0.02, 3.0, strength=strength)
        algorithm.effective_steps = effective_steps or algorithm.effective_steps
        return np.abs(drive(algorithm, cohorts)[0][-1] - optimum).max()

    errors = [error(0.0), error(40.0)]
    assert max(errors) < 0.05
    assert error(40.0, lambda steps: steps[:, None].astype(float)) > 3 * max(errors)


def test_effective_steps_by_their_sum(make_problem, make_algorithm):
    """sum_{k<K} (1 - eta_c strength)^k for every job and K; 1 if eta_c strength = 1."""
    algorithm = make_algorithm("fedprox", make_problem(), [0.1, 0.1, 0.5], strength=2.0)
    found = algorithm.effective_steps(np.array([1, 2, 5]))
    expected = [[sum((1 - share) ** k for k in range(n)) for share in (0.2, 0.2, 1.0)] for n in (1, 2, 5)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    tiny = make_algorithm("fedprox", make_problem(), 0.1, strength=1e-12)
    np.testing.assert_allclose(tiny.effective_steps(np.array([100])), [[100]], rtol=1e-9)  # no cancellation


def test_bad_strengths(make_problem, make_algorithm):
    with pytest.raises(UserError, match=r"^algo\.strength: got -1, must be a number >= 0$"):
        make_algorithm("fedprox", make_problem(), strength=-1)
    with pytest.raises(UserError, match=r"^algo\.strength: got 30\.0, must be at most 1 / hparams\.client_lr = 20: "):
        make_algorithm("fedprox", make_problem(), [0.01, 0.05], strength=30.0)
