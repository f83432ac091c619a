"""What a figure shows, which figure of the paper it is, and which command makes its records."""

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
    "curves": "Metrics against rounds, every algorithm at its best learning rates (in brackets: client, server).",
    "learning_rates": "{rule}, for every pair of learning rates. Hatched: diverged. Framed: the chosen pair.",
    "robustness": (
        "{quality} against density after some rounds, a dot for every pair of learning rates whose product lies "
        "in [{low:g}, {high:g}]. Upper left is good: accurate and sparse."
    ),
    "clients": (
        "Which weights are non-zero (|w| > {threshold:g}): in truth, in the models at which the clients of the last "
        "round ended, and in the average of these."
    ),
    "side_by_side": "Where training on pooled, on one client's and on federated data ends, at the best learning rates.",
    "brain_slices": "The weights of the chosen models in axial slices, each as a share of the model's largest weight.",
}
SWEEP = "How every algorithm ends, at its best learning rates, for each value of {key}; the target is 90% of the way."
SEARCH = (
    "The share of the lasso claims that hold, by what the paper leaves open: the start, how much clients differ, an "
    "epoch's last batch (keep, drop), 1/2 in the loss, the rule that chooses learning rates, and lambda. Seed 0 "
    "searches, the others judge."
)
THEORY = "Measured (solid) and bound (dashed) along R, K, M and the step size; below the bound is as the theorem says."
# The kinds of figures that are figures of the paper; an experiment with several of them has several numbers.
NUMBERED = ("side_by_side", "curves", "robustness")


def caption(study: Study, kind: str, choices: dict[str, Choice]) -> str:
    """How to read the figure."""
    low, high = ROBUSTNESS_RANGE
    quality = next((metric for metric in QUALITIES if metric in study.runs[0].curves), "")
    words = {"rule": str(study.rule), "quality": metric_style(quality).label}
    text = KINDS[kind].format(
        **{name: _capitalized(word) for name, word in words.items()}, low=low, high=high, threshold=THRESHOLD
    )
    said = describe_spread(study)
    if said and kind in ("curves", "side_by_side"):
        text += f" {_capitalized(said)}."
    if kind == "side_by_side" and (alike := accuracy_note(choices)):
        text += f" {alike}"
    if kind in ("curves", "learning_rates") and any(choice.on_edge for choice in choices.values()):
        text += f" {EDGE}: the chosen pair lies on the edge of its grid; beyond it nothing was tried."
    return text


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(study: Study, kind: str) -> str:
    """The paper's number of the figure; empty for what is not in the paper."""
    numbers = re.findall(r"\d+", study.paper)
    if len(numbers) > 1:
        return f"Figure {numbers[NUMBERED.index(kind)]}" if kind in NUMBERED[: len(numbers)] else ""
    return study.paper if kind in ("curves", "clients") else ""


def _table(config: dict[str, Any]) -> list[str]:
    """Return the overrides that name a user's own table and its columns."""
    task = config["task"]
    return [f"task.{key}={task[key]}" for key in ("path", "client", "label") if task.get("path") and task.get(key)]


def command(study: Study) -> str:
    """Return the command for a study's records; the differences between studies of one name follow as a comment."""
    config: dict[str, Any] = study.runs[0].config
    words = [f"experiment={study.name}"] if config.get("experiment") else [f"task={study.name}", *_table(config)]
    if study.profile != "paper":
        words.append(f"profile={study.profile}")
    return shlex.join(["fco-run", "-m", *words]) + (f"  # with {study.variant}" if study.variant else "")
