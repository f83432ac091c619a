"""Sections that every report has: recorded studies, paths and sweeps over one setting, with their captions."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.figures import paths as path_figures
from fco_cli.reporting.figures import sweeps
from fco_cli.reporting.figures.curves import curves_table, draw_panels
from fco_cli.reporting.objects import Figure, Section, Table
from fco_cli.reporting.page.tables import best_table, caption, card_table
from fco_cli.reporting.records.design import is_shipped
from fco_cli.reporting.records.paths import RecordedPath
from fco_cli.reporting.records.select import EDGE, Choice, describe_spread
from fco_cli.reporting.records.studies import RecordedStudy, Results
from fco_cli.reporting.style import algorithm_style
from fco_cli.reporting.text import printable
from fco_cli.typed_files import BadRecord

if TYPE_CHECKING:
    from nibabel import Nifti1Image

CURVES = "Metrics against rounds, every algorithm at its best learning rates (in parentheses: client, server)."
LEARNING_RATES = "{rule}, for every pair of learning rates. Hatched: diverged. Framed: the chosen pair."
ON_EDGE = f" {EDGE}: the chosen pair is on the edge of its grid; rates beyond it were not tried."
SLICES = "The weights of the chosen models in axial slices, each as a share of the model's largest weight."
SWEEP = (
    "Final metrics of every algorithm at its best learning rates, for each value of {key}; the target is 90% of the "
    "way from the start to the best score."
)

Choices = dict[str, dict[str, Choice]]  # by study and algorithm


def study_sections(
    studies: list[RecordedStudy], choices: Choices, x: str, results: Results, in_row: bool = False
) -> list[Section]:
    """Return a section per study, in the order of the page."""
    return [_study_section(study, choices[study.slug], x, results, in_row) for study in sort_studies(studies)]


def _study_section(study: RecordedStudy, choices: dict[str, Choice], x: str, results: Results, in_row: bool) -> Section:
    section = Section(
        study.slug,
        study.heading,
        menu=study.title.split(":")[0] + study.heading.removeprefix(study.title),
        number=study.paper,
        command=command(study),
        warning=study.note,
        study=study,
        tables=[Table(best_table(study, choices), study.slug, caption(study, choices), ("md", "csv", "tex"))],
    )
    edge = ON_EDGE if any(choice.on_edge for choice in choices.values()) else ""
    section.figures.append(
        Figure(
            study.slug,
            partial(draw_panels, study, choices, x, in_row),
            CURVES + sentence(describe_spread(study)) + edge,
            curves_table(study, choices),
            "curves",
            curves_number(study),
            f"{study.heading}: curves",
        )
    )
    if sweeps.has_heat_maps(choices):
        section.figures.append(
            Figure(
                f"{study.slug}_learning_rates",
                partial(sweeps.draw_heat_maps, study, choices),
                LEARNING_RATES.format(rule=capitalized(str(study.rule))) + edge,
                sweeps.rates_table(choices),
                "learning_rates",
                alt=f"{study.heading}: learning rates",
            )
        )
    _add_brains(section, study, read_brains(choices, results.damaged))
    return section


def sentence(text: str) -> str:
    """Return a text as a sentence that follows another one; empty for an empty text."""
    return f" {capitalized(text)}." if text else ""


def capitalized(text: str) -> str:
    """Return the text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


def figure_numbers(study: RecordedStudy) -> list[str]:
    """Return the numbers of the publication's figures that an experiment belongs to."""
    return [f"Figure {number}" for number in re.findall(r"\d+", study.paper)]


def curves_number(study: RecordedStudy) -> str:
    """Return the number of a study's curves in the publication: the second one if there are several."""
    numbers = figure_numbers(study)
    return numbers[1] if len(numbers) > 1 else study.paper


def place_twin_curves(sections: list[Section], results: Results) -> None:
    """Move the curves of every twin behind those of its original."""
    for section in sections:
        twin = section.study
        original = next((one for one in sections if one.study and twin and _is_twin(twin, one.study)), None)
        curves = [one for one in section.figures if one.kind == "curves"]
        if twin is None or not twin.twin_of or not results.study(twin.twin_of) or not curves:
            continue
        section.figures.remove(curves[0])
        if original:
            kinds = [one.kind for one in original.figures]
            place = len(kinds) - kinds[::-1].index("curves") if "curves" in kinds else len(kinds)
            moved = replace(curves[0], caption=f"{twin.title}. {curves[0].caption}")
            original.figures.insert(place, moved)


def _is_twin(study: RecordedStudy, original: RecordedStudy) -> bool:
    return study.twin_of == original.name and study.profile == original.profile


