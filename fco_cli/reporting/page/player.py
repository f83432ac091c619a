"""Data of the page's player, which animates the chosen runs from the snapshots (path.npz) in their records.

Weights are shown as dots, matrices by their singular values, brains in slices. Values are quantized to hundredths of
the panel's height, the resolution of a small picture.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.reporting.figures import brain
from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.select import Choice
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.style import metric_style
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_arrays

MAX_BYTES = 4 * MEBIBYTE
MAX_FRAMES, MAX_WEIGHTS, SLICES = 24, 2048, 3
LEVELS = 50  # quantization levels above and below zero
SPARSITY = ("density", "rank")
THRESHOLD = 1e-2  # smaller weights are shown as zeros


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
