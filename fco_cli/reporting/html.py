"""The report as a self-contained HTML page with embedded figures, tables, curves and the claims ledger."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from fco_cli import __version__
from fco_cli.reporting import captions
from fco_cli.reporting.claims_page import claims_context, claims_of
from fco_cli.reporting.design import is_shipped
from fco_cli.reporting.own_results import own_results
from fco_cli.reporting.path_figures import caption_of
from fco_cli.reporting.paths import RecordedPath
from fco_cli.reporting.player import player_of
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import window_mean
from fco_cli.reporting.studies import Results, Study
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.tables import as_text, best_table, caption
from fco_cli.reporting.text import printable
from fco_cli.reporting.theorems import Theorems

if TYPE_CHECKING:
    from pandas import DataFrame

    from fco_cli.reporting.leaderboard import Leaderboard
    from fco_cli.reporting.report import Report, SavedFigure
    from fco_cli.reporting.sweeps import SweptKey

CURVE_NUMBERS = 60_000  # embedded curve values of all runs together
MAX_POINTS, MIN_POINTS = 80, 6  # per curve
PIXELS, COLORS = 600, 48  # width and colors of an embedded figure; fewer colors would lose the light bands
WIDE_PIXELS = 1200  # width of a figure that spans a journal page
SUMMARY_FIGURES = ("lasso_i", "nuclear_i", "fmri", "fmri_sim", "curse")  # the first three available are shown


def render(results: Results, report: Report) -> str:
    """Return the page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fco_cli.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    studies = sort_studies(results.studies)
    players = {
        study.slug: player
        for study in studies
        if not study.twin_of and (player := player_of(study, report.choices[study.slug], report.damaged))
    }
    contexts = [_study_context(study, results, report, study.slug in players) for study in studies]
    paths = [_path_context(path, drawn) for path, drawn in report.paths]
    return environment.get_template("report.html").render(
        version=__version__,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        sources=_sources(results),
        results=own_results(report, studies),
        claims=claims_context(report.ledger, results),
        studies=contexts,
        sweeps=[_sweep_context(swept, file) for swept, file in report.swept],
        search=_search_context(report.search),
        leaderboard=_leaderboard_context(report.leaderboard),
        paths=paths,
        theory=_theory_context(results.theory, report.damaged),
        first_figures=_summary_figures(paths, contexts),
        left_out=[(printable(str(path), max_length=4096), why) for path, why in results.left_out + report.damaged],
        data=_compress(_data(results)),
        players=_compress({slug: player | {"algorithms": _styles(studies)} for slug, player in players.items()}),
    )


def _sources(results: Results) -> str:
    """Describe the sources of the report, as in "3 runs and 1 path"."""
    counts = {"run": sum(len(study.runs) for study in results.all_studies), "path": len(results.paths)}
    return " and ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in counts.items() if n)


def sort_studies(studies: list[Study]) -> list[Study]:
    """Sort studies: the user's own first, then the paper's by figure number, each with its twin, then the rest."""

    def place(study: Study) -> tuple[bool, float, int, bool]:
        original = next((one for one in studies if one.name == study.twin_of), study)
        number = re.search(r"\d+", original.paper)
        figure = float(number[0]) if number else np.inf
        return (is_shipped(original), figure, studies.index(original), bool(study.twin_of))

    return sorted(studies, key=place)


def _study_context(study: Study, results: Results, report: Report, moves: bool) -> dict[str, Any]:
    choices = report.choices[study.slug]
    table = as_text(best_table(study, choices))
    shared = {key: study.runs[0].config[key] for key in ("task", "regularizer", "hparams")}
    shared["hparams"] = {key: value for key, value in shared["hparams"].items() if not key.endswith("_lr")}
    mine = [one for one in report.figures if one.study is study]
    return {
        "slug": study.slug,
        "name": study.name,
        "shipped": is_shipped(study),
        "number": study.paper,
        "short": study.title.split(":")[0] + study.heading.removeprefix(study.title),
        "heading": study.heading,
        "note": study.note,
        "twin": bool(study.twin_of),
        "command": captions.command(study),
        "claims": claims_of(study, report.ledger),
        "figures": [_figure_context(one, report) for one in _figures_with_twins(study, results, report)],
        "skipped": [sentence for one, sentence in report.skipped if one is study],
        "moves": moves,
        "pages": [(one.kind.replace("_", " "), _link(one.file, 3)) for one in mine if one.file.suffix == ".html"],
        "runs": len(study.runs),
        "caption": caption(study, choices),
        "table": f"tables/{study.slug}.csv",
        "columns": list(table.columns),
        "rows": table.to_numpy().tolist(),
        "config": yaml.safe_dump(shared, sort_keys=False),
        "versions": _versions(study),
    }


