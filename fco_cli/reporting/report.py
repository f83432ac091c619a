"""Assembly of a report: figures and tables of all studies, the claims ledger and the HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.reporting import (
    claims,
    figures,
    hidden_settings,
    leaderboard,
    path_figures,
    rates,
    robustness,
    sweeps,
    tables,
)
from fco_cli.reporting.claims import Entry
from fco_cli.reporting.curse import draw_curse, supports_of, supports_table
from fco_cli.reporting.figure1 import draw_side_by_side, side_by_side
from fco_cli.reporting.html import render
from fco_cli.reporting.paths import RecordedPath
from fco_cli.reporting.select import Choice, choose
from fco_cli.reporting.studies import Results, Study
from fco_cli.reporting.style import algorithm_style
from fco_cli.reporting.text import as_csv
from fco_cli.typed_files import BadRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from nibabel import Nifti1Image
    from pandas import DataFrame

FigureWithNumbers = tuple[str, "Figure", "DataFrame"]  # kind, figure, plotted numbers


@dataclass(frozen=True)
class SavedFigure:
    """A saved figure (PNG, with .pdf and .csv of the same name) or interactive HTML page."""

    study: Study
    kind: str
    file: Path


@dataclass
class Report:
    """Contents of a written report."""

    folder: Path
    choices: dict[str, dict[str, Choice]]  # by study and algorithm
    figures: list[SavedFigure] = field(default_factory=list)
    swept: list[tuple[sweeps.SweptKey, Path]] = field(default_factory=list)
    leaderboard: leaderboard.Leaderboard | None = None
    paths: list[tuple[RecordedPath, dict[str, Path]]] = field(default_factory=list)  # with figures by kind
    search: Path | None = None  # the map of experiment=hidden_settings
    skipped: list[tuple[Study, str]] = field(default_factory=list)  # figures not drawn, with the reason
    ledger: list[Entry] = field(default_factory=list)  # empty if no record is relevant to a claim
    damaged: list[tuple[Path, str]] = field(default_factory=list)  # readable records with files that cannot be drawn

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


def make_report(results: Results, folder: Path, x: str = "rounds", with_claims: bool = False) -> Report:
    """Write the report of all studies to a folder.

    The claims ledger is included if `with_claims` is set or if any record is relevant to a claim.
    """
    for part in (folder, folder / "figures", folder / "tables"):
        try:
            part.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"--output: {part} cannot be created: {problem.strerror}") from problem
    report = Report(folder, {study.slug: choose(study) for study in results.studies})
    for study in results.studies:
        brains = _brains(report.choices[study.slug], report.damaged)
        for kind, figure, numbers in _figures(study, x, report, brains):
            name = study.slug if kind == "curves" else f"{study.slug}_{kind}"
            report.figures.append(SavedFigure(study, kind, _save(figure, numbers, folder / "figures" / name)))
        report.figures += _brain_pages(study, brains, folder / "figures" / study.slug)
        tables.save_tables(study, report.choices[study.slug], folder / "tables")
    for swept in sweeps.swept_keys(results.studies):
        numbers = sweeps.sweep_table(swept, report.choices)
        file = _save(sweeps.draw_sweep(swept, numbers), numbers, folder / "figures" / swept.slug)
        report.swept.append((swept, file))
    report.paths = [(path, path_figures.save_figures(path, folder / "figures")) for path in results.paths]
    report.leaderboard = leaderboard.save(results.leaderboard, folder)
    report.search = hidden_settings.save_search(results.search, folder)
    ledger = claims.evaluate(claims.read_claims(), results)
    if with_claims or any(entry.has_records for entry in ledger):
        report.ledger = ledger
        write_atomically(folder / "CLAIMS.md", claims.as_markdown(ledger).encode())
    write_atomically(report.page, render(results, report).encode())
    return report


def _save(figure: Figure, numbers: DataFrame, path: Path) -> Path:
    png, _ = figures.save(figure, path)
    write_atomically(path.with_name(path.name + ".csv"), as_csv(numbers).encode())
    return png


@dataclass
class Brains:
    """Images of an fMRI study: the chosen models' weights by label; `extra` has the mask and, if known, the truth."""

    weights: dict[str, Nifti1Image] = field(default_factory=dict)
    extra: dict[str, Nifti1Image] = field(default_factory=dict)


def _figures(study: Study, x: str, report: Report, brains: Brains) -> Iterator[FigureWithNumbers]:
    choices = report.choices[study.slug]
    if supports := supports_of(choices, report.damaged):  # such a study has few rounds: no curves
        yield "clients", draw_curse(study, supports), supports_table(supports)
        return
    if brains.weights and (compared := side_by_side(choices)) is not None:
        yield "side_by_side", draw_side_by_side(study, compared), compared
    yield "curves", figures.draw_panels(study, choices, x), figures.curves_table(study, choices)
    if (maps := rates.draw_heat_maps(study, choices)) is not None:
        yield "learning_rates", maps, rates.rates_table(choices)
    if (points := robustness.robustness_points(study, choices)) is not None:
        if sentence := robustness.reason_not_drawn(points):
            report.skipped.append((study, sentence))
        else:
            yield "robustness", robustness.draw_robustness(study, points), points.table
    if brains.weights:
        from fco_cli.reporting.brain import clusters, draw_slices

        yield "brain_slices", draw_slices(study, brains.weights, **brains.extra), clusters(brains.weights)


def _brains(choices: dict[str, Choice], damaged: list[tuple[Path, str]]) -> Brains:
    brains = Brains()
    shape = None
    for algo, choice in choices.items():
        folder = choice.best.runs[0].folder if choice.best else None
        if folder is None or not os.path.lexists(folder / "weights.nii.gz"):
            continue
        from fco_cli.reporting.brain import read_image, read_weights

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


def _brain_pages(study: Study, brains: Brains, folder: Path) -> list[SavedFigure]:
    if not brains.weights:
        return []
    from fco_cli.reporting.brain import brain_maps

    simulated = study.runs[0].config["task"]["name"] == "fmri_sim"
    pages = brain_maps(brains.weights, folder, simulated)
    return [SavedFigure(study, path.stem, path) for path in pages if path.suffix == ".html"]
