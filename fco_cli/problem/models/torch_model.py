"""A `torch.nn.Module` as the model of a problem: its parameters are one flat vector of named blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import row_loop
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.external import ExternalModel
from fco_cli.problem.models.torch_evaluation import AllJobs, Evaluation, JobByJob, Slopes, Tensor
from fco_cli.problem.risk import Evaluation as RiskEvaluation
from fco_cli.problem.risk import observe_loss

EVALUATIONS: dict[str, type[Evaluation]] = {"loop": JobByJob, "vmap": AllJobs}
ROWS_AT_A_TIME = 512  # rows of one pass; bounds the memory of a network's activations


class Rows(NamedTuple):
    """A batch of rows for the functions that kernels call."""

    x: Array
    rows: Array


def layout_of(module: Any) -> Layout:
    """Return the blocks of a module's parameters; vectors, such as biases, are not regularized."""
    trained = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
    return Layout(tuple(Block(name, tuple(p.shape), regularized=p.ndim > 1) for name, p in trained))


class TorchModel(ExternalModel):
    """A module, in the precision of the data; rows [B, ...] of the data have the shape `input_shape`, if given."""

    backend: ClassVar[str] = "fco_cli.algorithms.torch_backend"

    def __init__(
        self,
        module: Any,
        row_shape: tuple[int, ...],
        outputs: int,
        dtype: np.dtype,
        device: str = "cpu",
        stack: str = "loop",
        convex: bool = False,
        is_random: bool = False,
    ) -> None:
        import torch

        self.row_shape, self.outputs, self.dtype = tuple(row_shape), outputs, np.dtype(dtype)
        self.features, self.convex, self.is_random = int(np.prod(row_shape)), convex, is_random
        self.device = torch.device(device)
        self.module = module.to(device=self.device, dtype=getattr(torch, self.dtype.name))
        self.layout = layout_of(self.module)
        parameters = [p.detach().reshape(-1) for p in self.module.parameters() if p.requires_grad]
        self._initial = torch.cat(parameters).cpu().numpy().astype(float)
        self.evaluation: Evaluation = EVALUATIONS[stack](self.module, self.layout, outputs)
        self._lock = threading.RLock()

    def initial(self) -> Array:
        return self._initial.copy()

    def why_no_vmap(self, x: Array) -> str | None:
        """Return the reason for which `torch.func.vmap` does not support the module; None if it does."""
        w = self.to_tensor(np.tile(self._initial, (2, 1)).astype(self.dtype))
        try:
            with self.session():
                self.add_gradients(w, x, np.zeros(1, np.int64), lambda scores, first: None, w)
        except (RuntimeError, ValueError, TypeError) as problem:
            return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        return None

    @contextmanager
    def session(self, training: bool = False) -> Iterator[None]:
        """Evaluate on one thread within the block: the order of sums must not depend on the number of threads."""
        import torch

        with self._lock, ExitStack() as stack:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            stack.callback(torch.set_num_threads, threads)
            if self.module.training != training:
                self.module.train(training)
            if training and self.is_random:
                devices = [self.device] if self.device.type == "cuda" else []
                stack.enter_context(torch.random.fork_rng(devices))
            yield

    def to_tensor(self, array: Array) -> Tensor:
        """Return an array as a tensor on the device, without a copy on the CPU if it is writable."""
        import torch

        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

    def rows(self, x: Array, rows: Any) -> Tensor:
        """Return some rows of the data."""
        return self.to_tensor(x[rows]).reshape(-1, *self.row_shape)

    def add_gradients(self, w: Tensor, x: Array, rows: Array | slice, slopes: Slopes, out: Tensor) -> None:
        """Add gradients [J, P] to `out`: the sum over rows and scores of slope times derivative of the score."""
        self.evaluation.add_gradients(w, self.rows(x, rows), slopes, out)

    # Functions of the protocol `Model`, for kernels that run as Python.

    @staticmethod
    def gather(x: Array, rows: Array, coming: Array, vectors: int) -> Rows:
        """Return a batch of rows."""
        return Rows(x, rows)

    def forward(self, w: Array, batch: Rows, widths: Array) -> Array:
        with self.session():
            scores = self.evaluation.scores(self._parameters(w), self.rows(batch.x, batch.rows))
        return np.array(scores.cpu().numpy(), order="C")

    def backward(self, gradient: Array, w: Array, batch: Rows, widths: Array, slopes: Array) -> None:
        """Add the sum over rows and scores of slope times derivative of the score to `gradient` [J, P]."""

        def given(scores: Array, first: int) -> None:
            scores[:] = slopes[first : first + len(scores)]

        with self.session():
            parameters = self._parameters(w)
            total = parameters.new_zeros(parameters.shape)
            self.add_gradients(parameters, batch.x, batch.rows, given, total)
        gradient[:, : self.layout.size] += total.cpu().numpy()

    def _parameters(self, w: Array) -> Tensor:
        return self.to_tensor(np.ascontiguousarray(w[:, : self.layout.size], dtype=self.dtype))

    # Passes over the rows.

    def risk(self, data: ClientData, weights: Array, loss: Loss) -> TorchRisk:
        return TorchRisk(self, data, weights, loss)

    def own_losses(self, data: ClientData, loss: Loss, models: Array, clients: Array) -> tuple[Array, Array | None]:
        losses, hits = np.zeros(models.shape[:2]), np.zeros(models.shape[:2])
        for i, m in enumerate(clients):
            evaluation = TorchRisk(self, data.client(int(m)), np.ones(1), loss)(models[i], gradient=False)
            losses[i] = evaluation.value
            hits[i] = 0 if evaluation.accuracy is None else evaluation.accuracy
        return losses, hits if loss.classification else None

    def scores(self, data: ClientData, w: Array) -> Array:
        scores = np.empty((len(w), self.outputs, len(data.y)), self.dtype)
        with self.session():
            parameters = self._parameters(w)
            for low in range(0, len(data.y), ROWS_AT_A_TIME):
                part = slice(low, low + ROWS_AT_A_TIME)
                scores[:, :, part] = self.evaluation.scores(parameters, self.rows(data.x, part)).cpu().numpy()
        return scores