def _figures_with_twins(study: Study, results: Results, report: Report) -> list[SavedFigure]:
    """Return a study's figures; its curves are followed by those of its twins."""
    pictures = [one for one in report.figures if one.file.suffix == ".png"]
    twins = [one for one in results.studies if one.twin_of == study.name and one.profile == study.profile]
    shown = []
    for one in pictures:
        if one.study is study and not (study.twin_of and one.kind == "curves" and results.study(study.twin_of)):
            shown.append(one)
            if one.kind == "curves":
                shown += [other for other in pictures if other.study in twins and other.kind == "curves"]
    return shown


def _figure_context(one: SavedFigure, report: Report) -> dict[str, Any]:
    text = captions.caption(one.study, one.kind, report.choices[one.study.slug])
    is_twin_curve = one.study.twin_of and one.kind == "curves"
    return {
        **_picture(one.file.read_bytes()),
        "id": f"figure-{one.file.stem}",
        "alt": f"{one.study.heading}: {one.kind.replace('_', ' ')}",
        "number": captions.number(one.study, one.kind),
        "caption": f"{one.study.title}. {text}" if is_twin_curve else text,
        "links": _links(one.file),
    }


def _sweep_context(swept: SweptKey, file: Path) -> dict[str, Any]:
    return {
        **_picture(file.read_bytes()),
        "slug": swept.slug,
        "id": f"figure-{swept.slug}",
        "short": f"{swept.first.name} by {swept.key}",
        "heading": swept.heading,
        "alt": swept.heading,
        "number": "",
        "caption": captions.SWEEP.format(key=swept.key),
        "links": _links(file),
    }


