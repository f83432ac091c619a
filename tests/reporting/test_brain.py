"""Brain maps from records that are written here."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import nibabel
import numpy as np
import pandas as pd
import pytest

from fco_cli.errors import UserError
from fco_cli.reporting.brain import brain_maps, clusters, read_weights

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


def write_record(folder: Path, weights: np.ndarray, task: str = "fmri") -> Path:
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"task": task}))
    nibabel.save(nibabel.Nifti1Image(weights, AFFINE), folder / "weights.nii.gz")
    return folder


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_record(tmp_path / "dense", np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))


def test_clusters_have_their_peak_weight_and_size(tmp_path: Path) -> None:
    table = clusters({"a": read_weights(write_record(tmp_path / "a", sparse()))})
    assert table["run"].tolist() == ["a", "a"]
    found = table.sort_values("peak_weight").reset_index(drop=True)
    np.testing.assert_allclose(found["peak_weight"].astype(float), [-2, 3])
    np.testing.assert_allclose(found["size_mm3"].astype(float), [8**3, 4 * 8**3])
    peaks = found[["x_mm", "y_mm", "z_mm"]].to_numpy(float)
    np.testing.assert_allclose(
        peaks, [AFFINE[:3, :3] @ (9, 9, 7) + AFFINE[:3, 3], AFFINE[:3, :3] @ (3, 5, 4) + AFFINE[:3, 3]]
    )


def test_maps_of_several_runs(tmp_path: Path, dense: Path) -> None:
    records = {"FedDualAvg": write_record(tmp_path / "sparse", sparse()), "FedAvg(∂)": dense}
    written = brain_maps(records, tmp_path / "report" / "brain")
    names = ["brain_glass.png", "brain_slices.png", "brain_clusters.csv", "brain_feddualavg.html", "brain_fedavg.html"]
    assert [path.name for path in written] == names
    assert all(path.parent == tmp_path / "report" / "brain" for path in written)
    for path in written[:2]:
        assert path.read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(written[2])
    assert (table["run"] == "FedDualAvg").sum() == 2
    page = written[3].read_text()
    assert "FedDualAvg: 5 voxels" in page
    assert not [line for line in page.splitlines() if "<script src=" in line]  # a page that needs no network


def test_simulated_scans_are_drawn_with_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = write_record(tmp_path / "simulated", sparse(), task="fmri_sim")
    nibabel.save(nibabel.Nifti1Image((sparse() > 1).astype(float), AFFINE), record / "truth.nii.gz")
    drawn: list[dict] = []
    for name in ("_glass", "_slices"):
        monkeypatch.setattr(f"fco_cli.reporting.brain.{name}", lambda images, *_, **__: drawn.append(images) or b"")
    brain_maps({"FedDualAvg": record}, tmp_path / "maps")
    assert [list(images) for images in drawn] == [["active regions (the truth)", "FedDualAvg: 5 voxels"]] * 2


def test_a_map_of_zeros_is_no_mishap(tmp_path: Path) -> None:
    written = brain_maps({"zero": write_record(tmp_path / "zero", np.zeros(SHAPE, np.float32))}, tmp_path / "maps")
    assert pd.read_csv(written[2]).empty


def test_of_the_local_models_the_one_of_median_density_is_shown(tmp_path: Path) -> None:
    models = np.zeros((*SHAPE, 3), np.float32)
    for client, voxels in enumerate((9, 1, 4)):
        models[:voxels, 0, 0, client] = 1
    shown = np.asarray(read_weights(write_record(tmp_path / "local", models)).dataobj)
    np.testing.assert_array_equal(shown, models[..., 2])


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    record = write_record(tmp_path / "broken", sparse())
    (record / "weights.nii.gz").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"broken/weights.nii.gz: not a readable image"):
        brain_maps({"broken": record}, tmp_path / "maps")
