"""Metrics and losses of models of several fits on held-out rows at sites, each requested in one message."""

from __future__ import annotations

from collections.abc import Sequence

from fco_cli.federation.coordinator.remote_rows import Question, SiteRows, evaluate_together, request_evaluations
from fco_cli.federation.coordinator.responses import SiteMetrics
from fco_cli.problem.layout import Array


def metrics_together(questions: Sequence[tuple[SiteRows, Array]]) -> list[list[SiteMetrics]]:
    """Return the metrics of models [J, P] at every site for several fits, requested in one message.

    Models of the last evaluation are not requested again if it has all arrays.
    """
    known = [None if rows.is_masked else rows.known(w, spread=True) for rows, w in questions]
    if all(one is not None for one in known):
        answers = [one for one in known if one is not None]
    else:
        weighted = [Question(rows, w, rows.sizes / rows.sizes.sum()) for rows, w in questions]
        answers = [
            (one, question.weights)
            for one, question in zip(request_evaluations(weighted, spread=True), weighted, strict=True)
        ]
    return [rows.site_metrics(*answer) for (rows, _), answer in zip(questions, answers, strict=True)]


def held_out_losses(questions: Sequence[tuple[SiteRows, Array, str]]) -> list[Array]:
    """Return the losses [J] of models on the held-out rows of several fits, requested in one message.

    A question is about rows, models and the weighting of the sites. Numbers for metrics are requested as well if they
    are few. Losses that are not sums over rows are differences (`problem/held_out.py`).
    """
    first = questions[0][0]
    differences = first.loss.client_loss is not None and first.is_exact
    few = first.loss.client_loss is None and (first.metric_sums is None or not first.metric_sums.histogram)
    weighted = [Question(rows, w, rows.weights(weighting)) for rows, w, weighting in questions]
    return [one.value for one in evaluate_together(weighted, sums=few, spread=few, differences=differences)]
