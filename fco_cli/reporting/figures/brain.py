"""Brain maps of the weights of several runs, read from the weights.nii.gz of their records."""

from __future__ import annotations

import gzip
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.figures.drawing import add_title, new_figure, styled
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.text import as_csv, for_figure, printable
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from nibabel import Nifti1Image
    from pandas import DataFrame

MAX_BYTES = 256 * MEBIBYTE
THRESHOLD = 1e-4  # smaller weights count as zero, as in the tasks' density
SLICES = 3


@contextmanager
def _ignore_map_warnings() -> Iterator[None]:
    """Suppress nilearn's warnings about maps that are empty, full or of one sign; such maps are valid results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@_ignore_map_warnings()
def brain_maps(images: dict[str, Nifti1Image], simulated: bool = False) -> dict[str, bytes]:
    """Return files by name: an interactive page per image and a table of clusters."""
    files = {"brain_clusters.csv": as_csv(clusters(images)).encode()}
    for name, image in images.items():
        page = _page(image, _caption(name, image), _anatomy(simulated))
        files[f"brain_{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}.html"] = page
    return files


def _anatomy(simulated: bool) -> Any:
    """Return the background image: the MNI template for simulated scans, None for real scans in native space."""
    from nilearn.datasets import load_mni152_template

    return load_mni152_template(resolution=2) if simulated else None


def read_weights(record: Path) -> Nifti1Image:
    """Read a record's weights; of the local baseline's models, the one of median density."""
    from nilearn.image import index_img

    image = read_image(record / "weights.nii.gz")
    if image.ndim == 4:
        size = (np.abs(np.asarray(image.dataobj)) > THRESHOLD).sum(axis=(0, 1, 2))
        image = index_img(image, int(np.argsort(size, kind="stable")[len(size) // 2]))
    return image


@_ignore_map_warnings()
def clusters(images: dict[str, Nifti1Image]) -> DataFrame:
    """Return a table of the connected clusters of non-zero weights by run: peak position, peak weight and size."""
    import pandas as pd
    from nilearn.reporting import get_clusters_table

    tables = []
    for name, image in images.items():
        table = get_clusters_table(image, THRESHOLD, two_sided=True)
        table = table[pd.to_numeric(table["Cluster Size (mm3)"], errors="coerce").notna()]  # without sub-peaks
        tables.append(
            pd.DataFrame(
                {
                    "run": name,
                    "x_mm": table["X"],
                    "y_mm": table["Y"],
                    "z_mm": table["Z"],
                    "peak_weight": table["Peak Stat"],
                    "size_mm3": table["Cluster Size (mm3)"],
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def read_image(path: Path) -> Nifti1Image:
    """Read a compressed NIfTI image; raise BadRecord unless it has finite values and the size of a brain."""
    from nibabel import Nifti1Image

    packed = read_bounded(path, MAX_BYTES)
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadRecord(f"larger than {MAX_BYTES / MEBIBYTE:g} MiB when uncompressed")
        image = Nifti1Image.from_bytes(content)
        sides, models = image.shape[:3], image.shape[3:]
        if len(sides) < 3 or len(models) > 1 or min(sides) < 2 or 0 in models or np.prod(image.shape) > MAX_BYTES:
            raise BadRecord(f"invalid shape {image.shape}")
        values = np.asarray(image.dataobj, dtype=np.float32)
        sizes = np.linalg.norm(image.affine[:3, :3], axis=0)  # the comparisons below are False for NaN
        if not ((sizes > 0.1) & (sizes < 100)).all() or not (np.abs(image.affine) < 1e4).all():
            raise BadRecord("voxel sizes must be between 0.1 and 100 mm")
        if abs(np.linalg.det(image.affine[:3, :3] / sizes)) < 0.1 or not np.isfinite(values).all():
            raise BadRecord("values must be finite and the axes linearly independent")
    except Exception as problem:  # a damaged header fails in many ways
        raise BadRecord(f"{path.name}: invalid image: {printable(str(problem))}") from problem
    return Nifti1Image(values, image.affine)


def _caption(name: str, image: Nifti1Image) -> str:
    selected = int((np.abs(np.asarray(image.dataobj)) > THRESHOLD).sum())
    return f"{name}: {selected:,} voxels"


def _limit(image: Nifti1Image) -> float:
    """Return the upper end of an image's color scale; 1 for an image of zeros."""
    return float(np.abs(np.asarray(image.dataobj)).max()) or 1.0


