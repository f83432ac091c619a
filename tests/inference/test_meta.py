"""Meta-analysis, compared with published values and with statsmodels."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.inference.estimate import estimate
from fco_cli.inference.meta import meta_analysis, pool

# BCG vaccine against tuberculosis (Colditz et al., 1994): cases and healthy, vaccinated and not, in 13 trials
BCG = np.array([
    [4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761],
    [180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232], [17, 1699, 65, 1600],
    [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825],
])  # fmt: skip


def test_published_example():
    """Log risk ratios; values of R's metafor 3.8, rma(measure="RR") with method REML, DL and FE."""
    a, b, c, d = BCG.T
    values = np.log(a / (a + b)) - np.log(c / (c + d))
    pooled = pool(values, 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    assert pooled.q == pytest.approx(152.2330, abs=1e-4)
    assert (pooled.reml, pooled.reml_error) == pytest.approx((-0.7145, 0.1798), abs=5e-5)
    assert pooled.reml_tau2 == pytest.approx(0.3132, abs=5e-5)
    assert (pooled.dl, pooled.dl_error) == pytest.approx((-0.7141, 0.1787), abs=5e-5)
    assert pooled.dl_tau2 == pytest.approx(0.3088, abs=5e-5)
    assert (pooled.fixed, pooled.fixed_error) == pytest.approx((-0.4303, 0.0405), abs=5e-5)
    assert pooled.i2 == pytest.approx(1 - 12 / 152.2330, abs=1e-5)


def test_statsmodels():
    combine_effects = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects
    random = np.random.default_rng(1)
    values, variances = random.standard_normal(9), 0.1 + random.random(9)
    theirs, ours = combine_effects(values, variances, method_re="dl"), pool(values, variances)
    assert ours.dl_tau2 == pytest.approx(theirs.tau2, rel=1e-10)
    assert ours.dl == pytest.approx(theirs.mean_effect_re, rel=1e-10)
    assert ours.fixed == pytest.approx(theirs.mean_effect_fe, rel=1e-10)
    assert ours.q == pytest.approx(theirs.q, rel=1e-10)


def test_restricted_likelihood_is_maximal():
    random = np.random.default_rng(2)
    values, variances = 2 * random.standard_normal(7), 0.1 + random.random(7)

    def restricted(tau2: float) -> float:
        weights = 1 / (variances + tau2)
        mean = weights @ values / weights.sum()
        return float((np.log(weights).sum() - np.log(weights.sum()) - weights @ (values - mean) ** 2) / 2)

    best = pool(values, variances).reml_tau2
    assert best > 0
    assert all(restricted(best) >= restricted(best * factor) for factor in (0.99, 0.999, 1.001, 1.01))


def test_equal_estimates_have_no_heterogeneity():
    pooled = pool(np.ones(4), np.array([1.0, 2, 3, 4]))
    assert (pooled.i2, pooled.dl_tau2, pooled.reml_tau2) == (0, 0, 0)
    assert pooled.reml == pytest.approx(pooled.fixed) == pytest.approx(1)


def test_clients_with_and_without_a_fit(problem_of):
    problem = problem_of("logistic", rows=180)
    problem.data.y[:30] = 0  # the first client has no events
    federated = estimate(problem)
    meta = meta_analysis(problem, federated, 0.95)
    assert meta.clients == ["b", "c", "d"]
    assert "no maximum" in meta.without["a"]
    assert [line["count"] for line in meta.pooled_lines()] == [3] * 4
    low, high = meta.pooled[1].prediction_low, meta.pooled[1].prediction_high
    assert low < meta.pooled[1].reml < high
    assert np.abs(meta.pooled[1].fixed - federated.coefficients[1]) < 3 * meta.pooled[1].fixed_error
