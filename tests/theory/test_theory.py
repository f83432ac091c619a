"""Checks of the theorems on a small grid, including checks that must fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.theory.instance import Instance
from fco_cli.theory.measure import bind_algorithm, full_cohort, measure, tracer
from fco_cli.theory.run import check_theorems, draw
from fco_cli.theory.statements import (
    PERTURBED,
    STABILITY_2,
    STATEMENTS,
    THEOREM_0,
    THEOREM_0_FEDMID,
    THEOREM_2,
    Cell,
    Findings,
    Grid,
    cells_csv,
    check,
    check_configuration,
    summarize,
    summary_markdown,
)  # fmt: skip

GRID = Grid(
    rounds=[4, 32],
    steps=[1, 4],
    clients=[2, 8],
    rates=[0.03125, 0.25],
    seeds=4,
    dimension=6,
    noise=1.0,
    spread=1.0,
    strength=0.2,
    radius=1.0,
)


@pytest.fixture(scope="module")
def findings() -> Findings:
    return check(GRID)


def test_every_bound_holds_in_every_cell(findings):
    assert len(findings.cells) == len(STATEMENTS) * 2**4
    assert [cell for cell in findings.cells if not cell.holds] == []


def test_the_key_identity_holds_for_feddualavg_and_fails_for_fedmid(findings):
    assert findings.identity["feddualavg"].max() < 1e-13
    assert findings.identity["fedmid"].min() > 1e-4


def test_slopes_agree_with_the_bounds(findings):
    """The drift grows as eta_c^2; with little noise the gap decreases as 1/R."""
    rows = {row.statement: row for row in summarize(findings.cells, GRID)}
    measured, predicted = rows[STABILITY_2].slopes["rate"]
    assert predicted == pytest.approx(2)
    assert measured == pytest.approx(2, abs=0.1)
    measured, predicted = rows[THEOREM_0].slopes["rounds"]
    assert predicted == pytest.approx(-1, abs=0.05)
    assert measured == pytest.approx(-1, abs=0.5)


def violated(cells) -> set[str]:
    """Return the statements with a violated cell."""
    return {cell.statement for cell in cells if not cell.holds}


QUIET = replace(GRID, rounds=[150], noise=1e-6, spread=1e-6, strength=0.5, seeds=2, rates=[0.25])


def test_fedmid_violates_the_bounds_of_feddualavg():
    """Without noise and heterogeneity the bounds vanish as R grows; the gap of fedmid does not.

    This includes theorem 0, which the paper states for fedmid without proof: see the next test.
    """
    assert violated(check_configuration(QUIET, clients=2, steps=4)) == {THEOREM_0_FEDMID}
    broken = violated(check_configuration(QUIET, clients=2, steps=4, algorithm="fedmid"))
    assert broken >= {PERTURBED, THEOREM_0, THEOREM_2}


@pytest.mark.parametrize("server_lr", [1.0, 1000.0])
def test_fedmid_as_printed_applies_a_penalty_twice(server_lr):
    """Client and server steps both apply psi: without noise fedmid solves the problem with 2 psi."""
    instance = QUIET.instance(2)
    problem, rates = instance.problem(1, seed=0), np.array([0.25 / server_lr])
    algorithm = bind_algorithm("fedmid", problem, rates, np.full(1, server_lr))
    state = algorithm.initial_state(problem.initial_models(algorithm.varying.psi))
    for _ in range(600):
        state = algorithm.round(state, full_cohort(2, 1, 0)).state
    doubled = replace(instance, regularizer=L1(strength=2 * QUIET.strength))
    np.testing.assert_allclose(algorithm.output(state)[0], doubled.optimum, atol=1e-3)
    assert np.abs(doubled.optimum - instance.optimum).max() > 0.4


def test_steps_larger_than_allowed_violate_the_bounds():
    """The grid rejects eta_c = 10/L; without that validation, the stability lemma is violated."""
    with pytest.raises(UserError, match=r"theory\.rates"):
        replace(GRID, rates=[10.0])
    unstable = replace(GRID, steps=[8])
    unstable.rates = [10.0]
    with np.errstate(all="ignore"):
        assert STABILITY_2 in violated(check_configuration(unstable, clients=2, steps=8))


def test_the_whole_band_must_be_below_the_bound():
    cell = Cell("x", 1, 1, 1, 1.0, measured=1.0, error=0.2, bound=1.1)
    assert not cell.holds
    assert replace(cell, error=0.05).holds


@pytest.mark.parametrize("name", ["feddualavg", "fedmid"])
def test_trace_agrees_with_the_algorithm(name):
    """Tracing a round step by step ends in the state after a round of the algorithm."""
    instance, rates = GRID.instance(4), np.array([0.05, 0.2])
    problem = instance.problem(6, seed=0)
    algorithm = bind_algorithm(name, problem, rates, np.ones(2))
    vector = algorithm.broadcast[0].name
    state, data = algorithm.initial_state(problem.initial_models(algorithm.varying.psi)), problem.data
    for r in range(2):
        cohort, states, t = full_cohort(4, 3, 3 * r), np.empty((4, 4, 2, 6)), state.get("t", np.zeros(2))
        tracer(algorithm)(
            state[vector], t, rates, algorithm.varying.options, data.x, data.y, data.offsets, cohort.order,
            cohort.edges, cohort.first, problem.model.widths, algorithm.geometry, states,
        )  # fmt: skip
        aggregates, _ = algorithm.aggregates((states[:, -1] - state[vector])[:, None], cohort)
        expected = algorithm.server_step(state, aggregates)
        state = algorithm.round(state, cohort).state
        np.testing.assert_allclose(state[vector], expected[vector], rtol=1e-13, atol=1e-14)
        if len(algorithm.broadcast) > 1:
            assert state["t"] == pytest.approx(rates * 3 * (r + 1))


@pytest.mark.parametrize("box", [False, True])
def test_constants_of_the_instance_are_exact(box):
    """L, sigma, zeta, G, B and w* against their definitions and against samples."""
    instance = GRID.instance(8, box=box)
    problem, q = instance.problem(4000, seed=1), instance.curvature
    centers = problem.data.x[:, : len(q)].reshape(8, 4000, len(q))
    noise = q * (instance.centers[:, None] - centers)  # gradient minus mean gradient, at any w
    assert np.mean((noise**2).sum(axis=2)) == pytest.approx(instance.noise**2, rel=0.02)
    assert np.mean((noise**2 * instance.metric).sum(axis=2)) == pytest.approx(instance.sigma_dual**2, rel=0.03)
    gradients = q * (instance.center - instance.centers)
    assert instance.zeta == pytest.approx(np.sqrt((instance.metric * gradients**2).sum(axis=1)).max())
    assert instance.zeta == pytest.approx(GRID.spread)
    # w* is a fixed point of the proximal gradient step, and no nearby feasible point is better
    gradient, numbers = q * (instance.optimum - instance.center), instance.regularizer.numbers
    assert problem.kkt_residual(instance.optimum[None], gradient[None], numbers)[0] < 1e-14
    assert instance.divergence == pytest.approx(np.linalg.norm(instance.optimum) ** 2 / 2)
    if box:
        corners = np.sign(-instance.centers) * GRID.radius
        longest = np.linalg.norm(q * (corners - instance.centers), axis=1).max() + instance.noise
        assert instance.gradient_bound == pytest.approx(longest)
        assert np.linalg.norm(noise, axis=2) == pytest.approx(instance.noise)
    nearby = problem.prox(instance.optimum + 0.1 * np.random.default_rng(0).standard_normal((50, 6)),
                          np.zeros(50), np.repeat(numbers, 50))  # fmt: skip
    assert (instance.gap(nearby) > 0).all()


def test_the_mean_center_does_not_depend_on_the_number_of_clients():
    few, many = GRID.instance(1), GRID.instance(8)
    np.testing.assert_allclose(few.center, many.center)
    assert few.zeta == 0
    assert isinstance(few, Instance)
    assert isinstance(few.regularizer, L1)


def test_noise_depends_on_the_seed_only():
    instance, rates = GRID.instance(2), np.array([0.25])
    first, again, other = (measure(instance, rates, 2, [4], seed) for seed in (0, 0, 1))
    assert (first.gaps == again.gaps).all()
    assert (first.gaps != other.gaps).all()


def test_figure_and_tables(findings):
    files = draw(findings, GRID)
    assert files["theory.png"].startswith(b"\x89PNG")
    assert files["theory.pdf"].startswith(b"%PDF")
    rows = summarize(findings.cells, GRID)
    assert [row.violated for row in rows] == [0] * len(STATEMENTS)
    assert len(cells_csv(findings.cells).splitlines()) == len(findings.cells) + 1
    assert summary_markdown(rows).count("\n") == len(STATEMENTS) + 2


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"rounds": []}, "theory.rounds"),
        ({"steps": [4, 2]}, "theory.steps"),
        ({"steps": [1]}, "theory.steps"),
        ({"clients": [1]}, "theory.clients"),
        ({"clients": [3]}, "theory.clients"),
        ({"rates": [0.3]}, "theory.rates"),
        ({"noise": 0.0}, "theory.noise"),
        ({"noise": np.inf}, "theory.noise"),
        ({"seeds": 99999999999}, "theory.seeds=99999999999"),
        ({"rounds": [10**12]}, "theory.rounds"),
        ({"steps": [10**12]}, "theory.steps"),
        ({"dimension": 10**9}, "theory.dimension"),
        ({"dimension": 1}, "theory.dimension"),
    ],
)
def test_invalid_grids_are_rejected(change, key):
    with pytest.raises(UserError, match=key.replace(".", r"\.")):
        replace(GRID, **change)


@pytest.mark.ci
def test_a_result_of_other_code_or_configuration_is_not_reused(tmp_path, monkeypatch, findings):
    checks = []
    monkeypatch.setattr("fco_cli.theory.run.check", lambda *given: checks.append(1) or findings)
    first = check_theorems(GRID, "a: 1", tmp_path, force=False)
    assert check_theorems(GRID, "a: 1", tmp_path, force=False) == first
    assert len(checks) == 1
    check_theorems(GRID, "a: 2", tmp_path, force=False)
    assert len(checks) == 2
    monkeypatch.setattr("fco_cli.theory.run.digest_of", lambda roots: "edited")
    check_theorems(GRID, "a: 2", tmp_path, force=False)
    assert len(checks) == 3