class TorchRisk:
    """F of any loss, by passes over the rows. The order of sums does not depend on the number of jobs."""

    def __init__(self, model: TorchModel, data: ClientData, weights: Array, loss: Loss) -> None:
        self.model, self.data, self.loss = model, data, loss
        self._shares = np.repeat(weights / data.sizes, data.sizes)

    @cached_property
    def _loop(self) -> Kernel:
        kernels = {name: self.loss.bound_kernel(name) for name in ("value", "is_correct")}
        return row_loop(self.data, self.model, self.loss, specialize(observe_loss, on_row=kernels))  # type: ignore[arg-type]

    @cached_property
    def _parts(self) -> list[tuple[int, int]]:
        """Ranges of rows: whole clients if the loss couples the rows of a client."""
        if self.loss.client_loss is not None:
            return list(zip(self.data.offsets[:-1].tolist(), self.data.offsets[1:].tolist(), strict=True))
        count = len(self.data.y)
        return [(low, min(low + ROWS_AT_A_TIME, count)) for low in range(0, count, ROWS_AT_A_TIME)]

    def __call__(self, w: Array, gradient: bool = True) -> RiskEvaluation:
        model, data = self.model, self.data
        values, hits, gradients = np.zeros(len(w)), np.zeros(len(w)), np.zeros((len(w) * gradient, w.shape[1]))
        with model.session():
            parameters = model._parameters(w)
            for low, high in self._parts:
                rows = np.arange(low, high)

                def observe(scores: Array, first: int, rows: Array = rows) -> None:
                    jobs = slice(first, first + len(scores))
                    losses = np.empty((len(scores), len(rows)), scores.dtype)
                    self._loop(scores, data.targets, rows, (losses, hits[jobs]), gradient)
                    share = self._shares[rows[0] : rows[-1] + 1]
                    for own, total in zip(losses, range(first, first + len(scores)), strict=True):
                        values[total] += (share * own).sum()
                    scores *= share

                if gradient:
                    out = parameters.new_zeros(parameters.shape)
                    model.add_gradients(parameters, data.x, slice(low, high), observe, out)
                    gradients += out.cpu().numpy()
                else:
                    scores = model.evaluation.scores(parameters, model.rows(data.x, slice(low, high)))
                    observe(np.array(scores.cpu().numpy(), order="C"), 0)
        accuracy = hits / len(data.y) if self.loss.classification else None
        return RiskEvaluation(values, gradients, accuracy)
