"""Brain maps: the weights of several runs side by side, from the weights.nii.gz in their records."""

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

from fco_cli.files import write_atomically
from fco_cli.reporting.gate import MEBIBYTE, BadRecord, read_bounded
from fco_cli.reporting.text import as_csv, printable

if TYPE_CHECKING:
    from nibabel import Nifti1Image
    from pandas import DataFrame

LARGEST = 256 * MEBIBYTE
THRESHOLD = 1e-4  # smaller weights count as zero, as in the tasks' density
SLICES = 5
COLOURS_MEAN = "red: towards face, blue: towards house, each from its faintest to the run's largest weight"


@contextmanager
def _any_map_will_do() -> Iterator[None]:
    """nilearn warns of maps that are empty, full or of one sign; runs may well leave such maps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@_any_map_will_do()
def brain_maps(
    images: dict[str, Nifti1Image], folder: Path, simulated: bool = False, truth: Nifti1Image | None = None
) -> list[Path]:
    """Draw the runs' weights, by their names: two pictures, a page to explore for each, and a table of clusters.

    Returns the files in `folder`: brain_glass.png, brain_slices.png, brain_clusters.csv and a brain_<name>.html each.
    """
    from nilearn.datasets import load_mni152_template

    folder.mkdir(parents=True, exist_ok=True)
    # The anatomy behind the weights: the template for simulated scans, none for real ones in their native space.
    background = load_mni152_template(resolution=2) if simulated else None
    drawn = {_caption(name, image): image for name, image in images.items()}
    if truth is not None:
        drawn = {"active regions (the truth)": truth, **drawn}
    written = {
        "brain_glass.png": _glass(drawn, native=background is None),
        "brain_slices.png": _slices(drawn, background),
        "brain_clusters.csv": as_csv(clusters(images)).encode(),
    }
    for name, image in images.items():
        page = _page(image, _caption(name, image), background)
        written[f"brain_{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}.html"] = page
    for name, content in written.items():
        write_atomically(folder / name, content)
    return [folder / name for name in written]


def read_weights(record: Path) -> Nifti1Image:
    """A record's weights; of the local baseline's many models the one of median density."""
    from nilearn.image import index_img

    image = read_image(record / "weights.nii.gz")
    if image.ndim == 4:
        size = (np.abs(np.asarray(image.dataobj)) > THRESHOLD).sum(axis=(0, 1, 2))
        image = index_img(image, int(np.argsort(size, kind="stable")[len(size) // 2]))
    return image


@_any_map_will_do()
def clusters(images: dict[str, Nifti1Image]) -> DataFrame:
    """The connected groups of non-zero weights: peak (mm), peak weight and size of each, by run."""
    import pandas as pd
    from nilearn.reporting import get_clusters_table

    tables = []
    for name, image in images.items():
        table = get_clusters_table(image, THRESHOLD, two_sided=True)
        table = table[pd.to_numeric(table["Cluster Size (mm3)"], errors="coerce").notna()]  # peaks within: left out
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
    """A packed NIfTI image of finite numbers, of the size of a brain."""
    from nibabel import Nifti1Image

    packed = read_bounded(path, LARGEST)
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise BadRecord(f"unpacks to more than {LARGEST / MEBIBYTE:g} MiB")
        image = Nifti1Image.from_bytes(content)
        sides, models = image.shape[:3], image.shape[3:]
        if len(sides) < 3 or len(models) > 1 or min(sides) < 2 or 0 in models or np.prod(image.shape) > LARGEST:
            raise BadRecord(f"the shape {image.shape} is not that of a brain")
        values = np.asarray(image.dataobj, dtype=np.float32)
        sizes = np.linalg.norm(image.affine[:3, :3], axis=0)  # NaN is between no bounds
        if not ((sizes > 0.1) & (sizes < 100)).all() or not (np.abs(image.affine) < 1e4).all():
            raise BadRecord("its voxels are not between 0.1 and 100 mm wide")
        if abs(np.linalg.det(image.affine[:3, :3] / sizes)) < 0.1 or not np.isfinite(values).all():
            raise BadRecord("its numbers are not finite, or its axes fall together")
    except Exception as problem:  # a damaged header fails in many ways
        raise BadRecord(f"{path.name}: not a readable image of weights: {printable(str(problem))}") from problem
    return Nifti1Image(values, image.affine)


def _caption(name: str, image: Nifti1Image) -> str:
    chosen = int((np.abs(np.asarray(image.dataobj)) > THRESHOLD).sum())
    return f"{name}: {chosen:,} voxels"


def _limit(image: Nifti1Image) -> float:
    """The end of an image's colour scale; 1 for an image of zeros."""
    return float(np.abs(np.asarray(image.dataobj)).max()) or 1.0


