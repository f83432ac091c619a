"""Metrics from sums over sites equal those of the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.federation.metrics import SUMS
from fco_cli.problem.losses import all_losses


@pytest.mark.parametrize("name", sorted(all_losses()))
def test_metrics_of_sums_are_those_of_the_rows(name):
    loss = all_losses()[name]()
    random = np.random.default_rng(0)
    sizes = (40, 7, 90)
    scores = random.normal(size=(2, sum(sizes)))
    labels = {
        "logistic": lambda: scores[0] + random.normal(size=sum(sizes)) > 0,
        "poisson": lambda: random.poisson(2, sum(sizes)),
        "cox": lambda: random.exponential(size=sum(sizes)) * random.choice([-1, 1], sum(sizes)),
    }
    y = np.asarray(labels.get(name, lambda: 1e4 + random.normal(size=sum(sizes)))(), dtype=float)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    pooled = [loss.metrics(job, y, offsets) for job in scores]
    assert (type(loss) in SUMS) == bool(pooled[0]), f"{name}: sums for its metrics"
    if not pooled[0]:
        return
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    sums = np.stack([SUMS[type(loss)].of_rows(scores[:, part], y[part]) for part in parts])
    assert sums.shape == (3, 2, SUMS[type(loss)].width)
    assert all(SUMS[type(loss)].is_valid(own, rows).all() for own, rows in zip(sums, sizes, strict=True))
    assert not any(SUMS[type(loss)].is_valid(-1 - own, rows).any() for own, rows in zip(sums, sizes, strict=True))
    metrics = SUMS[type(loss)].metrics(sums, np.array(sizes))
    for metric, values in metrics.items():
        limit = 2e-3 if metric == "auc" else 1e-9  # bins make ties
        np.testing.assert_allclose(values, [job[metric] for job in pooled], rtol=limit, err_msg=metric)