def _colors() -> Any:
    """Return a blue-red color map without white, so that small non-zero weights are visible."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    whole = mpl.colormaps["RdBu_r"](np.linspace(0, 1, 256))
    return ListedColormap(np.concatenate([whole[:96], whole[160:]]))


@styled
def draw_slices(
    study: RecordedStudy,
    images: dict[str, Nifti1Image],
    mask: Nifti1Image | None = None,
    truth: Nifti1Image | None = None,
) -> Figure:
    """Draw the same axial slices of all runs: those in which the first image has the most weight."""
    rows = {name: (_caption(name, image), image) for name, image in images.items()}
    if truth is not None:
        rows = {"truth": ("active regions (the truth)", truth), **rows}
    (_, first), *_ = rows.values()
    weight = np.abs(np.asarray(first.dataobj)).sum(axis=(0, 1))
    planes = sorted(np.argsort(-weight, kind="stable")[:SLICES].tolist())
    inside = np.asarray((mask or first).dataobj) != 0
    lines = -(-len(rows) // 2)
    figure, axes = new_figure(0.75 + 0.95 * lines, lines, 2)
    for spare in axes.flat[len(rows) :]:
        spare.set_axis_off()
    heights = [float(first.affine[2, 2] * plane + first.affine[2, 3]) for plane in planes]
    for axis, (caption, image) in zip(axes.flat, rows.values(), strict=False):
        values = np.asarray(image.dataobj)
        shown = np.where(np.abs(values) > THRESHOLD, values / _limit(image), np.nan)
        behind = _side_by_side(np.where(inside, 0.88, 1.0), inside, planes, gap=1.0)
        axis.imshow(behind, origin="lower", cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        drawn = axis.imshow(
            _side_by_side(shown, inside, planes), origin="lower", cmap=_colors(), vmin=-1, vmax=1,
            interpolation="nearest",
        )  # fmt: skip
        width = behind.shape[1] / len(planes)
        axis.set_xticks(
            [(i + 0.5) * width - 1 for i in range(len(planes))], [f"z = {z:g} mm" for z in heights], fontsize=6
        )
        axis.set_yticks([])
        axis.tick_params(length=0, pad=1)
        axis.spines[:].set_visible(False)
        axis.set_title(for_figure(caption), fontsize=7, pad=2)
    bar = figure.colorbar(drawn, ax=axes, location="bottom", fraction=0.03, pad=0.03, aspect=40, ticks=[-1, 0, 1])
    bar.set_label("share of the run's largest weight (blue: house, red: face)", fontsize=7)
    add_title(figure, study)
    return figure


def _side_by_side(values: np.ndarray, inside: np.ndarray, planes: list[int], gap: float = np.nan) -> np.ndarray:
    """Return slices side by side, cropped to the brain, as an image with the front at the top."""
    used = np.argwhere(inside.any(axis=2)) if inside.any() else np.argwhere(np.ones(inside.shape[:2]))
    (left, back), (right, front) = used.min(axis=0), used.max(axis=0)
    box = values[left : right + 1, back : front + 1]
    empty = np.full((1, box.shape[1]), gap)
    return np.concatenate([part for plane in planes for part in (box[:, :, plane], empty)]).T


def _page(image: Nifti1Image, title: str, background: Any) -> bytes:
    from nilearn.plotting import view_img

    limit = _limit(image)
    view = view_img(
        image, threshold=THRESHOLD, bg_img=background, title=title, cmap=_colors(),
        vmin=-limit, vmax=limit, symmetric_cmap=True, black_bg=False, resampling_interpolation="nearest",
    )  # fmt: skip
    # Without an icon in the page, browsers request one.
    return view.get_standalone().replace("<head>", '<head><link rel="icon" href="data:,">', 1).encode()
