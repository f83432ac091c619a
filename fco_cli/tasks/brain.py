"""Base class of the fMRI tasks: sparse logistic regression on voxels, and images of the weights."""

from __future__ import annotations

import gzip
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Logistic
from fco_cli.problem.models.linear import Linear, Model
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.base import Task, require_own_layout
from fco_cli.tasks.metrics import density

if TYPE_CHECKING:
    from nibabel import Nifti1Image

THRESHOLD = 1e-4  # smaller weights count as zero (appendix B.4)


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
