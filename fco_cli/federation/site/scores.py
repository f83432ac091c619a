"""Sums of outer products of gradients on a site's rows, and the rules about them."""

from __future__ import annotations

import numpy as np

from fco_cli.federation.message import Arrays
from fco_cli.federation.policy import POLICY_FILE, Refusal
from fco_cli.federation.schema import CurvedModels, Scores
from fco_cli.federation.site.cells import effective_number
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Model
from fco_cli.problem.risk import scores_of
from fco_cli.problem.score_products import score_products_of


def check_alone(models: CurvedModels, name: str, sites: int, disclosure: Disclosure) -> None:
    """Raise Refusal for estimates from this site's rows alone, if several sites have rows and the policy forbids it."""
    is_alone = models.weights is not None and models.weights.keys() == {name}
    if is_alone and sites > 1 and not disclosure.policy.share_estimates:
        raise Refusal(
            f"estimates from this site's rows alone requested; the site's policy does not allow them ({POLICY_FILE}: "
            "share_estimates); set glm.meta=false"
        )


def check_scores(
    scores: Scores, loss: Loss, model: Model, data: ClientData, w: Array, disclosure: Disclosure, is_masked: bool
) -> None:
    """Raise Refusal if products of gradients would disclose few rows, or this site's own gradient in a masked sum.

    The sum over few sites of products of their gradients determines these up to a rotation. A sum over rows weights a
    row by its squared residual; fewer than min_rows effective rows (half of the rows of a small part) are refused, and
    counted like steep models.
    """
    policy = disclosure.policy
    if scores.clients and is_masked and not policy.share_estimates:
        raise Refusal(
            "products of this site's gradient in a masked sum requested; the site's policy does not allow them "
            f"({POLICY_FILE}: share_estimates); use another glm.covariance than cluster"
        )
    if not policy.refuse_differences:
        return
    rows = np.arange(len(data.y))
    with np.errstate(all="ignore"):
        slopes = scores_of(model, data, w)
        row_loop(data, model, loss)(slopes, data.targets, rows, None, True)
        effective = effective_number((slopes.astype(float) ** 2).sum(axis=1))
    if (few := ~(effective >= min(policy.min_rows, len(rows) / 2))).any():
        disclosure.ledger.charge({"steep_models": (None, "")}, {"steep_models": int(few.sum())})
        limit = f"the site's policy allows {policy.min_rows} or more ({POLICY_FILE}: min_rows)"
        raise Refusal(f"robust errors from the residuals of few rows requested; {limit}; set glm.robust=false")


def score_arrays(
    scores: Scores, loss: Loss, model: Model, data: ClientData, weight: float, w: Array, columns: Array | None
) -> Arrays:
    """Return the packed sums `rows` [1, A (A + 1) / 2] and, if requested, `clients`, at one model w [P]."""
    products = score_products_of(data, np.array([weight]), model, loss, w, columns)
    return products.to_arrays(scores.exponent, scores.clients)
