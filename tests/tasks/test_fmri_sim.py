"""Simulated fMRI sessions: shapes, active regions and metrics."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from scipy.ndimage import label

from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.tasks.fmri import REGIONS, FmriSim, SmoothField, active_pattern, brain_mask

SETTINGS = {
    "train_subjects": 2, "validation_subjects": 1, "sessions": 3, "scans": 10,
    "resolution": 12, "region_size": 30.0, "effect": 0.8, "shift": 0.5, "smoothness": 10.0,
}  # fmt: skip


def make(**changes: float) -> FmriSim:
    return FmriSim(name="fmri_sim", strength=1e-3, radius=1.0, **(SETTINGS | changes))


def scans(task: FmriSim, seed: int = 0, dtype: str = "float64") -> tuple[Array, Array]:
    """Return the training x [clients, scans, voxels] and y."""
    data = task.build(seed, dtype).to_problem(L1(strength=1e-3)).data
    return data.x.reshape(-1, task.scans, data.x.shape[1]), data.y.reshape(-1, task.scans)


def test_a_session_is_a_client_with_as_many_faces_as_houses() -> None:
    problem = make().build(0, "float32").to_problem(L1(strength=1e-3))
    assert problem.data.clients == make().clients_available == 6
    assert problem.held_out.clients == 3
    assert problem.data.x.dtype == problem.data.y.dtype == np.float32
    assert (np.add.reduceat(problem.data.y, problem.data.offsets[:-1]) == 5).all()


def test_the_default_brain_has_a_few_thousand_voxels_and_eight_regions_of_several() -> None:
    mask = brain_mask(8)
    pattern = active_pattern(mask, 24.0)
    inside = np.asarray(mask.dataobj) > 0
    assert 3000 < inside.sum() < 5000
    volume = np.zeros(mask.shape)
    volume[inside] = pattern
    for sign in (1, -1):
        regions, count = label(sign * volume > 0, structure=np.ones((3, 3, 3)))
        assert count == sum(region[3] == sign for region in REGIONS) == 4
        assert np.bincount(regions.ravel())[1:].min() >= 5
    assert np.abs(pattern[pattern != 0]).min() >= 0.5
    assert np.abs(pattern).max() <= 1


def test_faces_and_houses_differ_by_the_pattern_and_nothing_else() -> None:
    """The mean over many scans of face minus house is effect times pattern, up to the noise of a mean."""
    task = make(train_subjects=4, sessions=30)
    x, y = scans(task)
    difference = x[y == 1].mean(axis=0) - x[y == 0].mean(axis=0)
    error = difference - task.effect * active_pattern(task.mask(), task.region_size)
    expected = np.sqrt(4 / y.size)  # two means of half the scans each, noise of variance 1
    assert np.sqrt((error**2).mean()) == pytest.approx(expected, rel=0.15)


def test_shifts_belong_to_subjects_and_sessions() -> None:
    """With no effect the variance is 1 for the noise and shift^2 each for subject and session."""
    task = make(train_subjects=6, sessions=6, effect=0.0, shift=2.0)
    x, _ = scans(task)
    means = x.mean(axis=1).reshape(6, 6, -1)  # [subject, session, voxel]
    within = means.var(axis=1, ddof=1).mean()
    between = means.mean(axis=1).var(axis=0, ddof=1).mean()
    assert x.var(axis=1, ddof=1).mean() == pytest.approx(1, rel=0.05)
    assert within == pytest.approx(4 + 1 / 10, rel=0.15)
    assert between == pytest.approx(4 + within / 6, rel=0.25)


@pytest.mark.parametrize("width", [0.0, 6.0, 20.0])
def test_noise_has_variance_1_and_neighbors_agree_the_more_the_smoother(width: float) -> None:
    mask = brain_mask(12)
    field = SmoothField(mask, width)
    noise = field.draw(np.random.default_rng(0), 400)
    assert noise.var() == pytest.approx(1, rel=0.03)
    volume = np.full((400, *mask.shape), np.nan)
    volume[:, field.inside] = noise
    neighbors = np.nanmean(volume[:, 1:] * volume[:, :-1])
    sigma = width / 12 / np.sqrt(8 * np.log(2))
    expected = np.exp(-1 / (4 * sigma**2)) if sigma else 0.0  # for a Gaussian kernel; coarse voxels reduce it slightly
    assert neighbors == pytest.approx(expected, abs=0.06)


def test_data_depend_on_the_seed_alone() -> None:
    (first, _), (again, _), (other, _) = scans(make()), scans(make()), scans(make(), seed=1)
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, other).any(axis=(0, 1)).all()


def test_validation_is_on_subjects_that_do_not_train() -> None:
    """A large shift identifies each subject; no validation scan resembles a training subject."""
    task = make(shift=50.0, effect=0.0)
    problem = task.build(0, "float64").to_problem(L1(strength=1e-3))
    x, unseen = problem.data.x, problem.held_out.x
    alike = np.corrcoef(np.concatenate([x, unseen]))[: len(x), len(x) :]
    same_subject = np.corrcoef(x)[: task.sessions * task.scans, : task.sessions * task.scans]
    assert same_subject.mean() > 0.4
    assert np.abs(alike).max() < 0.4


def test_recovery_is_scored_against_the_regions() -> None:
    task = make()
    problem = task.build(0, "float64").to_problem(L1(strength=1e-3))
    truth = problem.truth
    everything = np.ones_like(truth)
    metrics = task.metrics(problem, np.array([truth, everything, 5e-5 * everything]))
    share = (truth != 0).sum() / (len(truth) - 1)
    np.testing.assert_allclose(metrics["precision"], [1, share, 0])
    np.testing.assert_allclose(metrics["recall"], [1, 1, 0])
    np.testing.assert_allclose(metrics["f1"], [1, 2 * share / (1 + share), 0])
    np.testing.assert_allclose(metrics["density"], [share, 1, 0])  # 5e-5 counts as zero


def test_the_record_gets_the_weights_and_the_truth_as_images(tmp_path: Path) -> None:
    task = make()
    problem = task.build(0, "float32").to_problem(L1(strength=1e-3))
    weights = np.random.default_rng(0).standard_normal(len(problem.truth)).astype(np.float32)
    task.export(problem, weights, tmp_path)
    inside = np.asarray(task.mask().dataobj) > 0
    for name, expected in (("weights", weights[:-1]), ("truth", problem.truth[:-1])):
        image = nibabel.load(tmp_path / f"{name}.nii.gz")
        np.testing.assert_array_equal(np.asarray(image.dataobj)[inside], expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [("train_subjects", 0), ("sessions", 0), ("scans", 7), ("resolution", 2), ("effect", -1.0), ("shift", np.inf)],
)
def test_settings_are_checked(key: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"task.{key}: got .*must be"):
        make(**{key: value})


def test_regions_too_small_for_a_voxel_are_refused() -> None:
    with pytest.raises(UserError, match=r"task.region_size: got 1.0, must be large enough"):
        make(region_size=1.0).build(0, "float64").to_problem(L1(strength=1e-3))
