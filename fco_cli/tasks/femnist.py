"""Federated EMNIST under constraints (section "Constrained Federated Optimization for Federated EMNIST")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fco_cli.data.download import ARCHIVES, fetch
from fco_cli.data.format import FederatedData, check_complete, check_labels
from fco_cli.data.readers import fingerprint, read
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Softmax
from fco_cli.problem.problem import TaskData
from fco_cli.problem.streams import TRAINING, generator
from fco_cli.tasks.images import ImageClassification

PIXELS = 28 * 28


@dataclass(kw_only=True)
class Femnist(ImageClassification):
    """Classification of handwritten characters, 10 digits or 62 digits and letters; a client is a writer."""

    name: str = "femnist"
    classes: int
    client_fraction: float  # share of the writers; 0.1 in the paper for the digits
    writers: str = "drawn"  # drawn: at random, by the seed; first: the first by name
    data_dir: str | None = None  # a TFF or LEAF folder, or an .npz file; null: download

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.classes in ARCHIVES, "task.classes", self.classes, "10 or 62")
        require(0 < self.client_fraction <= 1, "task.client_fraction", self.client_fraction, "above 0, at most 1")
        require(self.writers in ("drawn", "first"), "task.writers", self.writers, "drawn or first")

    def missing_data(self) -> str | None:
        archive = ARCHIVES[self.classes]
        if self.data_dir is not None or archive.folder.exists():
            return None
        return f"{archive.url} has not been downloaded (to {archive.folder})"

    def contents(self) -> dict[str, str]:
        if self.data_dir is None:
            return {"data_dir": ARCHIVES[self.classes].sha256}
        some = self._select_writers(seed=0)  # the seed does not affect the memory check
        return {"data_dir": fingerprint(Path(self.data_dir), choose=some)}

    def build(self, seed: int, dtype: str) -> TaskData:
        data = self._read(seed)
        if data.split is None or not {"train", "test"} <= set(np.unique(data.split)):
            raise UserError(f"{data.source}: must have rows of both splits, train and test")
        if data.x.shape[1] != PIXELS:
            raise UserError(f"{data.source}: x has {data.x.shape[1]} columns, must be {PIXELS}: images of 28 x 28")
        check_complete(data, "every pixel must have a value")
        check_labels(data, Softmax())
        if data.y.max() >= self.classes:
            row = int(np.argmax(data.y >= self.classes))
            data.fail(row, f"label {data.y[row]:g}; labels must be below task.classes={self.classes}")
        splits = [data.split == part for part in ("train", "test")]
        training, test = (data.take(rows).as_clients(dtype) for rows in splits)
        for part in (training, test):
            ink(part.x, data)
        return self.with_own_model(training, replace(test, trained_as=data.training_index(*splits)), self.classes, seed)

    def _read(self, seed: int) -> FederatedData:
        """Read the rows of the selected writers."""
        source = fetch(ARCHIVES[self.classes]) if self.data_dir is None else Path(self.data_dir)
        return read(source, choose=self._select_writers(seed))

    def _select_writers(self, seed: int) -> Writers:
        return Writers(self.client_fraction, seed if self.writers == "drawn" else None)


@dataclass(frozen=True)
class Writers:
    """Selection of writers: at random by a seed or, without a seed, the first by name."""

    fraction: float
    seed: int | None

    def __call__(self, writers: list[str]) -> list[str]:
        count = min(max(2, round(self.fraction * len(writers))), len(writers))
        if self.seed is None:
            return sorted(writers)[:count]
        chosen = generator(self.seed, TRAINING).choice(len(writers), count, replace=False)
        return [writers[m] for m in sorted(chosen)]


def ink(pixels: Array, data: FederatedData) -> None:
    """Invert the images in place: from background 1 (255 for integers) and ink 0 to background 0 and ink 1."""
    if data.x.dtype.kind in "iu":
        pixels /= 255
    if pixels.min() < 0 or pixels.max() > 1:
        raise UserError(f"{data.source}: pixels must be from 0 to 1, or whole numbers from 0 to 255")
    np.subtract(1, pixels, out=pixels)
