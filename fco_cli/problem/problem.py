"""A problem: data + model + loss + regularizer + mirror map (docs/method.md, "Problem")."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.descent import descent, dual_descent
from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.losses import Loss
from fco_cli.problem.mirror import (
    Geometry,
    assign_difference,
    distances,
    dual_in_room,
    dual_is_primal,
    farthest,
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
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.risk import Evaluation, Risk, biases_of, ordered_sum, own_losses, risk_of, scores_of

IN_CACHE = 2**17  # numbers: beyond that an array takes longer to be had than to be filled


@dataclass(frozen=True)
class TaskData:
    """What a task knows: rows, a model and a loss of it. Regularizer, mirror map and weights are the run's choice."""

    training: ClientData
    model: Model
    loss: Loss
    held_out: ClientData | None = None
    truth: Array | None = None
    description: Any = None
    features: tuple[str, ...] | None = None  # their names, where they have any
    test: ClientData | None = None  # rows that are looked at once, when the run is done
    clients: list[str] | None = None  # the names of those that train

    def divided(self, held_out: Array) -> TaskData:
        """With the training rows of a mask [N] held out, in the place of all others that are."""
        training, apart = self.training.take(~held_out), self.training.take(held_out)
        owners, everyone = self.training.owners, np.arange(self.training.clients)
        trains = np.isin(everyone, owners[~held_out])
        place = np.where(trains, np.cumsum(trains) - 1, -1)[np.isin(everyone, owners[held_out])]
        return replace(self, training=training, held_out=replace(apart, trained_as=place), test=None, clients=None)

    def joined(self, regularizer: Regularizer, mirror: Mirror | None = None, weighting: str = "uniform") -> Problem:
        """The problem that a run minimizes; the mirror map is the Euclidean one unless another is given."""
        return Problem(
            self.training, self.model, self.loss, regularizer, weighting, mirror or Euclidean(),
            self.held_out, self.truth, self.description, self.features, self.test,
        )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """min over w of F(w) + psi(w), F = sum_m p_m F_m.

    `regularizer` names the kind of psi; its numbers may differ from job to job and come as records: `numbers` [J].
    """

    data: ClientData
    model: Model
    loss: Loss
    regularizer: Regularizer
    weighting: str = "uniform"
    mirror: Mirror = field(default_factory=Euclidean)
    held_out: ClientData | None = None  # rows that validate
    truth: Array | None = None  # [P], where the task knows it
    description: Any = None  # what else the task wants to know when it writes a model
    features: tuple[str, ...] | None = None  # the names by which a regularizer may speak of weights
    test: ClientData | None = None  # rows that are looked at once, when the run is done

    def __post_init__(self) -> None:
        self.regularizer.check_layout(self.layout)
        self.mirror.primal(self.regularizer)  # refuses a pair without a closed form
        if self.loss.together is not None and self.data.row_weights is not None:
            raise UserError(f"task.weights: the {self.loss.name} loss counts every row once")

    @cached_property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def dtype(self) -> np.dtype:
        return self.data.x.dtype

    @cached_property
    def weights(self) -> Array:
        return self.data.weights(self.weighting)

    @cached_property
    def risk(self) -> Risk:
        """F on the training data."""
        return risk_of(self.data, self.weights, self.model, self.loss)

    @cached_property
    def validation(self) -> Risk | None:
        """The same on the rows held out."""
        return None if self.held_out is None else self.risk_on(self.held_out)

    def risk_on(self, data: ClientData) -> Risk:
        """The same on any rows."""
        if self.model.site_bias:
            return functools.partial(_with_site_biases, self, data)
        return risk_of(data, data.weights(self.weighting), self.model, self.loss)

    def site_biases(self, w: Array) -> Array:
        """What every training client adds to the scores of w [J, P]: [M, J]."""
        return biases_of(self.data, self.model, self.loss, np.ascontiguousarray(w, dtype=self.dtype))

    def site_biases_on(self, data: ClientData, w: Array) -> Array:
        """The same for the clients of rows held out: [M, J]; one that did not train has the mean of those who did."""
        biases = self.site_biases(w)
        mean = ordered_sum((self.weights[:, None] * biases)[:, :, None])[:, 0]
        strangers = np.full(data.clients, -1)
        return np.vstack([biases, mean])[strangers if data.trained_as is None else data.trained_as]  # -1 is the last

    def scores_on(self, data: ClientData, w: Array) -> Array:
        """The scores [J, C, N] of rows held out."""
        scores = scores_of(self.model, data, w)
        if self.model.site_bias:
            scores += np.repeat(self.site_biases_on(data, w), data.sizes, axis=0).T[:, None]
        return scores

    def geometry(self, numbers: Numbers) -> Geometry:
        return Geometry(numbers, self._mirror_numbers, self._table, self._each)

    @cached_property
    def _mirror_numbers(self) -> Numbers:
        return self.mirror.numbers

    @cached_property
    def _table(self) -> Array:
        return self.regularizer.table(self.layout)

    @cached_property
    def _each(self) -> Array:
        return self.regularizer.each(self.layout, self.features).astype(self.dtype)

    def initial_models(self, numbers: Numbers, start: Array | None = None) -> Array:
        """w_0 of every job [J, P]: the model's, or another [J, P], moved to where h and psi are finite."""
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

    # The primitives of which every algorithm is made.

    @cached_property
    def descend(self) -> Kernel:
        return descent(self.data, self.model, self.loss)

    @cached_property
    def to_dual(self) -> Kernel:
        return specialize(to_dual, dual=self.mirror.dual)

    @cached_property
    def as_dual(self) -> Kernel:
        """to_dual that makes nothing where nothing is to be made."""
        if isinstance(self.mirror, Euclidean):
            return dual_is_primal
        return specialize(dual_in_room, to_dual=self.to_dual)

    @cached_property
    def to_primal(self) -> Kernel:
        return specialize(to_primal, primal=self.mirror.primal(self.regularizer))

    @cached_property
    def free_primal(self) -> Kernel:
        """to_primal without psi."""
        return specialize(to_primal, primal=self.mirror.free_primal)

    @property
    def _by_itself(self) -> bool:
        """Whether h and psi take every weight by itself."""
        return self.regularizer.separable and isinstance(self.mirror, Euclidean)

    def _primal(self, with_psi: bool) -> Kernel:
        """Of one block."""
        return self.mirror.primal(self.regularizer) if with_psi else self.mirror.free_primal

    def primal_for_batches(self, with_psi: bool) -> Kernel:
        """to_primal, or free_primal, of no more weights than a batch looks at, where it can be had for some."""
        if isinstance(self.data.x, SparseRows) and self._by_itself:
            return specialize(primal_of_stored, primal=self._primal(with_psi))
        return specialize(primal_of_all, to_primal=self.to_primal if with_psi else self.free_primal)

    def descend_dual(self, with_psi: bool) -> Kernel:
        """A step along the gradient at to_primal, or free_primal, of the state itself."""
        by_columns = self._primal(with_psi) if self._by_itself else None
        return dual_descent(self.data, self.model, self.loss, self.primal_for_batches(with_psi), by_columns)

    @cached_property
    def prox_of_each(self) -> Kernel:
        """The Euclidean prox with a time for every weight; of a separable psi."""
        return specialize(prox_of_each, prox=self.regularizer.prox)

    @cached_property
    def psi_subgradient(self) -> Kernel:
        return specialize(psi_subgradient, subgradient=self.regularizer.subgradient)

    @cached_property
    def farthest(self) -> Kernel:
        return specialize(farthest, lmo=self.regularizer.lmo)

    # What is measured.

    @cached_property
    def _psi(self) -> Kernel:
        return specialize(psi_value, value=self.regularizer.value)

    @cached_property
    def _prox(self) -> Kernel:
        return specialize(to_primal, primal=self.mirror.prox(self.regularizer))

    def psi(self, w: Array, numbers: Numbers) -> Array:
        """The regularizer's value, summed over the regularized blocks: [J]."""
        total = np.zeros(len(w))
        self._psi(w, self.geometry(numbers), total)
        return total

    def prox(self, z: Array, t: Array, numbers: Numbers) -> Array:
        """prox of t psi at z within the domain of h, whatever the mirror map."""
        out = np.empty_like(z)
        self._prox(z, t, self.geometry(numbers), out)
        return out

    def kkt_residual(self, w: Array, gradient: Array, numbers: Numbers) -> Array:
        """|w - prox_psi(w - grad F(w))|: 0 exactly at an optimum (docs/method.md, "Metrics")."""
        residuals, at_a_time = np.empty(len(w)), max(2, IN_CACHE // w.shape[1])
        for low in range(0, len(w), at_a_time):
            some = slice(low, low + at_a_time)
            moved = np.empty(w[some].shape, gradient.dtype)
            specialize(assign_difference, parallel=True)(moved, w[some], gradient[some])
            there = self.prox(moved, np.ones(len(moved)), numbers[some])
            specialize(distances, parallel=True)(w[some], there, residuals[some])
        return residuals

    @cached_property
    def at_start(self) -> Evaluation:
        """F and its gradient at w_0, the model's own start."""
        return self.risk(self.model.initial()[None])

    @cached_property
    def gradient_at_start(self) -> float:
        """|grad F(w_0)|."""
        return float(np.linalg.norm(self.at_start.gradient))

    def kkt_scale(self, numbers: Numbers) -> Array:
        """What KKT residuals are small or large against: lambda where psi has one, else the gradient at the start.

        One that is lost in that gradient's last digit is none.
        """
        strength = numbers["strength"] if "strength" in (numbers.dtype.names or ()) else np.zeros(len(numbers))
        start = self.gradient_at_start if self.gradient_at_start > 0 else 1.0
        return np.where(strength > np.finfo(float).eps * start, strength, start)

    def constraint_violation(self, w: Array, numbers: Numbers) -> Array:
        """How far the weights are outside of a constraint, relative to their length or their projection's; 0 inside.

        What psi does not act on is left out: beside a huge bias every distance would vanish.
        """
        w = np.asarray(w, dtype=float)
        projected = self.prox(w, np.zeros(len(w)), numbers)
        weights, inside = (np.where(self.layout.regularized, vectors, 0) for vectors in (w, projected))
        length = np.maximum(np.linalg.norm(weights, axis=1), np.linalg.norm(inside, axis=1))
        return np.linalg.norm(weights - inside, axis=1) / np.maximum(length, np.finfo(float).tiny)


def _with_site_biases(problem: Problem, held_out: ClientData, w: Array, gradient: bool = False) -> Evaluation:
    """F on rows held out, where every client's scores have its own bias; without a gradient."""
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
