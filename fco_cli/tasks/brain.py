"""What the tasks on brain scans share: sparse logistic regression on voxels, and images of its weights."""

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
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.base import Task
from fco_cli.tasks.metrics import density

if TYPE_CHECKING:
    from nibabel import Nifti1Image

THRESHOLD = 1e-4  # smaller weights count as zero (appendix B.4)


@dataclass(kw_only=True)
class BrainTask(Task):
    """Face (1) against house (0) from a scan's voxels; a client is a session of one subject."""

    main_metric = "validation_accuracy"

    @abstractmethod
    def mask(self) -> Nifti1Image:
        """The image whose voxels are the features, in the order in which nilearn's maskers list them."""

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        return {"density": density(support(w))}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """weights.nii.gz: the weights in their voxels; 4-D, with a volume per client, for the local baseline.

        mask.nii.gz: which voxels there are, in whose order nilearn and this record list them.
        """
        mask = self.mask()
        save_image(to_image(model[..., :-1], mask), folder / "weights.nii.gz")
        save_image(to_image(np.ones(model.shape[-1] - 1, np.uint8), mask), folder / "mask.nii.gz")


def support(w: Array) -> Array:
    """Where the weights of models [J, P] is not zero: [J, voxels]."""
    return np.abs(w[:, :-1]) > THRESHOLD


def classification(training: ClientData, held_out: ClientData, truth: Array | None = None) -> TaskData:
    """Logistic regression, validated on subjects that it has not seen."""
    return TaskData(training, Linear(training.x.shape[1]), Logistic(), held_out, truth)


def to_image(voxels: Array, mask: Nifti1Image) -> Nifti1Image:
    """Values [voxels] as a 3-D image, [volumes, voxels] as a 4-D one; 0 outside the mask, no digit lost."""
    from nilearn.masking import unmask

    image = unmask(voxels, mask)
    image.header.set_data_dtype(voxels.dtype)
    return image


def save_image(image: Nifti1Image, path: Path) -> None:
    """Write .nii.gz, the same bytes for the same image."""
    write_atomically(path, gzip.compress(image.to_bytes(), mtime=0))
