"""Tests of servers with momentum."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError

PAIRS = [("fedavgm", "fedavg"), ("fedmid_osp_m", "fedmid_osp"), ("feddualavg_m", "feddualavg")]


@pytest.mark.parametrize(("name", "parent"), PAIRS)
@pytest.mark.parametrize("psi", ["l1", "l2_ball"])
def test_momentum_0_is_the_base_method_bit_for_bit(
    name, parent, psi, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive
):
    problem = make_problem(regularizer(psi, strength=0.3, radius=0.3))
    cohorts = cohorts_of(problem, make_hparams(), 5)
    models = [
        drive(make_algorithm(name, problem, 0.05, 0.7, momentum=0.0), cohorts)[0],
        drive(make_algorithm(parent, problem, 0.05, 0.7), cohorts)[0],
    ]
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize(("name", "parent"), PAIRS[1:])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_sums_by_hand(
    name, parent, normalize, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive
):
    """v and k are the sums of momentum^(r - s) Delta_s and momentum^(r - s) K_s over the rounds s."""
    problem = make_problem(regularizer("l1", strength=0.3))
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2, normalize_steps=normalize), 3)
    heavy, plain = make_algorithm(name, problem, 0.05, 0.7, momentum=0.5), make_algorithm(parent, problem, 0.05, 0.7)
    state, v, steps, t = heavy.initial_state(np.zeros((1, problem.layout.size))), 0.0, 0.0, 0.0
    for cohort in cohorts:
        own = {array.name: state[array.name] for array in plain.broadcast}
        aggregates, _ = plain.aggregates(plain.round(own, cohort).messages, cohort)
        v, steps = 0.5 * v + aggregates.mean[plain.sent[0].name], 0.5 * steps + aggregates.steps
        before, state = state, heavy.round(state, cohort).state
        np.testing.assert_allclose(state["v"], v, rtol=1e-13)
        np.testing.assert_allclose(state["steps"], steps, rtol=1e-13)
        if parent == "feddualavg":
            t += 0.7 * 0.05 * steps
            np.testing.assert_allclose(state["t"], t, rtol=1e-13)
            np.testing.assert_allclose(state["z"], before["z"] + 0.7 * v, rtol=1e-13)
        else:
            z, threshold = before["w"] + 0.7 * v, 0.3 * 0.7 * 0.05 * steps[:, None]
            soft = np.sign(z) * np.maximum(np.abs(z) - threshold, 0)
            np.testing.assert_allclose(state["w"][:, :-1], soft[:, :-1], rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(state["w"][:, -1], z[:, -1], rtol=1e-13)


@pytest.mark.parametrize(("name", "parent"), PAIRS[1:])
def test_the_fixed_point_is_the_one_without_momentum(
    name, parent, make_problem, make_algorithm, regularizer, whole_steps, drive
):
    """Both run until convergence. With K in place of k the weight of psi would be halved here."""
    problem = make_problem(regularizer("l1", strength=0.4), sizes=(7, 8, 9), features=3)
    cohorts = [whole_steps(problem, [2, 1, 3])] * 250
    plain = drive(make_algorithm(parent, problem, 0.1), cohorts)[0]
    heavy = drive(make_algorithm(name, problem, 0.1, 0.5, momentum=0.5), cohorts)[0]
    lighter = make_problem(regularizer("l1", strength=0.2), sizes=(7, 8, 9), features=3)
    other = drive(make_algorithm(parent, lighter, 0.1), cohorts)[0]
    np.testing.assert_allclose(heavy[-1], plain[-1], rtol=0, atol=1e-9)
    assert np.abs(other[-1] - plain[-1]).max() > 1e-2
    assert np.abs(heavy[3] - plain[3]).max() > 1e-3  # the iterates differ


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_out_of_range(momentum, make_problem, make_algorithm):
    with pytest.raises(UserError, match=rf"^algo\.momentum: got {momentum}, must be at least 0, below 1$"):
        make_algorithm("feddualavg_m", make_problem(), momentum=momentum)
