"""A whole report: every figure and table of the studies, the ledger, and the page that holds them all."""

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

Made = tuple[str, "Figure", "DataFrame"]  # the kind of figure, the figure, and its numbers


@dataclass(frozen=True)
class Drawn:
    """A figure on disk, as PNG, with .pdf and .csv beside it; or a page to explore."""

    study: Study
    kind: str
    file: Path


@dataclass
class Report:
    """What was made."""

    folder: Path
    choices: dict[str, dict[str, Choice]]  # by study and algorithm
    figures: list[Drawn] = field(default_factory=list)
    swept: list[tuple[sweeps.SweptKey, Path]] = field(default_factory=list)
    leaderboard: leaderboard.Leaderboard | None = None
    paths: list[tuple[RecordedPath, dict[str, Path]]] = field(default_factory=list)  # with their figures by kind
    search: Path | None = None  # the map of experiment=hidden_settings
    skipped: list[tuple[Study, str]] = field(default_factory=list)  # figures that would show nothing, and why
    ledger: list[Entry] = field(default_factory=list)  # empty where no record bears on a claim
    damaged: list[tuple[Path, str]] = field(default_factory=list)  # what cannot be drawn of records that can be read

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


def make_report(results: Results, folder: Path, x: str = "rounds", with_claims: bool = False) -> Report:
    """Write the report of all studies to a folder; with the paper's claims if records bear on them, or on request."""
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
            report.figures.append(Drawn(study, kind, _save(figure, numbers, folder / "figures" / name)))
        report.figures += _pages_to_explore(study, brains, folder / "figures" / study.slug)
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
    """Of a study on brains: the chosen models' weights by their names, the mask, and the truth where there is one."""

    weights: dict[str, Nifti1Image] = field(default_factory=dict)
    extra: dict[str, Nifti1Image] = field(default_factory=dict)


def _figures(study: Study, x: str, report: Report, brains: Brains) -> Iterator[Made]:
    choices = report.choices[study.slug]
    if supports := supports_of(choices, report.damaged):  # its few rounds are not what such a study is about
        yield "clients", draw_curse(study, supports), supports_table(supports)
        return
    if brains.weights and (compared := side_by_side(choices)) is not None:
        yield "side_by_side", draw_side_by_side(study, compared), compared
    yield "curves", figures.draw_panels(study, choices, x), figures.curves_table(study, choices)
    if (maps := rates.draw_heat_maps(study, choices)) is not None:
        yield "learning_rates", maps, rates.rates_table(choices)
    if (found := robustness.standing(study, choices)) is not None:
        if sentence := robustness.why_not_drawn(found):
            report.skipped.append((study, sentence))
        else:
            yield "robustness", robustness.draw_robustness(study, found), found.dots
    if brains.weights:
        from fco_cli.reporting.brain import clusters, draw_slices

        yield "brain_slices", draw_slices(study, brains.weights, **brains.extra), clusters(brains.weights)


def _brains(choices: dict[str, Choice], damaged: list[tuple[Path, str]]) -> Brains:
    found = Brains()
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
                if name not in found.extra and os.path.lexists(folder / f"{name}.nii.gz")
            }
            shape = shape or weights.shape
            if any(image.shape != shape for image in (weights, *others.values())):
                raise BadRecord("weights.nii.gz, mask.nii.gz or truth.nii.gz: not of the same shape as the others")
        except BadRecord as problem:
            damaged.append((folder, str(problem)))
        else:
            found.weights[algorithm_style(algo).label] = weights
            found.extra |= others
    return found


def _pages_to_explore(study: Study, brains: Brains, folder: Path) -> list[Drawn]:
    if not brains.weights:
        return []
    from fco_cli.reporting.brain import brain_maps

    simulated = study.runs[0].config["task"]["name"] == "fmri_sim"
    pages = brain_maps(brains.weights, folder, simulated)
    return [Drawn(study, path.stem, path) for path in pages if path.suffix == ".html"]
