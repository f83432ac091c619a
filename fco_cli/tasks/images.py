"""Image classification by softmax regression or a network.

Digits: handwritten digits of scikit-learn, partitioned into clients with label skew; no download.
Femnist: Federated EMNIST (section "Constrained Federated Optimization for Federated EMNIST" of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fco_cli.data.format import FederatedData, check_complete, check_labels
from fco_cli.data.published import ARCHIVES, fetch
from fco_cli.data.readers import fingerprint, read
from fco_cli.data.splits import by_labels
from fco_cli.errors import UserError, require
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Softmax
from fco_cli.problem.models.linear import Linear, Model
from fco_cli.problem.models.network import Network
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.streams import TRAINING, VALIDATION, generator
from fco_cli.tasks.base import Task
from fco_cli.tasks.metrics import density

CLASSES = 10  # of Digits
PIXELS = 28 * 28  # of Femnist


@dataclass(kw_only=True)
class ImageClassification(Task):
    """Softmax cross-entropy with a ReLU network; `hidden` are the hidden layer widths, empty for a linear model.

    The configuration group `model` can replace this model.
    """

    hidden: list[int] = field(default_factory=list)  # widths of hidden layers; []: softmax regression

    main_metric = "validation_accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        network = "null or glorot: hidden layers cannot be trained from zeros"
        require(not self.hidden or self.start != "zeros", "task.start", self.start, network)
        require(
            all(width >= 1 for width in self.hidden), "task.hidden", self.hidden, "whole numbers >= 1, or an empty list"
        )

    def with_own_model(self, training: ClientData, held_out: ClientData, classes: int, seed: int) -> TaskData:
        """Return the task data with a linear model, or a network if `hidden` is set."""
        features = training.x.shape[1]
        model: Model = Linear(features, classes)
        if self.hidden:
            model = Network(features, tuple(self.hidden), classes, seed)
        return TaskData(training, model, Softmax(), held_out)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        return {"density": density(w[:, problem.layout.regularized] != 0)}


@dataclass(kw_only=True)
class Digits(ImageClassification):
    """Classification of 8 x 8 images, assigned to clients by a Dirichlet draw per class (Hsu, Qi and Brown, 2019)."""

    name: str = "digits"
    clients: int  # number of simulated clients
    concentration: float  # of the Dirichlet distribution; small values give skewed clients
    test_fraction: float  # share of the rows that is held out

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.clients <= 500, "task.clients", self.clients, "from 2 to 500: there are 1797 images")
        require(0 < self.concentration < np.inf, "task.concentration", self.concentration, "a number > 0")
        require(0 < self.test_fraction < 0.9, "task.test_fraction", self.test_fraction, "above 0, below 0.9")

    @property
    def clients_available(self) -> int:
        return self.clients

    def build(self, seed: int, dtype: str) -> TaskData:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x, y = (x / 16).astype(dtype), y.astype(dtype)
        order = generator(seed, VALIDATION).permutation(len(y))
        held_out = round(self.test_fraction * len(y))
        test, rows = order[:held_out], order[held_out:]
        owner = by_labels(y[rows], self.clients, self.concentration, seed)
        rows = rows[np.argsort(owner, kind="stable")]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=self.clients))])
        training = ClientData(x[rows], y[rows], offsets)
        return self.with_own_model(training, ClientData(x[test], y[test], np.array([0, held_out])), CLASSES, seed)


@dataclass(kw_only=True)
class Femnist(ImageClassification):
    """Classification of handwritten characters, 10 digits or 62 digits and letters; a client is a writer."""

    name: str = "femnist"
    classes: int  # 10 (digits) or 62 (digits and letters)
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
