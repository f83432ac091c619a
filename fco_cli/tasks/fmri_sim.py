"""Simulated fMRI sessions: a real brain's shape, known active regions, no download."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.streams import MEANS, TRAINING, VALIDATION, generator
from fco_cli.tasks.brain import BrainTask, classification, save_image, support, to_image
from fco_cli.tasks.metrics import support_recovery

if TYPE_CHECKING:
    from nibabel import Nifti1Image

# Centres (mm, MNI space) and sign of the active regions, about where faces (+) and houses (-) are seen in people:
# fusiform and occipital face areas, parahippocampal place area and transverse occipital sulcus, on both sides.
REGIONS = tuple(
    (side * x, y, z, sign)
    for side in (-1, 1)
    for x, y, z, sign in ((42, -50, -20, 1), (40, -80, -8, 1), (22, -36, -12, -1), (30, -84, 24, -1))
)
VOXELS_OF_1_MM = 1_870_000  # in the brain mask, about
FWHM_TO_SIGMA = 1 / np.sqrt(8 * np.log(2))


@dataclass(kw_only=True)
class FmriSim(BrainTask):
    """scan = (label's sign) * effect / 2 * pattern + subject's shift + session's shift + smooth noise.

    The pattern is a bump in each active region, 1 at its centre. Shifts and noise are Gaussian fields of the given
    smoothness, the noise of variance 1. Validation is on further subjects.
    """

    train_subjects: int
    validation_subjects: int
    sessions: int  # of every subject
    scans: int  # of every session, half of them faces
    resolution: int  # mm; 8 gives 3,666 voxels
    region_size: float  # mm; the diameter of an active region, where its bump falls to a half
    effect: float  # difference between faces and houses at a region's centre, in standard deviations of the noise
    shift: float  # standard deviation of the subjects' and of the sessions' shifts
    smoothness: float  # mm; full width at half maximum of the smoothing kernel

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("train_subjects", "validation_subjects", "sessions"):
            require(getattr(self, key) >= 1, f"task.{key}", getattr(self, key), "a whole number >= 1")
        require(self.scans >= 2 and self.scans % 2 == 0, "task.scans", self.scans, "an even number >= 2")
        require(3 <= self.resolution <= 16, "task.resolution", self.resolution, "from 3 to 16 (mm)")
        for key in ("region_size", "effect", "shift", "smoothness"):
            value = getattr(self, key)
            require(0 <= value <= 1e6, f"task.{key}", value, "from 0 to 1e6")

    @property
    def clients_available(self) -> int:
        return self.train_subjects * self.sessions

    def bytes_needed(self, dtype: str) -> int:
        sessions = (self.train_subjects + self.validation_subjects) * self.sessions
        return sessions * self.scans * VOXELS_OF_1_MM // self.resolution**3 * np.dtype(dtype).itemsize

    def mask(self) -> Nifti1Image:
        return brain_mask(self.resolution)

    def build(self, seed: int, dtype: str) -> TaskData:
        pattern = active_pattern(self.mask(), self.region_size)
        require(bool(pattern.any()), "task.region_size", self.region_size, "large enough to hold a voxel")
        training = self._draw(seed, TRAINING, range(self.train_subjects), pattern, dtype)
        unseen = range(self.train_subjects, self.train_subjects + self.validation_subjects)
        held_out = self._draw(seed, VALIDATION, unseen, pattern, dtype)
        return classification(training, held_out, truth=np.append(pattern, 0.0))

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        return super().metrics(problem, w) | support_recovery(support(w), problem.truth[:-1] != 0)

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """Also truth.nii.gz: the pattern that was put into the scans."""
        super().export(problem, model, folder)
        assert problem.truth is not None
        save_image(to_image(problem.truth[:-1], self.mask()), folder / "truth.nii.gz")

    def _draw(self, seed: int, stream: int, subjects: range, pattern: Array, dtype: str) -> ClientData:
        field = SmoothField(self.mask(), self.smoothness)
        labels = np.repeat([1.0, 0.0], self.scans // 2)
        signal = self.effect * (labels - 0.5)[:, None] * pattern
        x = np.empty((len(subjects) * self.sessions, self.scans, len(pattern)), dtype)

        def draw_session(m: int) -> None:
            random = generator(seed, stream, m)
            subject = generator(seed, MEANS, subjects[m // self.sessions])
            shift = self.shift * (field.draw(subject, 1) + field.draw(random, 1))
            x[m] = signal + shift + field.draw(random, self.scans)

        with ThreadPoolExecutor() as pool:  # each session has its own generator
            list(pool.map(draw_session, range(len(x))))
        return ClientData.of_equal_clients(x, np.tile(labels, (len(x), 1)).astype(dtype))


@functools.lru_cache(maxsize=4)
def brain_mask(resolution: int) -> Nifti1Image:
    """The brain of the MNI152 template that nilearn ships."""
    from nilearn.datasets import load_mni152_brain_mask

    return load_mni152_brain_mask(resolution=resolution)


def active_pattern(mask: Nifti1Image, diameter: float) -> Array:
    """A Gaussian bump in each region, cut where it falls below a half: [voxels]."""
    inside = np.asarray(mask.dataobj) > 0
    places = np.argwhere(inside) @ mask.affine[:3, :3].T + mask.affine[:3, 3]  # mm
    pattern = np.zeros(len(places))
    for *centre, sign in REGIONS:
        distance = np.linalg.norm(places - centre, axis=1)
        bump = np.exp2(-((2 * distance / diameter) ** 2)) if diameter > 0 else np.zeros(len(places))
        pattern += sign * np.where(bump >= 0.5, bump, 0)
    return pattern


class SmoothField:
    """Gaussian noise of variance 1 in the brain, smoothed by a kernel of the given full width at half maximum (mm)."""

    def __init__(self, mask: Nifti1Image, width: float) -> None:
        from scipy.ndimage import gaussian_filter

        self.inside = np.asarray(mask.dataobj) > 0
        self.sigma = width * FWHM_TO_SIGMA / np.abs(mask.affine[0, 0])  # in voxels
        # Smoothing is a weighted sum along each of three axes; the squares of its weights add up to the variance left.
        impulse = np.zeros(2 * int(4 * self.sigma + 1) + 1)
        impulse[len(impulse) // 2] = 1
        self.deviation = (gaussian_filter(impulse, self.sigma) ** 2).sum() ** 1.5

    def draw(self, random: np.random.Generator, count: int) -> Array:
        """[count, voxels]."""
        from scipy.ndimage import gaussian_filter

        noise = random.standard_normal((count, *self.inside.shape))
        smooth = gaussian_filter(noise, (0, self.sigma, self.sigma, self.sigma), mode="wrap")
        return smooth[:, self.inside] / self.deviation
