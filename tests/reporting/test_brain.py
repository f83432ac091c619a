"""Tests of brain maps."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import matplotlib as mpl
import nibabel
import numpy as np
import pandas as pd
import pytest

from fco_cli.reporting.figures.brain import brain_maps, clusters, draw_slices, read_weights
from fco_cli.reporting.records.studies import collect
from fco_cli.typed_files import BadRecord

mpl.use("Agg")

SHAPE = (12, 14, 10)
AFFINE = np.array([[8.0, 0, 0, -48], [0, 8, 0, -70], [0, 0, 8, -40], [0, 0, 0, 1]])


def sparse() -> np.ndarray:
    """Return an image with two clusters: four voxels of weight up to 3, and one of weight -2."""
    weights = np.zeros(SHAPE, np.float32)
    weights[3:5, 4:6, 4] = [[1, 3], [1, 1]]
    weights[9, 9, 7] = -2
    weights[6, 6, 6] = 5e-5  # counts as zero
    return weights


def image(weights: np.ndarray) -> nibabel.Nifti1Image:
    return nibabel.Nifti1Image(weights, AFFINE)


def test_clusters_table_has_peaks_and_sizes() -> None:
    table = clusters({"a": image(sparse())})
    assert table["run"].tolist() == ["a", "a"]
    found = table.sort_values("peak_weight").reset_index(drop=True)
    np.testing.assert_allclose(found["peak_weight"].astype(float), [-2, 3])
    np.testing.assert_allclose(found["size_mm3"].astype(float), [8**3, 4 * 8**3])
    peaks = found[["x_mm", "y_mm", "z_mm"]].to_numpy(float)
    np.testing.assert_allclose(
        peaks, [AFFINE[:3, :3] @ (9, 9, 7) + AFFINE[:3, 3], AFFINE[:3, :3] @ (3, 5, 4) + AFFINE[:3, 3]]
    )


def test_every_run_has_an_interactive_page() -> None:
    """Test a sparse map and a map of zeros."""
    images = {"FedDualAvg": image(sparse()), "FedAvg(∂)": image(np.zeros(SHAPE, np.float32))}
    written = brain_maps(images)
    assert list(written) == ["brain_clusters.csv", "brain_feddualavg.html", "brain_fedavg.html"]
    assert pd.read_csv(io.BytesIO(written["brain_clusters.csv"]))["run"].tolist() == ["FedDualAvg"] * 2
    page = written["brain_feddualavg.html"].decode()
    assert "FedDualAvg: 5 voxels" in page
    assert not [line for line in page.splitlines() if "<script src=" in line]  # no network access
    assert '<link rel="icon" href="data:,">' in page  # no request for an icon


def test_slices_show_all_runs_and_the_truth(records) -> None:
    records.add()
    (study,) = collect([records.root]).studies
    images = {"FedDualAvg": image(sparse()), "FedAvg(∂)": image(np.zeros(SHAPE, np.float32))}
    truth, mask = image((sparse() > 1).astype(np.float32)), image(np.ones(SHAPE, np.float32))
    figure = draw_slices(study, images, mask=mask, truth=truth)
    titles = [title for axis in figure.axes if (title := axis.get_title("left").strip())]
    assert titles == ["active regions (the truth)", "FedDualAvg: 5 voxels", "FedAvg(∂): 0 voxels"]
    heights = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert "z = -8 mm" in heights  # the fifth plane, which has the true weights
    assert len(heights) == 3
    shown = next(axis for axis in figure.axes if axis.get_title("left").startswith("FedDualAvg")).images[1]
    assert shown.get_clim() == (-1, 1)


def test_local_model_of_median_density_is_shown(tmp_path: Path) -> None:
    models = np.zeros((*SHAPE, 3), np.float32)
    for client, voxels in enumerate((9, 1, 4)):
        models[:voxels, 0, 0, client] = 1
    nibabel.save(image(models), tmp_path / "weights.nii.gz")
    np.testing.assert_array_equal(np.asarray(read_weights(tmp_path).dataobj), models[..., 2])


def packed(weights: np.ndarray, affine: np.ndarray = AFFINE) -> bytes:
    return gzip.compress(nibabel.Nifti1Image(weights, affine).to_bytes())


DAMAGED = {
    "nothing": b"",
    "nonsense": b"nonsense",
    "packed nonsense": gzip.compress(b"nonsense" * 100),
    "half": packed(sparse())[:-100],
    "a bomb": gzip.compress(bytes(2**20 + 1)),
    "two sides": packed(sparse()[0]),
    "a thin side": packed(sparse()[:1]),
    "five axes": packed(sparse()[..., None, None].repeat(2, -1)),
    "not a number": packed(np.full(SHAPE, np.nan, np.float32)),
    "huge voxels": packed(sparse(), AFFINE * 1e6),
    "flat": packed(sparse(), AFFINE[:, [0, 0, 2, 3]]),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_invalid_image_raises_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("fco_cli.reporting.figures.brain.MAX_BYTES", 2**20)
    (tmp_path / "weights.nii.gz").write_bytes(content)
    with pytest.raises(BadRecord, match=r"weights.nii.gz: invalid image"):
        read_weights(tmp_path)