def sort_studies(studies: list[RecordedStudy]) -> list[RecordedStudy]:
    """Sort studies: the user's own first, then the paper's by figure number, each with its twin, then the rest."""

    def place(study: RecordedStudy) -> tuple[bool, float, int, bool]:
        original = next((one for one in studies if one.name == study.twin_of), study)
        number = re.search(r"\d+", original.paper)
        figure = float(number[0]) if number else np.inf
        return (is_shipped(original), figure, studies.index(original), bool(study.twin_of))

    return sorted(studies, key=place)


def _table(config: dict[str, Any]) -> list[str]:
    """Return the overrides that name a user's own table and its columns."""
    task = config["task"]
    return [f"task.{key}={task[key]}" for key in ("path", "client", "label") if task.get("path") and task.get(key)]


def command(study: RecordedStudy) -> str:
    """Return the command that creates a study's records, with the study's variant as a comment."""
    config: dict[str, Any] = study.runs[0].config
    overrides = [f"experiment={study.name}"] if config.get("experiment") else [f"task={study.name}", *_table(config)]
    if study.profile != "paper":
        overrides.append(f"profile={study.profile}")
    return shlex.join(["fco-run", "-m", *overrides]) + (f"  # with {study.variant}" if study.variant else "")


# Sweeps over one setting.


def sweep_sections(studies: list[RecordedStudy], choices: Choices) -> list[Section]:
    """Return a section for every setting with at least three values."""
    sections = []
    for swept in sweeps.swept_keys(studies):
        numbers = sweeps.sweep_table(swept, choices)
        draw = partial(sweeps.draw_sweep, swept, numbers)
        figure = Figure(swept.slug, draw, SWEEP.format(key=swept.key), numbers, alt=swept.heading)
        sections.append(Section(swept.slug, swept.heading, figures=[figure], menu=f"{swept.first.name} by {swept.key}"))
    return sections


# Paths.


def path_section(path: RecordedPath, is_only: bool = True) -> Section:
    """Return the section of a regularization path; its menu entry has the record's id if the task has several paths."""
    tables = {"metrics of the chosen models out of fold": path.clients.dropna(axis=1, how="all")}
    tables |= {f"weights of {choice}": model for choice, model in path.models.items()}
    card = [card_table(path.result["card"])] if path.result.get("card") else []
    return Section(
        path.slug,
        path.heading,
        printable(str(path.folder), max_length=4096),
        [
            Figure(f"{path.slug}_{kind}", draw, path_figures.caption_of(path, kind), numbers, kind)
            for kind, draw, numbers in path_figures.figures_of(path)
        ],
        tables=[Table(table, caption=heading, folded=True) for heading, table in tables.items()] + card,
        menu=f"Path: {path.result['task']}"
        + ("" if is_only else f", {path.result['regularizer']}, {path.folder.name}"),
    )


# Brains.


@dataclass
class Brains:
    """Images of an fMRI study: the chosen models' weights by label; `extra` has the mask and, if known, the truth."""

    weights: dict[str, Nifti1Image] = field(default_factory=dict)
    extra: dict[str, Nifti1Image] = field(default_factory=dict)


def read_brains(choices: dict[str, Choice], damaged: list[tuple[Path, str]]) -> Brains:
    """Read the images of the chosen runs; add unreadable records to `damaged`."""
    brains = Brains()
    shape = None
    for algo, choice in choices.items():
        folder = choice.best.runs[0].folder if choice.best else None
        if folder is None or not os.path.lexists(folder / "weights.nii.gz"):
            continue
        from fco_cli.reporting.figures.brain import read_image, read_weights

        try:
            weights = read_weights(folder)
            others = {
                name: read_image(folder / f"{name}.nii.gz")
                for name in ("mask", "truth")
                if name not in brains.extra and os.path.lexists(folder / f"{name}.nii.gz")
            }
            shape = shape or weights.shape
            if any(image.shape != shape for image in (weights, *others.values())):
                raise BadRecord("weights.nii.gz, mask.nii.gz and truth.nii.gz must have the same shape in all runs")
        except BadRecord as problem:
            damaged.append((folder, str(problem)))
        else:
            brains.weights[algorithm_style(algo).label] = weights
            brains.extra |= others
    return brains


def _add_brains(section: Section, study: RecordedStudy, brains: Brains) -> None:
    if not brains.weights:
        return
    from fco_cli.reporting.figures.brain import brain_maps, clusters, draw_slices

    section.figures.append(
        Figure(
            f"{study.slug}_brain_slices",
            partial(draw_slices, study, brains.weights, **brains.extra),
            SLICES,
            clusters(brains.weights),
            "brain_slices",
            alt=f"{study.heading}: brain slices",
        )
    )
    simulated = study.runs[0].config["task"]["name"] == "fmri_sim"
    files = brain_maps(brains.weights, simulated)
    section.files |= {f"figures/{study.slug}/{name}": content for name, content in files.items()}
