"""Brain maps from records that are written here."""

from __future__ import annotations

import gzip
from pathlib import Path

import matplotlib as mpl
import nibabel
import numpy as np
import pandas as pd
import pytest

from fco_cli.reporting.brain import brain_maps, clusters, read_weights
from fco_cli.reporting.gate import BadRecord

mpl.use("Agg")

SHAPE = (12, 14, 10)
AFFINE = np.array([[8.0, 0, 0, -48], [0, 8, 0, -70], [0, 0, 8, -40], [0, 0, 0, 1]])


def sparse() -> np.ndarray:
    """Two clusters: four voxels of weight up to 3, and one of weight -2."""
    weights = np.zeros(SHAPE, np.float32)
    weights[3:5, 4:6, 4] = [[1, 3], [1, 1]]
    weights[9, 9, 7] = -2
    weights[6, 6, 6] = 5e-5  # counts as zero
    return weights


def image(weights: np.ndarray) -> nibabel.Nifti1Image:
    return nibabel.Nifti1Image(weights, AFFINE)


def test_clusters_have_their_peak_weight_and_size() -> None:
    table = clusters({"a": image(sparse())})
    assert table["run"].tolist() == ["a", "a"]
    found = table.sort_values("peak_weight").reset_index(drop=True)
    np.testing.assert_allclose(found["peak_weight"].astype(float), [-2, 3])
    np.testing.assert_allclose(found["size_mm3"].astype(float), [8**3, 4 * 8**3])
    peaks = found[["x_mm", "y_mm", "z_mm"]].to_numpy(float)
    np.testing.assert_allclose(
        peaks, [AFFINE[:3, :3] @ (9, 9, 7) + AFFINE[:3, 3], AFFINE[:3, :3] @ (3, 5, 4) + AFFINE[:3, 3]]
    )


def test_maps_of_several_runs(tmp_path: Path) -> None:
    """Sparse, and nothing at all: a map of zeros is no mishap."""
    images = {"FedDualAvg": image(sparse()), "FedAvg(∂)": image(np.zeros(SHAPE, np.float32))}
    written = brain_maps(images, tmp_path / "report" / "brain")
    names = ["brain_glass.png", "brain_slices.png", "brain_clusters.csv", "brain_feddualavg.html", "brain_fedavg.html"]
    assert [path.name for path in written] == names
    assert all(path.parent == tmp_path / "report" / "brain" for path in written)
    for path in written[:2]:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert pd.read_csv(written[2])["run"].tolist() == ["FedDualAvg"] * 2
    page = written[3].read_text()
    assert "FedDualAvg: 5 voxels" in page
    assert not [line for line in page.splitlines() if "<script src=" in line]  # a page that needs no network


def test_simulated_scans_are_drawn_with_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict] = []
    for name in ("_glass", "_slices"):
        monkeypatch.setattr(f"fco_cli.reporting.brain.{name}", lambda images, *_, **__: drawn.append(images) or b"")
    monkeypatch.setattr("fco_cli.reporting.brain._page", lambda *_: b"")
    brain_maps({"FedDualAvg": image(sparse())}, tmp_path / "maps", True, image((sparse() > 1).astype(np.float32)))
    assert [list(images) for images in drawn] == [["active regions (the truth)", "FedDualAvg: 5 voxels"]] * 2


def test_of_the_local_models_the_one_of_median_density_is_shown(tmp_path: Path) -> None:
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
def test_an_unreadable_image_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("fco_cli.reporting.brain.LARGEST", 2**20)
    (tmp_path / "weights.nii.gz").write_bytes(content)
    with pytest.raises(BadRecord, match=r"weights.nii.gz: not a readable image"):
        read_weights(tmp_path)
