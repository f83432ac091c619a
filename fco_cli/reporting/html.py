"""The report as one page that needs nothing else: figures, tables, curves and ledger are inside it."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from fco_cli import __version__
from fco_cli.reporting.claims import Entry, summary
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Choice, window_mean
from fco_cli.reporting.studies import Results, Study
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.tables import as_text, best_table, caption
from fco_cli.reporting.text import printable

if TYPE_CHECKING:
    from fco_cli.reporting.report import Drawn

CURVE_POINTS = 80  # of a run, in the page; the record has all


def render(
    results: Results,
    choices: dict[str, dict[str, Choice]],
    drawn: list[Drawn],
    ledger: list[Entry],
    left_out: list[tuple[Path, str]],
) -> str:
    """The page's text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fco_cli.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html").render(
        version=__version__,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        studies=[_study_context(study, choices[study.slug], drawn) for study in results.studies],
        left_out=[(printable(str(path), longest=4096), reason) for path, reason in left_out],
        ledger=ledger,
        ledger_summary=summary(ledger),
        data=_script_safe(_data(results)),
    )


def _study_context(study: Study, choices: dict[str, Choice], drawn: list[Drawn]) -> dict[str, Any]:
    table = as_text(best_table(study, choices))
    first = study.runs[0]
    mine = [one for one in drawn if one.study is study]
    shared = {key: first.config[key] for key in ("task", "regularizer", "hparams")}
    shared["hparams"] = {key: value for key, value in shared["hparams"].items() if not key.endswith("_lr")}
    return {
        "slug": study.slug,
        "heading": study.heading,
        "runs": len(study.runs),
        "caption": caption(study, choices),
        "columns": list(table.columns),
        "rows": table.to_numpy().tolist(),
        "images": [(one.kind, _as_data_uri(one.file)) for one in mine if one.file.suffix == ".png"],
        "pages": [(one.kind.replace("_", " "), _link(one.file)) for one in mine if one.file.suffix == ".html"],
        "config": yaml.safe_dump(shared, sort_keys=False),
        "versions": _versions(study),
    }


def _versions(study: Study) -> list[str]:
    """Every combination of software that made the study's records."""
    lines = []
    for run in study.runs:
        versions = {"python": run.result["python"], **run.result["versions"]}
        line = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        revision = run.result["git_revision"]
        lines.append(line + (f", revision {revision[:12]}" if revision else ""))
    return list(dict.fromkeys(lines))


def _link(page: Path) -> str:
    """From the report's page to one in a study's folder below figures/."""
    return "/".join(page.parts[-3:])


def _as_data_uri(png: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def _data(results: Results) -> dict[str, Any]:
    """What the page's script draws and sorts."""
    metrics = {metric for study in results.studies for metric in (*study.panels, study.rule.metric)}
    algorithms = {algo for study in results.studies for algo in study.algorithms}
    return {
        "algorithms": {algo: vars(algorithm_style(algo)) for algo in algorithms},
        "metrics": {metric: vars(metric_style(metric)) for metric in metrics},
        "runs": [_run_data(study, run) for study in results.studies for run in study.runs],
    }


def _run_data(study: Study, run: RecordedRun) -> dict[str, Any]:
    points = len(run.curves["round"])
    kept = np.unique(np.linspace(0, points - 1, min(points, CURVE_POINTS)).round().astype(int))
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
        "final": {name: _number(value) for name, value in run.final.items()},
        "curves": {name: [_number(value) for value in values[kept]] for name, values in curves.items()},
    }


def _number(value: Any) -> float | None:
    """Four digits are enough to look at; JSON has no infinity and no NaN."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.4g}")


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
