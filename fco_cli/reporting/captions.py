"""Captions of figures, their numbers in the paper, and the commands that create their records."""

from __future__ import annotations

import re
import shlex
from typing import Any

from fco_cli.reporting.curse import THRESHOLD
from fco_cli.reporting.figure1 import accuracy_note
from fco_cli.reporting.figures import EDGE
from fco_cli.reporting.robustness import QUALITIES
from fco_cli.reporting.select import ROBUSTNESS_RANGE, Choice, describe_spread
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import metric_style

KINDS = {
    "curves": "Metrics against rounds, every algorithm at its best learning rates (in parentheses: client, server).",
    "learning_rates": "{rule}, for every pair of learning rates. Hatched: diverged. Framed: the chosen pair.",
    "robustness": (
        "{quality} against density after given rounds, one dot per pair of learning rates whose product is "
        "in [{low:g}, {high:g}]. The upper left is best: accurate and sparse."
    ),
    "clients": (
        "Non-zero weights (|w| > {threshold:g}) of the true model, of the clients' models at the end of the last "
        "round, and of their average."
    ),
    "side_by_side": "Final metrics of centralized, local and federated training, at the best learning rates.",
    "brain_slices": "The weights of the chosen models in axial slices, each as a share of the model's largest weight.",
}
SWEEP = (
    "Final metrics of every algorithm at its best learning rates, for each value of {key}; the target is 90% of the "
    "way from the start to the best score."
)
SEARCH = (
    "Share of the lasso claims that hold, by the settings that the paper leaves open: the start, the heterogeneity, "
    "the last batch of an epoch (keep, drop), a factor 1/2 in the loss, the selection rule of learning rates, and "
    "lambda. Settings are searched on seed 0 and judged on the other seeds."
)
THEORY = "Measured values (solid) and bounds (dashed) against R, K, M and the step size."
# Kinds of figures that are in the paper; an experiment with several of them has several numbers.
NUMBERED = ("side_by_side", "curves", "robustness")


def caption(study: Study, kind: str, choices: dict[str, Choice]) -> str:
    """Return the caption of a study's figure."""
    low, high = ROBUSTNESS_RANGE
    quality = next((metric for metric in QUALITIES if metric in study.runs[0].curves), "")
    labels = {"rule": str(study.rule), "quality": metric_style(quality).label}
    text = KINDS[kind].format(
        **{name: _capitalized(label) for name, label in labels.items()}, low=low, high=high, threshold=THRESHOLD
    )
    spread = describe_spread(study)
    if spread and kind in ("curves", "side_by_side"):
        text += f" {_capitalized(spread)}."
    if kind == "side_by_side" and (note := accuracy_note(choices)):
        text += f" {note}"
    if kind in ("curves", "learning_rates") and any(choice.on_edge for choice in choices.values()):
        text += f" {EDGE}: the chosen pair lies on the edge of its grid; rates beyond it were not tried."
    return text


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(study: Study, kind: str) -> str:
    """Return the figure's number in the paper; empty if it is not in the paper."""
    numbers = re.findall(r"\d+", study.paper)
    if len(numbers) > 1:
        return f"Figure {numbers[NUMBERED.index(kind)]}" if kind in NUMBERED[: len(numbers)] else ""
    return study.paper if kind in ("curves", "clients") else ""


def _table(config: dict[str, Any]) -> list[str]:
    """Return the overrides that name a user's own table and its columns."""
    task = config["task"]
    return [f"task.{key}={task[key]}" for key in ("path", "client", "label") if task.get("path") and task.get(key)]


def command(study: Study) -> str:
    """Return the command that creates a study's records, with the study's variant as a comment."""
    config: dict[str, Any] = study.runs[0].config
    overrides = [f"experiment={study.name}"] if config.get("experiment") else [f"task={study.name}", *_table(config)]
    if study.profile != "paper":
        overrides.append(f"profile={study.profile}")
    return shlex.join(["fco-run", "-m", *overrides]) + (f"  # with {study.variant}" if study.variant else "")
