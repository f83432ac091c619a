"""Outer products of gradients at a site: the numbers, the budget and the refusals."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.federation.policy import preset
from tests.federation.site.conftest import refusal

SCORES = {"clients": True, "exponent": 3}


def ready(attacker):
    attacker.apply(attacker.prepare())
    return attacker


def test_products(attack, rows):
    """Rows: sum of u u' over rows; clients: the product of their sum; both times the squared weight and 2^3."""
    attacker, (x, y) = ready(attack(preset("research"))), rows
    w, before = np.array([[0.3, -0.2, 0.1, 0.4]]), attacker.site.disclosure.ledger.read().numbers
    answer = attacker.hessian(w, weights={"north": 0.5, "south": 0.5}, scores=SCORES)
    a = np.column_stack([x, np.ones(len(x))])
    u = 0.5 / len(y) * (1 / (1 + np.exp(-a @ w[0])) - y)[:, None] * a
    upper = np.triu_indices(4)
    np.testing.assert_allclose(answer.arrays["rows"][0], 8 * (u.T @ u)[upper], rtol=1e-12)
    np.testing.assert_allclose(answer.arrays["clients"][0], 8 * np.outer(u.sum(0), u.sum(0))[upper], rtol=1e-12)
    assert attacker.site.disclosure.ledger.read().numbers - before == 1 + 4 + 3 * 10


def test_residuals_of_few_rows(attack, rows, tmp_path):
    """All rows have the same curvature, and six of them have almost all of the squared residuals."""
    labels = (np.arange(60) % 10 == 0).astype(float)
    np.savez(tmp_path / "rare.npz", x=rows[0], y=labels, client=np.full(60, "north"))
    attacker, w = ready(attack(data=tmp_path / "rare.npz")), np.array([[0.0, 0.0, 0.0, -6.0]])
    assert attacker.hessian(w).kind == "hessian"
    reason = refusal(attacker.hessian(w, scores=SCORES))
    limit = "the site's policy allows 10 or more (site.yaml: min_rows)"
    assert reason == f"robust errors from the residuals of few rows requested; {limit}; set glm.robust=false"
    assert attacker.site.disclosure.ledger.read().steep_models == 1
    assert attacker.hessian(0 * w, scores=SCORES).kind == "hessian"


def test_estimates_of_one_site(attack):
    attacker = ready(attack())
    reason = refusal(attacker.hessian(weights={"north": 1.0}))
    assert reason.startswith("estimates from this site's rows alone requested; the site's policy does not allow them")
    assert attacker.hessian(weights={"north": 0.5, "south": 0.5}).kind == "hessian"
    shared = ready(attack(preset("strict", share_estimates=True)))
    assert shared.hessian(weights={"north": 1.0}).kind == "hessian"


@pytest.mark.parametrize("changes", [{"hessians": 0}, {"scores": {"clients": True, "exponent": 63}}, {"scores": {}}])
def test_wrong_requests(attack, changes):
    assert "scores" in refusal(ready(attack()).hessian(**{"scores": SCORES} | changes))
