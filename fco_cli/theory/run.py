"""Check of the theorems (`experiment=theory`) with its output folder: figure, table, cells and result.

The figure has one panel per statement, one for the key identity and one for the slack of all cells.
"""

from __future__ import annotations

import io
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.algorithms import all_algorithms
from fco_cli.code_digest import digest_of
from fco_cli.files import write_atomically
from fco_cli.kernels.compiled import set_threads
from fco_cli.results import TheoryResult, listed_files
from fco_cli.simulation.record import Record
from fco_cli.theory.statements import (
    AXES,
    PERTURBED,
    STABILITY_1,
    STABILITY_2,
    STATEMENTS,
    THEOREM_0,
    THEOREM_0_FEDMID,
    THEOREM_1,
    THEOREM_2,
    Findings,
    Grid,
    cells_csv,
    check,
    summarize,
    summary_markdown,
    summary_rows,
    sweep,
)  # fmt: skip

SYMBOLS = {"rounds": "$R$", "steps": "$K$", "clients": "$M$", "rate": r"$\eta_c$"}
COLORS = dict(zip(AXES, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=True))
GAP, DRIFT = r"$\Phi(\hat w) - \Phi^\star$", r"$\max_{r,k}$ mean $\|z^m - \bar z\|_*^2$"
PANELS = [
    (THEOREM_0, "Theorem 0: small client steps", GAP),
    (PERTURBED, "Lemma: perturbed iterates", GAP),
    (THEOREM_1, "Theorem 1: bounded gradients", GAP),
    (STABILITY_1, "Lemma: stability, bounded gradients", DRIFT),
    (THEOREM_2, "Theorem 2: quadratic", GAP),
    (STABILITY_2, "Lemma: stability, quadratic", DRIFT),
]
log = logging.getLogger(__name__)


def draw(findings: Findings, grid: Grid) -> dict[str, bytes]:
    """Return the figure as PNG and PDF files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(17, 8), layout="constrained")
    panels = axes.ravel()
    for panel, (statement, title, label) in zip(panels, PANELS, strict=False):
        _draw_statement(panel, findings, grid, statement)
        panel.set(title=title, ylabel=label)
    _draw_fedmid_of_theorem_0(panels[0], findings, grid)
    _draw_identity(panels[6], findings)
    _draw_slack(panels[7], findings)
    _draw_legend(figure, grid)
    files = {}
    for kind in ("png", "pdf"):
        buffer = io.BytesIO()
        metadata = {"CreationDate": None} if kind == "pdf" else {}  # equal numbers give equal bytes
        figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
        files[f"theory.{kind}"] = buffer.getvalue()
    plt.close(figure)
    return files


def _draw_statement(panel: Any, findings: Findings, grid: Grid, statement: str) -> None:
    """Draw measurements and bounds along the four sweeps through the base cell."""
    base = dict(zip(AXES, grid.base, strict=True))
    for axis, color in COLORS.items():
        line = [cell for cell in sweep(findings.cells, grid, statement, axis) if cell.bound > 0]
        x = np.array([getattr(cell, axis) / base[axis] for cell in line])
        measured, error, bound = (
            np.array([getattr(cell, key) for cell in line]) for key in ("measured", "error", "bound")
        )
        panel.plot(x, measured, color=color, marker="o", markersize=4)
        panel.fill_between(x, np.maximum(measured - error, measured / 10), measured + error, color=color, alpha=0.25)
        panel.plot(x, bound, color=color, linestyle="--")
    panel.set(xscale="log", yscale="log", xlabel="relative to the base cell")
    panel.set_xscale("log", base=4)


def _draw_fedmid_of_theorem_0(panel: Any, findings: Findings, grid: Grid) -> None:
    """Draw crosses for FedMiD, for which the paper also states theorem 0; some of them violate the bounds."""
    base = dict(zip(AXES, grid.base, strict=True))
    for axis, color in COLORS.items():
        line = sweep(findings.cells, grid, THEOREM_0_FEDMID, axis)
        x = [getattr(cell, axis) / base[axis] for cell in line]
        panel.plot(x, [cell.measured for cell in line], "x", color=color, markersize=8)


def _draw_identity(panel: Any, findings: Findings) -> None:
    """Draw the error of the key identity by round."""
    for name, errors in findings.identity.items():
        style = all_algorithms()[name].style
        panel.plot(np.arange(1, len(errors) + 1), np.maximum(errors, 1e-17), color=style.color, label=style.label)
    panel.set(
        title="Key identity: the mean state takes\none step along the mean gradient",
        xlabel="round",
        ylabel="relative error",
    )
    panel.set(xscale="log", yscale="log")
    panel.legend(frameon=False, loc="center right")


def _draw_slack(panel: Any, findings: Findings) -> None:
    """Draw the slack of all cells by statement."""
    random = np.random.default_rng(0)
    for position, statement in enumerate(STATEMENTS):
        slack = np.array([cell.slack for cell in findings.cells if cell.statement == statement])
        slack = slack[np.isfinite(slack)]
        panel.plot(
            slack, -position + random.uniform(-0.25, 0.25, len(slack)), ".", color="0.35", markersize=3, alpha=0.5
        )
    panel.axvline(1, color="#d55e00")
    names = [statement.replace(", ", ",\n") for statement in STATEMENTS]
    panel.set_yticks(-np.arange(len(STATEMENTS)), names, fontsize=8)
    panel.set(title="Slack in every cell", xlabel="bound / measured (must exceed 1)", xscale="log")


def _draw_legend(figure: Any, grid: Grid) -> None:
    """Draw the legend below the panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=COLORS[axis],
            marker="o",
            markersize=4,
            label=f"{SYMBOLS[axis]} (base {value:g}{'/L' * (axis == 'rate')})",
        )
        for axis, value in zip(AXES, grid.base, strict=True)
    ]
    handles.append(Line2D([], [], color="0.3", label="measured, mean and band of two standard errors"))
    handles.append(Line2D([], [], color="0.3", linestyle="--", label="bound"))
    handles.append(Line2D([], [], color="0.3", linestyle="", marker="x", label="FedMiD (theorem 0)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False)


def check_theorems(grid: Grid, config: str, folder: Path, force: bool) -> dict[str, Any]:
    """Return the result, computed or reused from the folder; `result.json` is written last, as in every record."""
    record = Record(folder)
    code = digest_of((check, draw, summarize, *all_algorithms().values()))
    with record.lock(wait=True):  # a concurrent command waits, then reuses the result
        result = None if force else record.result(TheoryResult)
        if result and (result["config"], result.get("code")) == (config, code):
            log.info("already done (force=true runs it again)")
            return result
        set_threads(1)  # a step takes microseconds, too short for threads
        started = time.monotonic()
        findings = check(grid, log.info)
        rows = summarize(findings.cells, grid)
        header, body = summary_rows(rows)
        record.save_config(config)
        files = {"cells.csv": cells_csv(findings.cells).encode(), "theory.md": summary_markdown(rows).encode()}
        for name, content in (files | draw(findings, grid)).items():
            write_atomically(folder / name, content)
        result = {
            "status": "finished",
            "cells": len(findings.cells),
            "violated": {row.statement: row.violated for row in rows if row.violated},
            "identity_error": {name: float(np.max(errors)) for name, errors in findings.identity.items()},
            "table": [header, *body],
            "seconds": round(time.monotonic() - started, 1),
            "config": config,
            "code": code,
            "files": listed_files(folder),
        }
        write_atomically(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result