def _colours() -> Any:
    """Blue to red without the white between: the smallest weight that counts can still be seen."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    whole = mpl.colormaps["RdBu_r"](np.linspace(0, 1, 256))
    return ListedColormap(np.concatenate([whole[:96], whole[160:]]))


def _glass(images: dict[str, Nifti1Image], native: bool) -> bytes:
    from nilearn.plotting import plot_glass_brain

    note = f"Weights through a glass brain ({COLOURS_MEAN})"
    if native:
        note += "\nThe scans are in their own space: the outline of the standard brain is only a guide"
    figure, axes = _grid(len(images), height=2.2, note=note)
    for place, (title, image) in zip(axes, images.items(), strict=False):
        limit = _limit(image)
        plot_glass_brain(
            image, axes=place, threshold=THRESHOLD, plot_abs=False, cmap=_colours(), vmin=-limit, vmax=limit,
            colorbar=False, annotate=False,
        )  # fmt: skip
        place.set_title(title, fontsize=11)
    return _png(figure)


def _slices(images: dict[str, Nifti1Image], background: Any) -> bytes:
    """The same axial slices of all runs: those in which the first image has most weight."""
    from nilearn.plotting import plot_stat_map

    first = next(iter(images.values()))
    weight = np.abs(np.asarray(first.dataobj)).sum(axis=(0, 1))
    planes = sorted(np.argsort(-weight, kind="stable")[: max(1, min(SLICES, int((weight > 0).sum())))])
    heights = [float(first.affine[2, 2] * plane + first.affine[2, 3]) for plane in planes]
    listed = ", ".join(f"{height:g}" for height in heights)
    figure, axes = _grid(len(images), height=1.7, note=f"Weights in the slices z = {listed} mm ({COLOURS_MEAN})")
    for place, (title, image) in zip(axes, images.items(), strict=False):
        limit = _limit(image)
        plot_stat_map(
            image, bg_img=background, axes=place, display_mode="z", cut_coords=heights, threshold=THRESHOLD,
            cmap=_colours(), vmin=-limit, vmax=limit, colorbar=False, annotate=False, black_bg=False,
        )  # fmt: skip
        place.set_title(title, fontsize=11)
    return _png(figure)


def _page(image: Nifti1Image, title: str, background: Any) -> bytes:
    from nilearn.plotting import view_img

    limit = _limit(image)
    view = view_img(
        image, threshold=THRESHOLD, bg_img=background, title=title, cmap=_colours(),
        vmin=-limit, vmax=limit, symmetric_cmap=True, black_bg=False, resampling_interpolation="nearest",
    )  # fmt: skip
    return view.get_standalone().encode()


def _grid(count: int, height: float, note: str) -> tuple[Any, list[Any]]:
    """A figure with two panels in a row and a line at its foot."""
    import matplotlib.pyplot as plt

    rows = (count + 1) // 2
    tall = rows * (height + 0.4) + 0.4
    figure, axes = plt.subplots(rows, 2, figsize=(12, tall), squeeze=False)
    figure.subplots_adjust(0.01, 0.4 / tall, 0.99, 1 - 0.3 / tall, wspace=0.02, hspace=0.4 / height)
    figure.text(0.5, 0.05 / tall, note, ha="center", va="bottom", fontsize=9)
    for place in axes.flat[count:]:
        place.set_axis_off()
    return figure, list(axes.flat)


def _png(figure: Any) -> bytes:
    import matplotlib.pyplot as plt

    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    plt.close(figure)
    return content.getvalue()
