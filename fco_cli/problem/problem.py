"""Optimization problem: data, model, loss, regularizer and mirror map (docs/paper.md, "Problem")."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.curvature import Quadratic, quadratic_of
from fco_cli.problem.data import ClientData, QuadraticQuestion, RemoteRows, SparseRows
from fco_cli.problem.descent import descent, dual_descent, gradient_step
from fco_cli.problem.layout import Array, Layout, Numbers
from fco_cli.problem.losses import Loss
from fco_cli.problem.mirror import (
    Geometry,
    assign_difference,
    distances,
    dual_into_buffer,
    dual_is_primal,
    linear_minimization_oracle,
    primal_in_l1_ball,
    primal_of_all,
    primal_of_stored,
    prox_of_each,
    psi_subgradient,
    psi_value,
    to_dual,
    to_primal,
)
from fco_cli.problem.mirror_maps import Euclidean, Mirror
from fco_cli.problem.models.linear import Model
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.risk import Evaluation, Risk, biases_of, ordered_sum, own_losses, risk_of, scores_of

IN_CACHE = 2**17  # numbers; allocating a larger array takes longer than filling it


@dataclass(frozen=True)
class TaskData:
    """Data, model and loss of a task, without the regularizer, mirror map and weighting, which the run chooses."""

    training: ClientData  # rows of the clients
    model: Model
    loss: Loss
    held_out: ClientData | None = None  # validation rows
    truth: Array | None = None  # [P], if known
    description: Any = None  # task-specific information for writing models
    features: tuple[str, ...] | None = None  # names that a regularizer may refer to
    test: ClientData | None = None  # rows that are evaluated once, at the end of a run
    clients: list[str] | None = None  # names of the training clients

    def with_held_out(self, held_out: Array) -> TaskData:
        """Return the data with the training rows of a mask [N] held out, instead of the previous held-out rows."""
        training, validation = self.training.take(~held_out), self.training.take(held_out)
        owners, clients = self.training.owners, np.arange(self.training.clients)
        trains = np.isin(clients, owners[~held_out])
        trained_as = np.where(trains, np.cumsum(trains) - 1, -1)[np.isin(clients, owners[held_out])]
        validation = replace(validation, trained_as=trained_as)
        return replace(self, training=training, held_out=validation, test=None, clients=None)

    def to_problem(self, regularizer: Regularizer, mirror: Mirror | None = None, weighting: str = "uniform") -> Problem:
        """Return the problem with this regularizer, mirror map (default: Euclidean) and weighting of clients."""
        own = {field.name: getattr(self, field.name) for field in fields(TaskData)}
        return Problem(**own, regularizer=regularizer, weighting=weighting, mirror=mirror or Euclidean())


@dataclass(frozen=True)
class Problem(TaskData):
    """Minimization of F(w) + psi(w) over w, with F = sum_m p_m F_m.

    `regularizer` defines the type of psi; methods take its parameters, which may differ between jobs, as `numbers` [J].
    """

    regularizer: Regularizer = field(kw_only=True)
    weighting: str = field(default="uniform", kw_only=True)
    mirror: Mirror = field(default_factory=Euclidean, kw_only=True)

    def __post_init__(self) -> None:
        self.regularizer.check_layout(self.layout)
        self.mirror.primal(self.regularizer)  # raises UserError if there is no closed form
        if self.loss.client_loss is not None and self.data.row_weights is not None:
            raise UserError(
                f"task.weights: the {self.loss.name} loss does not support row weights; remove task.weights"
            )

    @cached_property
    def data(self) -> ClientData:
        """Training rows; F is their mean loss."""
        return self.training

    @cached_property
    def layout(self) -> Layout:
        return self.model.layout

    @cached_property
    def dtype(self) -> np.dtype:
        return self.data.x.dtype

    @cached_property
    def weights(self) -> Array:
        return self.data.weights(self.weighting)

    @cached_property
    def risk(self) -> Risk:
        """F on the training data."""
        return risk_of(self.data, self.weights, self.model, self.loss)

    def curvature(self, w: Array, columns: Array | None = None) -> Quadratic:
        """Return F, its gradient and its Hessian at models w [J, P].

        `columns` are sorted indices [A] of weights, to which the Hessian is restricted. Raise UserError if the model or
        the loss has no Hessian.
        """
        if isinstance(self.data, RemoteRows):
            question = QuadraticQuestion(self.data, self.weights, w, len(w), columns)
            return self.data.curvature([question])[0]
        return quadratic_of(self.data, self.weights, self.model, self.loss, w, columns).unpacked()

    @cached_property
    def validation(self) -> Risk | None:
        """F on the held-out rows."""
        return None if self.held_out is None else self.risk_on(self.held_out)

    def risk_on(self, data: ClientData) -> Risk:
        """Return F on other rows."""
        if self.model.site_bias:
            return functools.partial(_with_site_biases, self, data)
        return risk_of(data, data.weights(self.weighting), self.model, self.loss)

    def site_biases(self, w: Array) -> Array:
        """Return the site bias of every training client for models w [J, P]: [M, J]."""
        return biases_of(self.data, self.model, self.loss, np.ascontiguousarray(w, dtype=self.dtype))

    def site_biases_on(self, data: ClientData, w: Array) -> Array:
        """Return the site biases of held-out clients: [M, J]; a client without training rows has the weighted mean."""
        biases = self.site_biases(w)
        mean = ordered_sum((self.weights[:, None] * biases)[:, :, None])[:, 0]
        trained_as = np.full(data.clients, -1) if data.trained_as is None else data.trained_as
        return np.vstack([biases, mean])[trained_as]  # index -1 is the mean

    def scores_on(self, data: ClientData, w: Array) -> Array:
        """Return the scores [J, C, N] of held-out rows."""
        scores = scores_of(self.model, data, w)
        if self.model.site_bias:
            scores += np.repeat(self.site_biases_on(data, w), data.sizes, axis=0).T[:, None]
        return scores

    def geometry(self, numbers: Numbers) -> Geometry:
        return Geometry(numbers, self._mirror_numbers, self._table, self._per_weight)

    @cached_property
    def _mirror_numbers(self) -> Numbers:
        return self.mirror.numbers

    @cached_property
    def _table(self) -> Array:
        return self.regularizer.table(self.layout)

    @cached_property
    def _per_weight(self) -> Array:
        return self.regularizer.coordinate_numbers(self.layout, self.features).astype(self.dtype)

    def initial_models(self, numbers: Numbers, start: Array | None = None) -> Array:
        """Return w_0 [J, P]: the model's initial weights or `start`, moved into the domain of h and psi."""
        models = np.tile(self.model.initial(), (len(numbers), 1)) if start is None else start
        models = models.astype(self.dtype)
        for w in models:
            for block in self.layout.blocks:
                if block.regularized:
                    w[self.layout.slices[block.name]] = self.mirror.inside(w[self.layout.slices[block.name]])
        dual = np.empty_like(models)
        self.to_dual(models, self.geometry(numbers), dual)
        self.to_primal(dual, np.zeros(len(numbers)), self.geometry(numbers), models)
        return models

    # Primitives of the algorithms.

    @cached_property
    def descend(self) -> Kernel:
        return self.descend_by(gradient_step)

    def descend_by(self, step: Kernel) -> Kernel:
        """Return `descend` with a replacement for `descent.gradient_step`."""
        return descent(self.data, self.model, self.loss, step)

    @cached_property
    def to_dual(self) -> Kernel:
        return specialize(to_dual, on_block={"dual": self.mirror.dual})

    @cached_property
    def as_dual(self) -> Kernel:
        """`to_dual` that returns its result, without a copy for a Euclidean h."""
        if isinstance(self.mirror, Euclidean):
            return dual_is_primal
        return specialize(dual_into_buffer, to_dual=self.to_dual)

    @cached_property
    def to_primal(self) -> Kernel:
        return specialize(to_primal, on_block={"primal": self.mirror.primal(self.regularizer)})

    @cached_property
    def free_primal(self) -> Kernel:
        """`to_primal` without psi."""
        return specialize(to_primal, on_block={"primal": self.mirror.free_primal})

    @property
    def is_separable(self) -> bool:
        """True if h and psi are coordinate-separable."""
        return self.regularizer.separable and isinstance(self.mirror, Euclidean)

    def _primal(self, with_psi: bool) -> Kernel:
        """Return the primal map of one block."""
        return self.mirror.primal(self.regularizer) if with_psi else self.mirror.free_primal

    def primal_for_batches(self, with_psi: bool) -> Kernel:
        """Return to_primal, or free_primal, restricted to the weights that a batch uses if h and psi are separable."""
        if isinstance(self.data.x, SparseRows) and self.is_separable:
            return specialize(primal_of_stored, on_block={"primal": self._primal(with_psi)})
        return specialize(primal_of_all, to_primal=self.to_primal if with_psi else self.free_primal)

    def descend_dual(self, with_psi: bool, step: Kernel = gradient_step) -> Kernel:
        """Return the gradient step on a dual state, with the gradient at its to_primal or free_primal."""
        by_columns = self._primal(with_psi) if self.is_separable else None
        return dual_descent(self.data, self.model, self.loss, self.primal_for_batches(with_psi), by_columns, step)

    @cached_property
    def prox_of_each(self) -> Kernel:
        """Euclidean prox of a separable psi with a step size per weight."""
        return specialize(prox_of_each, on_block={"prox": self.regularizer.prox})

    @cached_property
    def psi_subgradient(self) -> Kernel:
        return specialize(psi_subgradient, on_block={"subgradient": self.regularizer.subgradient})

    @cached_property
    def linear_minimization_oracle(self) -> Kernel:
        """Linear minimization oracle of psi's constraint set."""
        return specialize(linear_minimization_oracle, on_block={"lmo": self.regularizer.lmo})

    @property
    def primal_in_l1_ball(self) -> Kernel:
        """Prox of psi = l1 restricted to an l1 ball around a given point."""
        return primal_in_l1_ball

    # Metrics.

    @cached_property
    def _psi(self) -> Kernel:
        return specialize(psi_value, on_block={"value": self.regularizer.value})

    @cached_property
    def _prox(self) -> Kernel:
        return specialize(to_primal, on_block={"primal": self.mirror.prox(self.regularizer)})

    def psi(self, w: Array, numbers: Numbers) -> Array:
        """Return psi(w), summed over the regularized blocks: [J]."""
        total = np.zeros(len(w))
        self._psi(w, self.geometry(numbers), total)
        return total

    def prox(self, z: Array, t: Array, numbers: Numbers) -> Array:
        """Return the Euclidean prox of t psi at z, restricted to the domain of h."""
        out = np.empty_like(z)
        self._prox(z, t, self.geometry(numbers), out)
        return out

    def kkt_residual(self, w: Array, gradient: Array, numbers: Numbers) -> Array:
        """Return |w - prox_psi(w - grad F(w))|: 0 exactly at an optimum (docs/paper.md, "Metrics")."""
        residuals, at_a_time = np.empty(len(w)), max(2, IN_CACHE // w.shape[1])
        for low in range(0, len(w), at_a_time):
            chunk = slice(low, low + at_a_time)
            moved = np.empty(w[chunk].shape, gradient.dtype)
            specialize(assign_difference, parallel=True)(moved, w[chunk], gradient[chunk])
            proximal = self.prox(moved, np.ones(len(moved)), numbers[chunk])
            specialize(distances, parallel=True)(w[chunk], proximal, residuals[chunk])
        return residuals

    @cached_property
    def at_start(self) -> Evaluation:
        """F and its gradient at the model's initial weights w_0."""
        return self.risk(self.model.initial()[None])

    @cached_property
    def gradient_at_start(self) -> float:
        """|grad F(w_0)|."""
        return float(np.linalg.norm(self.at_start.gradient))

    def kkt_scale(self, numbers: Numbers, at_start: float | None = None) -> Array:
        """Return the scale of KKT residuals [J]: lambda if psi has one, else |grad F(w_0)|, or `at_start` if given.

        A lambda below the rounding error of that gradient is ignored.
        """
        strength = numbers["strength"] if "strength" in (numbers.dtype.names or ()) else np.zeros(len(numbers))
        start = (self.gradient_at_start if at_start is None else at_start) or 1.0
        return np.where(strength > np.finfo(float).eps * start, strength, start)

    def constraint_violation(self, w: Array, numbers: Numbers) -> Array:
        """Return the distance of the weights from psi's constraint set, relative to their norm: [J]; 0 inside the set.

        The norm is the larger one of the weights and of their projection, over the regularized blocks only: a large
        bias would hide any distance.
        """
        w = np.asarray(w, dtype=float)
        projected = self.prox(w, np.zeros(len(w)), numbers)
        weights, inside = (np.where(self.layout.regularized, vectors, 0) for vectors in (w, projected))
        length = np.maximum(np.linalg.norm(weights, axis=1), np.linalg.norm(inside, axis=1))
        return np.linalg.norm(weights - inside, axis=1) / np.maximum(length, np.finfo(float).tiny)


def _with_site_biases(problem: Problem, held_out: ClientData, w: Array, gradient: bool = False) -> Evaluation:
    """Return F on held-out rows with a site bias for every client; gradients are not supported."""
    assert not gradient
    plain = replace(problem.model, site_bias=False)  # type: ignore[type-var]
    biases, losses, right = problem.site_biases_on(held_out, w), [], np.zeros(len(w))
    for m in range(held_out.clients):
        model = w.astype(problem.dtype)
        model[:, problem.layout.slices["bias"]] += biases[m][:, None]
        loss, accuracy = own_losses(held_out, plain, problem.loss, model[None], np.array([m]))
        losses.append(loss[0])
        right += 0 if accuracy is None else accuracy[0] * held_out.sizes[m]
    weights = held_out.weights(problem.weighting)[:, None]
    value = ordered_sum((weights * np.array(losses))[:, :, None])[:, 0]
    accuracy = right / len(held_out.y) if problem.loss.classification else None
    return Evaluation(value, np.empty((0, w.shape[1])), accuracy)