def _search_context(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    return {
        **_picture(file.read_bytes()),
        "id": "figure-hidden-settings",
        "alt": "Share of claims that hold, by setting",
        "number": "",
        "caption": captions.SEARCH,
        "links": [("PDF", _link(file.with_suffix(".pdf"), 2)), ("table", "tables/hidden_settings.md")],
    }


def _leaderboard_context(board: Leaderboard | None) -> dict[str, Any] | None:
    if board is None:
        return None
    return {
        "summary": _table_context(board.summary),
        "overviews": [_wide_figure_context(png, heading) for heading, png in board.overviews.items()],
        "problems": [
            {
                "finding": one.finding,
                "table": _table_context(one.table),
                "figure": _wide_figure_context(
                    one.figure, f"{one.name}: the gap against what it costs, a row per family"
                ),
            }
            for one in board.boards
        ],
    }


def _table_context(table: DataFrame) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": table.to_numpy().tolist()}


def _wide_figure_context(png: Path, heading: str) -> dict[str, Any]:
    return {
        **_picture(png.read_bytes(), WIDE_PIXELS),
        "id": f"figure-{png.stem}",
        "alt": heading,
        "caption": f"{heading}.",
        "links": [("PDF", _link(png.with_suffix(".pdf"), 2)), ("PNG", _link(png, 2))],
    }


def _path_context(path: RecordedPath, drawn: dict[str, Path]) -> dict[str, Any]:
    tables = {"metrics of the chosen models out of fold": path.clients.dropna(axis=1, how="all")}
    tables |= {f"weights of {choice}": model for choice, model in path.models.items()}
    return {
        "slug": path.slug,
        "short": f"Path: {path.result['task']}",
        "heading": path.heading,
        "folder": printable(str(path.folder), max_length=4096),
        "figures": [
            {
                **_picture(file.read_bytes()),
                "id": f"figure-{file.stem}",
                "alt": caption_of(path, kind),
                "number": "",
                "caption": caption_of(path, kind),
                "links": _links(file),
            }
            for kind, file in drawn.items()
        ],
        "tables": {
            heading: {"columns": list(table.columns), "rows": as_text(table).to_numpy().tolist()}
            for heading, table in tables.items()
        },
    }


def _theory_context(theorems: Theorems | None, damaged: list[tuple[Path, str]]) -> dict[str, Any] | None:
    if theorems is None:
        return None
    try:
        picture = _picture(theorems.figure())
    except Exception as problem:  # damaged images raise many kinds of exceptions
        damaged.append((theorems.folder, printable(str(problem))))
        return None
    return {
        **picture,
        "id": "figure-theory",
        "alt": "Bounds of the theorems against measurements",
        "number": "",
        "caption": captions.THEORY,
        "links": [],
        "columns": theorems.table[0],
        "rows": theorems.table[1:],
        "note": "Slopes are measured / bound, on logarithmic axes.",
    }


def _summary_figures(paths: list[dict[str, Any]], studies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return up to three figures for the summary; none if only one section has figures, as it follows the summary."""
    drawn = [one for one in (*paths, *studies) if one["figures"]]
    if len(drawn) < 2:
        return []
    ours = [one for one in drawn if not one.get("shipped")]
    known = {one["name"]: one for one in reversed(drawn) if one.get("shipped")}
    chosen = [*ours, *(known.pop(name) for name in SUMMARY_FIGURES if name in known), *reversed(known.values())][:3]
    return [
        {"slug": one["slug"], "title": one["heading"], "id": one["figures"][0]["id"], "alt": one["heading"]}
        for one in chosen
    ]


def _versions(study: Study) -> list[str]:
    """Return every distinct combination of software versions in the study's records."""
    lines = []
    for run in study.runs:
        versions = {"python": run.result["python"], **run.result["versions"]}
        line = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        revision = run.result["git_revision"]
        lines.append(line + (f", revision {revision[:12]}" if revision else ""))
    return list(dict.fromkeys(lines))


def _link(file: Path, parts: int) -> str:
    """Return the relative link from the page to a file: the last `parts` of its path."""
    return "/".join(file.parts[-parts:])


def _links(png: Path) -> list[tuple[str, str]]:
    files = [("PDF", ".pdf"), ("CSV", ".csv"), ("PNG", ".png")]
    return [(name, _link(png.with_suffix(suffix), 2)) for name, suffix in files]


def _picture(png: bytes, pixels: int = PIXELS) -> dict[str, Any]:
    """Return a PNG as an embedded WebP image, reduced in resolution and colors to keep the page small."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        height = round(image.height * pixels / image.width)
        small = image.convert("RGB").resize((pixels, height), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    # Octree quantization preserves the colors of small marks; median cut weights colors by area.
    quantized = small.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).convert("RGB")
    quantized.save(content, "WEBP", lossless=True, method=6)
    uri = "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode()
    return {"uri": uri, "width": pixels, "height": height}


def _styles(studies: list[Study]) -> dict[str, Any]:
    return {algo: vars(algorithm_style(algo)) for study in studies for algo in study.algorithms}


def _data(results: Results) -> dict[str, Any]:
    """Return the data of the page's script: styles and all runs with reduced curves."""
    metrics = {metric for study in results.studies for metric in (*study.panels, study.rule.metric)}
    drawn = sum(len(study.panels) + 1 for study in results.studies for run in study.runs if not run.diverged)
    points = int(np.clip(CURVE_NUMBERS // max(drawn, 1), MIN_POINTS, MAX_POINTS))
    return {
        "algorithms": _styles(results.studies),
        "metrics": {metric: vars(metric_style(metric)) for metric in sorted(metrics)},
        "runs": [_run_data(study, run, points) for study in results.studies for run in study.runs],
    }


def _run_data(study: Study, run: RecordedRun, points: int) -> dict[str, Any]:
    evaluated = len(run.curves["round"])
    kept = np.unique(np.linspace(0, evaluated - 1, min(evaluated, points)).round().astype(int))
    curves = {metric: run.curves[metric] for metric in ("round", *study.panels) if metric in run.curves}
    return {
        "study": study.slug,
        "algo": run.algo,
        "client_lr": run.client_lr,
        "server_lr": run.server_lr,
        "seed": run.seed,
        "status": run.status,
        "rule": metric_style(study.rule.metric).label,
        "score": _number(window_mean(run, study.rule.metric, study.rule.last)),
        "rounds": run.result["rounds"],
        "gap": _number(run.optimality_gap),
        "megabytes": _number(run.megabytes[-1]),
        "seconds": _number(run.result["seconds"]),
        "id": run.run_id,
        "folder": str(run.folder),
        # The last values of a diverged run are meaningless, and most runs of a large grid diverge.
        "final": {} if run.diverged else {name: _number(value) for name, value in run.final.items()},
        "curves": {}
        if run.diverged
        else {name: [_number(value) for value in values[kept]] for name, values in curves.items()},
    }


def _number(value: Any) -> float | None:
    """Round to four significant digits; return None for non-finite values, which JSON does not support."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.4g}")


def _compress(data: Any) -> str:
    """Return data for the page's script as base64 of zlib-compressed JSON, which cannot close its HTML element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
