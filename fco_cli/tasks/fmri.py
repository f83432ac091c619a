"""Federated sparse logistic regression on fMRI scans (section 5.3 and appendix B.4 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fco_cli.errors import require
from fco_cli.problem.problem import TaskData
from fco_cli.tasks.brain import BrainTask, classification
from fco_cli.tasks.haxby import Prepared, missing_file, prepare

if TYPE_CHECKING:
    from nibabel import Nifti1Image

SUBJECTS = range(1, 7)


@dataclass(kw_only=True)
class Fmri(BrainTask):
    """Task on the scans of Haxby et al. (2001); a client is a run of a subject with face or house scans."""

    name: str = "fmri"
    data_dir: str | None  # data folder of nilearn; null: the default of nilearn
    train_subjects: list[int]
    validation_subjects: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("train_subjects", "validation_subjects"):
            given = getattr(self, key)
            is_valid = given and len(set(given)) == len(given) and set(given) <= set(SUBJECTS)
            require(bool(is_valid), f"task.{key}", given, "a list of different numbers from 1 to 6")
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
