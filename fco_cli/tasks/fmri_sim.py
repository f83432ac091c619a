"""Simulated fMRI sessions in a real brain mask with known active regions; no download."""

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

# Centers (mm, MNI space) and signs of the active regions, near the areas that respond to faces (+) and houses (-):
# fusiform and occipital face areas, parahippocampal place area and transverse occipital sulcus, in both hemispheres.
REGIONS = tuple(
    (side * x, y, z, sign)
    for side in (-1, 1)
    for x, y, z, sign in ((42, -50, -20, 1), (40, -80, -8, 1), (22, -36, -12, -1), (30, -84, 24, -1))
)
VOXELS_OF_1_MM = 1_870_000  # approximate number in the brain mask
FWHM_TO_SIGMA = 1 / np.sqrt(8 * np.log(2))


@dataclass(kw_only=True)
class FmriSim(BrainTask):
    """Task on simulated scans: scan = (label sign) * effect / 2 * pattern + subject shift + session shift + noise.

    The pattern is a bump in each active region, with value 1 at the center. Shifts and noise are Gaussian fields of
    the given smoothness; the noise has variance 1. Validation uses other subjects.
    """

    name: str = "fmri_sim"
    train_subjects: int
    validation_subjects: int
    sessions: int  # per subject
    scans: int  # per session, half of them faces
    resolution: int  # mm; 8 gives 3,666 voxels
    region_size: float  # mm; diameter of an active region (full width at half maximum of its bump)
    effect: float  # difference between faces and houses at the center of a region, in standard deviations of the noise
    shift: float  # standard deviation of the subject shifts and of the session shifts
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
        require(bool(pattern.any()), "task.region_size", self.region_size, "large enough to contain a voxel")
        training = self._draw(seed, TRAINING, range(self.train_subjects), pattern, dtype)
        unseen = range(self.train_subjects, self.train_subjects + self.validation_subjects)
        held_out = self._draw(seed, VALIDATION, unseen, pattern, dtype)
        return classification(training, held_out, truth=np.append(pattern, 0.0))

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        return super().metrics(problem, w) | support_recovery(support(w), problem.truth[:-1] != 0)

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """Write also truth.nii.gz: the pattern of the active regions."""
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
    """Return the MNI152 brain mask of nilearn."""
    from nilearn.datasets import load_mni152_brain_mask

    return load_mni152_brain_mask(resolution=resolution)


def active_pattern(mask: Nifti1Image, diameter: float) -> Array:
    """Return a Gaussian bump in each region, truncated at half maximum: [voxels]."""
    inside = np.asarray(mask.dataobj) > 0
    positions = np.argwhere(inside) @ mask.affine[:3, :3].T + mask.affine[:3, 3]  # mm
    pattern = np.zeros(len(positions))
    for *center, sign in REGIONS:
        distance = np.linalg.norm(positions - center, axis=1)
        bump = np.exp2(-((2 * distance / diameter) ** 2)) if diameter > 0 else np.zeros(len(positions))
        pattern += sign * np.where(bump >= 0.5, bump, 0)
    return pattern


class SmoothField:
    """Gaussian field of variance 1 in the brain mask; `width` is the full width at half maximum of the kernel (mm)."""

    def __init__(self, mask: Nifti1Image, width: float) -> None:
        from scipy.ndimage import gaussian_filter

        self.inside = np.asarray(mask.dataobj) > 0
        self.sigma = width * FWHM_TO_SIGMA / np.abs(mask.affine[0, 0])  # in voxels
        # The kernel is separable over three axes; the variance after smoothing is the sum of its squared weights.
        impulse = np.zeros(2 * int(4 * self.sigma + 1) + 1)
        impulse[len(impulse) // 2] = 1
        self.deviation = (gaussian_filter(impulse, self.sigma) ** 2).sum() ** 1.5

    def draw(self, random: np.random.Generator, count: int) -> Array:
        """Draw `count` samples of the field: [count, voxels]."""
        from scipy.ndimage import gaussian_filter

        noise = random.standard_normal((count, *self.inside.shape))
        smooth = gaussian_filter(noise, (0, self.sigma, self.sigma, self.sigma), mode="wrap")
        return smooth[:, self.inside] / self.deviation
