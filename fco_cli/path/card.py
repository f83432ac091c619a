"""Model card of a path: how the model was selected, how it performs out of fold, and what was not done."""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.config import PathRun
from fco_cli.data.fitted import LinearModel
from fco_cli.data.format import format_list
from fco_cli.model_card import Line, card_lines
from fco_cli.path.select import Selection, number_of_events
from fco_cli.problem.losses.survival import Cox
from fco_cli.tasks.tabular import Tabular

OUT_OF_FOLD = "out of fold"
RULES = {
    "min": "smallest cross-validated loss",
    "1se": "simplest model within one standard error of the smallest cross-validated loss",
}
SPLITS = {"rows": "rows of every client", "clients": "whole clients", "each_client": "one client at a time"}


def path_card(run: PathRun, selection: Selection, result: dict[str, Any]) -> list[Line]:
    """Return the lines of the card of the selected models."""
    description, path = selection.data.description, run.path
    preparation = description.preparation if isinstance(description, LinearModel) else None
    columns = run.task.columns if isinstance(run.task, Tabular) else None
    parameters = int(np.count_nonzero(selection.problem.layout.regularized))
    values = selection.values
    method = [
        ("penalty", f"{run.regularizer.name}; {result['dial']} selected from {len(values)} values, "
                    f"{max(values):.4g} to {min(values):.4g}"),
        ("tuning", f"{result['folds']}-fold cross-validation by {SPLITS.get(path.by, path.by)}; every fold has its own "
                   "preparation"),
        ("optimization", f"{result['method']}: {result['reason']}"),
    ]  # fmt: skip
    for rule, chosen in result["chosen"].items():
        size = f"{chosen['nonzeros']} weights" if chosen.get("rank") is None else f"rank {chosen['rank']}"
        values_text = f"{result['dial']} {chosen[result['dial']]:.4g}, {size}; {RULES[rule]}"
        method.append((f"model {rule}", values_text))
    if result["stability"] is not None:
        names, stable = selection.data.features, result["stability"]["stable"]
        known = [names[k] if names else f"feature {k + 1}" for k in stable]
        method.append(("stable features", format_list(known, 50) if known else "none"))
    lines = [
        {**line, "how": f"model {line['choice']}, {OUT_OF_FOLD}"} for rule in RULES for line in selection.clients
        if line["choice"] == rule
    ]  # fmt: skip
    not_done = []
    tests = [rule for rule, chosen in result["chosen"].items() if chosen["test"]]
    for rule in tests:
        texts = [f"{name} {value:.3g}" for name, value in result["chosen"][rule]["test"].items() if value is not None]
        method.append((f"test rows, model {rule}", ", ".join(texts)))
    if not tests:
        not_done.append("Validation on test rows or new data: performance is that of held-out folds (task.test).")
    if path.by == "rows" and result["clients"] > 1:
        not_done.append("Performance at new clients: folds hold out rows of the same clients (path.by=clients).")
    if result["stability"] is None:
        not_done.append("Stability of the selection: no subsamples were drawn (path.subsamples).")
    not_done.append(
        "Standard errors, intervals or p-values of the weights: the same rows selected them (experiment=glm "
        "regularizer=l1 debiases them)."
    )
    if isinstance(selection.data.loss, Cox):
        not_done.append("Absolute risks: a Cox model without its baseline hazard ranks rows only (experiment=glm).")
    events = number_of_events(selection.data.training) if selection.data.loss.censored_labels else None
    return card_lines(run.resolved, result, columns, preparation, lines, parameters, method, not_done, events)
