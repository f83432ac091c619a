"""Data of the page's scripts: all runs with reduced curves, and animations of the chosen runs.

A player animates the snapshots (path.npz) in the records: weights are shown as dots, matrices by their singular values,
brains in slices. Values are quantized to hundredths of the panel's height, the resolution of a small picture.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.reporting.figures import brain
from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.select import Choice, window_mean
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_arrays

CURVE_NUMBERS = 60_000  # embedded curve values of all runs together
MAX_POINTS, MIN_POINTS = 80, 6  # per curve
MAX_BYTES = 4 * MEBIBYTE
MAX_FRAMES, MAX_WEIGHTS, SLICES = 24, 2048, 3
LEVELS = 50  # quantization levels above and below zero
SPARSITY = ("density", "rank")
THRESHOLD = 1e-2  # smaller weights are shown as zeros


def players_of(
    studies: list[RecordedStudy], choices: dict[str, dict[str, Choice]], damaged: list[tuple[Path, str]]
) -> dict[str, Any]:
    """Return the animations of the studies that have one, by slug; twins have none."""
    styles = _styles(studies)
    return {
        study.slug: player | {"algorithms": styles}
        for study in studies
        if not study.twin_of and (player := player_of(study, choices[study.slug], damaged))
    }


def _styles(studies: list[RecordedStudy]) -> dict[str, Any]:
    return {algo: vars(algorithm_style(algo)) for study in studies for algo in study.algorithms}


def runs_data(studies: list[RecordedStudy]) -> dict[str, Any]:
    """Return the data of the page's script: styles and all runs with reduced curves."""
    metrics = {metric for study in studies for metric in (*study.panels, study.rule.metric)}
    drawn = sum(len(study.panels) + 1 for study in studies for run in study.runs if not run.diverged)
    points = int(np.clip(CURVE_NUMBERS // max(drawn, 1), MIN_POINTS, MAX_POINTS))
    return {
        "algorithms": _styles(studies),
        "metrics": {metric: vars(metric_style(metric)) for metric in sorted(metrics)},
        "runs": [_run_data(study, run, points) for study in studies for run in study.runs],
    }


def _run_data(study: RecordedStudy, run: RecordedRun, points: int) -> dict[str, Any]:
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


def compress(data: Any) -> str:
    """Return data for the page's script as base64 of zlib-compressed JSON, which cannot close its HTML element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


@dataclass(frozen=True)
class Snapshots:
    """Snapshots of one run."""

    run: RecordedRun
    rounds: np.ndarray  # [F]
    weights: np.ndarray  # [F, n] or [F, rows, columns]


def player_of(
    study: RecordedStudy, choices: dict[str, Choice], damaged: list[tuple[Path, str]]
) -> dict[str, Any] | None:
    """Return the data of a study's animation; None if the runs have no comparable snapshots of two rounds or more."""
    paths: dict[str, Snapshots] = {}
    for algo, choice in choices.items():
        run = choice.best.runs[0] if choice.best else None
        if run is None or not os.path.lexists(run.folder / "path.npz"):
            continue
        try:
            paths[algo] = _read(run)
        except BadRecord as problem:
            damaged.append((run.folder, str(problem)))
    if not paths or len({path.weights.shape[1:] for path in paths.values()}) > 1:
        return None
    rounds = _shared_rounds(list(paths.values()))
    if len(rounds) < 2:
        return None
    frames = {algo: path.weights[np.isin(path.rounds, rounds)] for algo, path in paths.items()}
    first = next(iter(paths.values())).run
    try:
        shown = _shown(first, frames)
    except BadRecord as problem:
        damaged.append((first.folder, str(problem)))
        return None
    panels = [
        {
            "algo": algo,
            "rates": choices[algo].best.rates,  # type: ignore[union-attr]
            "frames": shown["frames"][algo],
            "texts": [_describe(study, paths[algo].run, at) for at in rounds],
        }
        for algo in paths
    ]
    return {**shown, "frames": None, "rounds": rounds.astype(int).tolist(), "panels": panels}


def _read(run: RecordedRun) -> Snapshots:
    arrays = read_arrays(run.folder / "path.npz", MAX_BYTES)
    rounds, weights = arrays.get("round"), arrays.get("weights")
    if rounds is None or weights is None or rounds.ndim != 1 or weights.ndim not in (2, 3):
        raise BadRecord("path.npz: no snapshots of weights")
    if len(rounds) != len(weights) or not (np.diff(rounds) > 0).all() or weights[0].size == 0:
        raise BadRecord("path.npz: rounds do not match the weights")
    return Snapshots(run, rounds, np.nan_to_num(weights, posinf=0, neginf=0))


def _shared_rounds(paths: list[Snapshots]) -> np.ndarray:
    rounds = paths[0].rounds
    for path in paths[1:]:
        rounds = np.intersect1d(rounds, path.rounds)
    kept = np.linspace(0, len(rounds) - 1, min(len(rounds), MAX_FRAMES)).round().astype(int)
    return rounds[kept]


def _describe(study: RecordedStudy, run: RecordedRun, at: float) -> str:
    """Describe the quality and the sparsity of the model at a round."""
    i = int(np.searchsorted(run.curves["round"], at, side="right")) - 1
    metrics = [study.rule.metric, *(metric for metric in SPARSITY if metric in study.panels)]
    return ", ".join(f"{metric_style(m).label} {run.curves[m][i]:.3g}" for m in metrics if m in run.curves)


def _shown(run: RecordedRun, frames: dict[str, np.ndarray]) -> dict[str, Any]:
    if os.path.lexists(run.folder / "mask.nii.gz"):
        return _slices(run, frames)
    task = run.config["task"]
    if next(iter(frames.values())).ndim == 3:
        spectra = {algo: np.linalg.svd(values, compute_uv=False) for algo, values in frames.items()}
        return _scaled("singular values", spectra, task.get("rank"))
    if next(iter(frames.values())).shape[1] > MAX_WEIGHTS:
        raise BadRecord(f"path.npz: more than {MAX_WEIGHTS} weights cannot be drawn")
    return _scaled("weights", frames, task.get("ones"))


def _scaled(kind: str, frames: dict[str, np.ndarray], ones: Any) -> dict[str, Any]:
    """Return frames on a common scale, set by the 99% quantile of the final models' weights."""
    ends = np.concatenate([np.abs(values[-1]).ravel() for values in frames.values()])
    limit = float(max(np.quantile(ends, 0.99), 1.0)) * 1.25
    size = next(iter(frames.values())).shape[1]
    known = is_number(ones) and 0 <= ones <= size
    return {
        "kind": kind,
        "limit": limit,
        "ones": int(ones) if known else None,  # the true model of these tasks: ones, then zeros
        "frames": {algo: _levels(values, limit, THRESHOLD).tolist() for algo, values in frames.items()},
    }


def _slices(run: RecordedRun, frames: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return frames of the axial slices in which the final models have the most weight, with one scale per run."""
    image = brain.read_image(run.folder / "mask.nii.gz")
    inside = np.asarray(image.dataobj) > 0
    if any(values.ndim != 2 or values.shape[1] != inside.sum() for values in frames.values()):
        raise BadRecord("mask.nii.gz: the number of voxels differs from the number of weights in path.npz")
    volume = 1e-9 * inside  # for all-zero models, the slices with the most voxels
    for values in frames.values():
        volume[inside] += np.abs(values[-1]) / (np.abs(values[-1]).max() or 1.0)
    planes = np.sort(np.argsort(-volume.sum(axis=(0, 1)), kind="stable")[:SLICES])
    used = np.argwhere(inside[:, :, planes])
    (left, back, _), (right, front, _) = used.min(axis=0), used.max(axis=0)

    def flat(values: np.ndarray) -> list[int]:
        """Flatten slices: slice by slice, rows from front to back, columns from left to right."""
        box = values[left : right + 1, back : front + 1, planes]
        return box[:, ::-1].transpose(2, 1, 0).ravel().tolist()

    shown: dict[str, list[list[int]]] = {}
    for algo, values in frames.items():
        levels = _levels(values, float(np.abs(values[-1]).max()) or 1.0, brain.THRESHOLD)
        shown[algo] = []
        for level in levels:
            volume = np.zeros(inside.shape, dtype=int)
            volume[inside] = level
            shown[algo].append(flat(volume))
    return {
        "kind": "slices",
        "width": int(right - left + 1),
        "height": int(front - back + 1),
        "mask": flat(inside.astype(int)),
        "heights": [round(float(image.affine[2, 2] * plane + image.affine[2, 3])) for plane in planes],
        "frames": shown,
    }


def _levels(values: np.ndarray, limit: float, zero: float) -> np.ndarray:
    """Quantize values to integers from -LEVELS to LEVELS; only values up to `zero` in magnitude become 0."""
    levels = np.clip(np.round(values / limit * LEVELS), -LEVELS, LEVELS)
    levels = np.where(levels == 0, np.sign(values), levels)
    return np.where(np.abs(values) > zero, levels, 0).astype(int)
