"""A whole report: every figure and table of the studies, the ledger, and the page that holds them all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.reporting import claims, figures, hidden_settings, rates, tables
from fco_cli.reporting.claims import Entry
from fco_cli.reporting.curse import draw_curse, supports_of
from fco_cli.reporting.gate import BadRecord
from fco_cli.reporting.html import render
from fco_cli.reporting.select import Choice, choose
from fco_cli.reporting.studies import Results, Study
from fco_cli.reporting.style import algorithm_style


@dataclass(frozen=True)
class Drawn:
    """A figure on disk, as PNG; or a page to explore."""

    study: Study
    kind: str
    file: Path


@dataclass(frozen=True)
class Report:
    """What was made."""

    page: Path
    figures: list[Drawn]
    ledger: list[Entry]
    damaged: list[tuple[Path, str]]  # what could not be drawn of a record that can be read


def make_report(results: Results, folder: Path, x: str = "rounds") -> Report:
    """Write the report of all studies to a folder."""
    for part in (folder, folder / "figures", folder / "tables"):
        try:
            part.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"--output: {part} cannot be created: {problem.strerror}") from problem
    choices = {study.slug: choose(study) for study in results.studies}
    drawn: list[Drawn] = []
    damaged: list[tuple[Path, str]] = []
    for study in results.studies:
        drawn += _draw(study, choices[study.slug], folder / "figures", x, damaged)
        tables.save_tables(study, choices[study.slug], folder / "tables")
    hidden_settings.save_search(results.search, folder)
    ledger = claims.evaluate(claims.read_claims(), results)
    write_atomically(folder / "CLAIMS.md", claims.as_markdown(ledger).encode())
    page = folder / "index.html"
    write_atomically(page, render(results, choices, drawn, ledger, results.left_out + damaged).encode())
    return Report(page, drawn, ledger, damaged)


def _draw(
    study: Study, choices: dict[str, Choice], folder: Path, x: str, damaged: list[tuple[Path, str]]
) -> list[Drawn]:
    made = {
        "curves": figures.draw_panels(study, choices, x),
        "learning_rates": rates.draw_heat_maps(study, choices),
        "robustness": rates.draw_robustness(study, choices),
        "clients": draw_curse(study, supports_of(choices, damaged)),
    }
    drawn = []
    for kind, figure in made.items():
        if figure is not None:
            name = study.slug if kind == "curves" else f"{study.slug}_{kind}"
            png, _ = figures.save(figure, folder / name)
            drawn.append(Drawn(study, kind, png))
    return drawn + _draw_brains(study, choices, folder, damaged)


FIGURE_1 = ("centralized", "local", "fedavg_subgrad", "fedmid", "feddualavg")


def _draw_brains(
    study: Study, choices: dict[str, Choice], folder: Path, damaged: list[tuple[Path, str]]
) -> list[Drawn]:
    """For the fMRI tasks: figure 1, and maps of the best models' weights."""
    best = {
        algo: choice.best.runs[0]
        for algo, choice in choices.items()
        if choice.best and os.path.lexists(choice.best.runs[0].folder / "weights.nii.gz")
    }
    if not best:
        return []
    from fco_cli.reporting.brain import brain_maps, read_image, read_weights
    from fco_cli.reporting.figure1 import can_compare, figure1

    drawn = []
    compared = {
        algorithm_style(algo).label: best[algo].final
        for algo in FIGURE_1
        if algo in best and can_compare(best[algo].final)
    }
    if compared:
        drawn.append(Drawn(study, "side_by_side", figure1(compared, folder / f"{study.slug}_figure1.png")))
    images, truth = {}, None
    for algo, run in best.items():
        try:
            if truth is None and os.path.lexists(run.folder / "truth.nii.gz"):
                truth = read_image(run.folder / "truth.nii.gz")
            images[algorithm_style(algo).label] = read_weights(run.folder)
        except BadRecord as problem:
            damaged.append((run.folder, str(problem)))
    if not images:
        return drawn
    simulated = study.runs[0].config["task"]["name"] == "fmri_sim"
    maps = brain_maps(images, folder / study.slug, simulated, truth)
    return drawn + [Drawn(study, path.stem, path) for path in maps if path.suffix in (".png", ".html")]
