"""Federated sparse logistic regression on fMRI scans (section 5.3 and appendix B.4 of the paper).

Fmri: scans of Haxby et al. (2001), prepared by haxby.py. FmriSim: simulated scans with known active regions; no
download.
"""

from __future__ import annotations

import functools
import gzip
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.errors import require
from fco_cli.files import write_atomically
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Logistic
from fco_cli.problem.models.linear import Linear, Model
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.streams import MEANS, TRAINING, VALIDATION, generator
from fco_cli.tasks.base import Task, require_own_layout
from fco_cli.tasks.haxby import Prepared, missing_file, prepare
from fco_cli.tasks.metrics import density, support_recovery

if TYPE_CHECKING:
    from nibabel import Nifti1Image

THRESHOLD = 1e-4  # smaller weights count as zero (appendix B.4)
SUBJECTS = range(1, 7)
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
class BrainTask(Task):
    """Classification of scans into face (1) and house (0); a client is a session of one subject."""

    main_metric = "validation_accuracy"

    @abstractmethod
    def mask(self) -> Nifti1Image:
        """Return the brain mask; its voxels are the features, in the order of the maskers of nilearn."""

    def check_model(self, own: Model, chosen: Model) -> None:
        require_own_layout(self, own, chosen)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        return {"density": density(support(w))}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """Write weights.nii.gz and mask.nii.gz.

        The weights image is 4-D, with one volume per client, for the local baseline. The mask defines the order of the
        voxels in the record, which is that of nilearn.
        """
        mask = self.mask()
        save_image(to_image(model[..., :-1], mask), folder / "weights.nii.gz")
        save_image(to_image(np.ones(model.shape[-1] - 1, np.uint8), mask), folder / "mask.nii.gz")


def support(w: Array) -> Array:
    """Return the mask [J, voxels] of non-zero weights of models [J, P]."""
    return np.abs(w[:, :-1]) > THRESHOLD


def classification(training: ClientData, held_out: ClientData, truth: Array | None = None) -> TaskData:
    """Return the data of a logistic regression; `held_out` are the rows of other subjects."""
    return TaskData(training, Linear(training.x.shape[1]), Logistic(), held_out, truth)


def to_image(voxels: Array, mask: Nifti1Image) -> Nifti1Image:
    """Return values [voxels] as a 3-D image, or [volumes, voxels] as a 4-D image; 0 outside the mask."""
    from nilearn.masking import unmask

    image = unmask(voxels, mask)
    image.header.set_data_dtype(voxels.dtype)
    return image


def save_image(image: Nifti1Image, path: Path) -> None:
    """Write a .nii.gz file; equal images give equal bytes."""
    write_atomically(path, gzip.compress(image.to_bytes(), mtime=0))


@dataclass(kw_only=True)
class Fmri(BrainTask):
    """Task on the scans of Haxby et al. (2001); a client is a run of a subject with face or house scans."""

    name: str = "fmri"
    data_dir: str | None  # data folder of nilearn; null: the default of nilearn
    train_subjects: list[int]  # numbers of the subjects, from 1
    validation_subjects: list[int]  # numbers of the subjects that are held out

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("train_subjects", "validation_subjects"):
            subjects = getattr(self, key)
            is_valid = subjects and len(set(subjects)) == len(subjects) and set(subjects) <= set(SUBJECTS)
            require(bool(is_valid), f"task.{key}", subjects, "a list of different numbers from 1 to 6")
        common = sorted(set(self.train_subjects) & set(self.validation_subjects))
        require(not common, "task.validation_subjects", self.validation_subjects,
                f"different from the training subjects; {common} are training subjects")  # fmt: skip

    def missing_data(self) -> str | None:
        return missing_file(self.data_dir, [*self.train_subjects, *self.validation_subjects])

    def mask(self) -> Nifti1Image:
        return self._prepared().mask

    def build(self, seed: int, dtype: str) -> TaskData:
        """Build the task; the data do not depend on the seed."""
        prepared = self._prepared()
        training, held_out = (prepared.of(s, dtype) for s in (self.train_subjects, self.validation_subjects))
        return classification(training, held_out)

    def _prepared(self) -> Prepared:
        return prepare(self.data_dir, [*self.train_subjects, *self.validation_subjects])


@dataclass(kw_only=True)
class FmriSim(BrainTask):
    """Task on simulated scans: scan = (label sign) * effect / 2 * pattern + subject shift + session shift + noise.

    The pattern is a bump in each active region, with value 1 at the center. Shifts and noise are Gaussian fields of
    the given smoothness; the noise has variance 1. Validation uses other subjects.
    """

    name: str = "fmri_sim"
    train_subjects: int  # number of subjects
    validation_subjects: int  # number of subjects that are held out
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
