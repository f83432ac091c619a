"""Requests that evaluate models on a site's rows: losses, gradients, metrics, Hessians and the smoothness constant.

A request is about models of several fits; the names of its arrays and of the answer's end with the number of the fit.
"""

from __future__ import annotations

import numpy as np

from fco_cli.federation.message import MAX_MAGNITUDE, Arrays, ArraySpec, BadMessage, Message, read_arrays
from fco_cli.federation.metrics import SUMS, Sums
from fco_cli.federation.noise import clip_and_add_noise
from fco_cli.federation.policy import Refusal
from fco_cli.federation.schema import CurvedModels, Evaluate, EvaluatedModels, FitModels, Hessian, Smoothness
from fco_cli.federation.sharing import with_fit
from fco_cli.federation.site.data import SiteData
from fco_cli.federation.site.row_noise import noisy_row_sums
from fco_cli.federation.site.rows import Fit
from fco_cli.federation.site.scores import check_alone, check_scores, score_arrays
from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.curvature import packed_size, quadratic_of
from fco_cli.problem.data import ClientData
from fco_cli.problem.held_out import difference_losses, joined
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.base import on_row
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.narrow import narrow
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers.penalties import NoRegularizer
from fco_cli.problem.risk import DataRisk, scores_of
from fco_cli.simulation.smoothness import BATCHES, largest_curvature


@kernel
def add_squared_losses(scores, y, total):
    """Add the squared losses of rows with scores [J, C, N] to total [J]."""
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            loss = on_row.value(scores[j, :, i], y[i])
            total[j] += loss * loss


class SiteEvaluator:
    """Evaluation of models on the rows of `site_data`."""

    def __init__(self, site_data: SiteData) -> None:
        self.site_data, self.disclosure, self.policy = site_data, site_data.disclosure, site_data.policy

    def evaluate(self, request: Evaluate, arrays: Arrays) -> Message:
        """Return losses and other sums over the rows of one part, and gradients on training rows.

        They are multiplied by the site's weight in the request; without one, they are means over the rows. Fits without
        rows of the part at this site are left out.
        """
        if request.gradient and request.part != "training":
            raise Refusal("gradients are computed on training rows only")
        models = self._models(request.fits, arrays)
        rows = self._rows(request.fits, request.part)
        weights = {one.fit: self._weight(one, request.part) for one in request.fits if one.fit in rows}
        numbers = jobs = 0
        for one in request.fits:
            if one.fit in rows:
                self.disclosure.check_evaluation_noise(one.noise)
                if one.noise is None or not one.noise.by_row:
                    self.disclosure.check_smooth(self._loss)
                numbers, jobs = numbers + one.jobs * self._numbers_per_model(request, one), jobs + one.jobs
        self.disclosure.charge(numbers, evaluations=jobs)
        self._check_steepness(request.fits, rows, models)
        if request.differences:
            for others in self._compared_rows(request, rows):
                self._check_steepness(request.fits, others, models)
        for one in request.fits:
            if (data := rows.get(one.fit)) is not None and (one.noise is None or not one.noise.by_row):
                self._check_combinations(request, one, data, models[one.fit])
        withheld = () if self.policy.share_accuracy else ("hits", "squares")
        answer = Arrays()
        with np.errstate(all="ignore"):  # the coordinator detects overflows
            for one in request.fits:
                if (data := rows.get(one.fit)) is not None:
                    own = self._evaluate_rows(request, one, data, models[one.fit], weights[one.fit])
                    answer |= with_fit({name: own[name] for name in own if name not in withheld}, one.fit)
        return Message("", arrays=answer)

    def hessian(self, request: Hessian, arrays: Arrays) -> Message:
        """Return losses and gradients on the training rows, and Hessians at the first models of every fit.

        Hessians are packed (`curvature.pack`). All numbers are multiplied by the site's weight, as in `evaluate`; outer
        products of gradients, if requested, by its square.
        """
        self.disclosure.check_noise_free("Hessians")
        self.disclosure.check_smooth(self._loss)
        models, rows = self._models(request.fits, arrays), self._rows(request.fits, "training")
        weights = {one.fit: self._weight(one, "training") for one in request.fits if one.fit in rows}
        numbers = jobs = 0
        for one in request.fits:
            if (data := rows.get(one.fit)) is not None:
                size = self._fit(one).linear().layout.size
                if one.columns is not None and one.columns[-1] >= size:
                    raise BadMessage(f"columns: must be below {size}, the number of parameters")
                if one.narrow:
                    _check_narrow(one, self._fit(one).linear(), models[one.fit])
                check_alone(one, self.site_data.name, self._fit(one).sites, self.disclosure)
                if one.hessians:
                    remedy = "use a path.algo without Hessians, or fewer columns for experiment=glm"
                    self.disclosure.check_parameters(size, len(data.y), remedy)
                    self.disclosure.check_cross_cells(data.x, remedy)
                matrices = one.hessians + (0 if one.scores is None else 1 + one.scores.clients)
                own = size if one.columns is None else len(one.columns)
                gradients = one.jobs * (1 + (own if one.narrow else size))
                numbers, jobs = numbers + gradients + matrices * packed_size(own), jobs + one.jobs
        self.policy.check_numbers(numbers)
        self.disclosure.charge(numbers, evaluations=jobs)
        self._check_steepness(request.fits, rows, models)
        is_masked = self.site_data.agreed is not None
        for one in request.fits:
            if one.scores is not None and (data := rows.get(one.fit)) is not None:
                model, w = self._fit(one).linear(), models[one.fit]
                check_scores(one.scores, self._loss, model, data, w, self.disclosure, is_masked)
            if (data := rows.get(one.fit)) is not None:
                fit, w, count = self._fit(one), models[one.fit], one.hessians
                for some, hessian in ((w[:count], True), (w[count:], False)):
                    if len(some):
                        self.site_data.models.check(self._loss, fit, ["training"], data, [some], hessian=hessian)
        answer = Arrays()
        with np.errstate(all="ignore"):
            for one in request.fits:
                if (data := rows.get(one.fit)) is not None:
                    answer |= with_fit(self._quadratic(one, data, models[one.fit], weights[one.fit]), one.fit)
        return Message("", arrays=answer)

    def smoothness(self, request: Smoothness) -> Message:
        """Return the largest eigenvalue of the Hessians of batches of the site's rows."""
        fit = self.site_data.fit(request.fit)
        problem = TaskData(fit.training(), fit.linear(), self._loss).to_problem(NoRegularizer())
        rows = int(problem.data.sizes[0])
        self.disclosure.check_noise_free("curvature")
        self.disclosure.check_smooth(self._loss)
        self.disclosure.check_batches(request.batch_size, rows)
        remedy = "set hparams.client_lr to a number"
        self.disclosure.check_parameters(fit.linear().layout.size, rows, remedy)
        self.disclosure.check_cross_cells(problem.data.x, remedy)  # in large units of two columns, L is their product
        self.disclosure.charge(1, evaluations=1)
        random = np.random.default_rng([self.disclosure.batch_seed(request.seed, request.batch_size), fit.client])
        largest = largest_curvature(problem, np.zeros(BATCHES, int), request.batch_size, random)
        return Message("", arrays={f"largest.{request.fit}": np.array([largest])})

    @property
    def _loss(self) -> Loss:
        return self.site_data.loss()

    def _fit(self, models: FitModels) -> Fit:
        return self.site_data.fit(models.fit)

    def _models(self, fits: list[EvaluatedModels] | list[CurvedModels], arrays: Arrays) -> dict[int, Array]:
        """Return the models [J, P] of every fit."""
        shapes = {one.fit: (one.jobs, self._fit(one).linear().layout.size) for one in fits}
        self.policy.check_numbers(sum(jobs * size for jobs, size in shapes.values()))
        read = read_arrays(arrays, {f"w.{fit}": ArraySpec(shape) for fit, shape in shapes.items()})
        return {fit: read[f"w.{fit}"] for fit in shapes}

    def _rows(self, fits: list[EvaluatedModels] | list[CurvedModels], part: str) -> dict[int, ClientData]:
        """Return the site's rows of a part by fit; raise Refusal if there are none."""
        parts = {one.fit: self._fit(one).part(part) for one in fits}
        rows = {fit: data for fit, data in parts.items() if data is not None}
        if not rows:
            raise Refusal("the site has no rows of this part")
        return rows

    def _compared_rows(self, request: Evaluate, rows: dict[int, ClientData]) -> list[dict[int, ClientData]]:
        """Return the training rows of every fit, and all its rows, whose losses are subtracted."""
        parts = {one.fit: self._fit(one).rows().training for one in request.fits if one.fit in rows}
        training = {fit: data for fit, data in parts.items() if data is not None}
        return [training, {fit: joined(data, rows[fit]) for fit, data in training.items()}]

    def _check_steepness(
        self,
        fits: list[EvaluatedModels] | list[CurvedModels],
        rows: dict[int, ClientData],
        models: dict[int, Array],
    ) -> None:
        """Raise Refusal for models whose curvature few rows determine."""
        for one in fits:
            if (data := rows.get(one.fit)) is not None:
                self.disclosure.check_curvature(self._loss, self._fit(one).linear(), data, models[one.fit])

    def _check_combinations(self, request: Evaluate, models: EvaluatedModels, data: ClientData, w: Array) -> None:
        """Raise Refusal if answers about the models, with earlier answers, determine few rows."""
        fit, parts = self._fit(models), [request.part]
        if request.differences and (training := fit.rows().training) is not None:
            parts, data = ["training", request.part], joined(training, data)
            self.site_data.models.check(self._loss, fit, ["training"], training, [w], gradient=False)
        self.site_data.models.check(self._loss, fit, parts, data, [w], gradient=request.gradient)

    def _weight(self, models: FitModels, part: str) -> float:
        if self.site_data.agreed is not None:
            self.site_data.agreed.fits[models.fit].check_weights(part, models.weights)
        if models.weights is None:
            return 1.0
        if self.site_data.name not in models.weights:
            raise BadMessage("weights: no weight for this site")
        return models.weights[self.site_data.name]

    def _noise_scale(self, models: EvaluatedModels, part: str, weight: float, rows: int) -> float:
        """Return the factor of the noise on weighted sums that makes it enough for the rows of every site."""
        if self.site_data.agreed is None or models.weights is None:
            raise Refusal("noise: sites share noise in masked, weighted sums only; set federation.masks=true")
        agreed = self.site_data.agreed.fits[models.fit]
        weights = np.array([models.weights[name] for name in agreed.names])
        return float((weights / agreed.sizes(part)).max() * rows / weight)

    def _evaluate_rows(
        self, request: Evaluate, models: EvaluatedModels, data: ClientData, w: Array, weight: float
    ) -> Arrays:
        """Return the arrays of an evaluation; `value` is infinite for jobs in which a number overflows."""
        model = self._fit(models).linear()
        if (noise := models.noise) is not None and noise.by_row:
            scale = 1.0 if noise.shares == 1 else self._noise_scale(models, request.part, weight, len(data.y))
            return noisy_row_sums(data, model, self._loss, w, weight, request.gradient, noise, scale)
        if request.differences:
            training = self._fit(models).rows().training
            value = difference_losses(training, data, weight, model, self._loss, w)
            return _with_infinite_values(
                {"value": value} | self._score_metrics(request, self._fit(models), data, w, weight)
            )
        risk = DataRisk(data, np.array([weight]), model, self._loss)(w, gradient=request.gradient)
        arrays = {"value": np.maximum(risk.value, 0)}  # rounding can make a zero loss negative
        if request.gradient:
            arrays["gradient"] = risk.gradient
        if risk.accuracy is not None:
            arrays["hits"] = self.disclosure.released_counts(np.rint(risk.accuracy * len(data.y)), len(data.y))
        if noise is not None:
            return clip_and_add_noise(arrays, noise)
        if request.part != "training":
            arrays |= self._score_metrics(request, self._fit(models), data, w, weight)
        return _with_infinite_values(arrays)

    def _quadratic(self, models: CurvedModels, data: ClientData, w: Array, weight: float) -> Arrays:
        """Return value [J], gradient [J, P], or [J, A] if narrow, and packed Hessians [K, A (A + 1) / 2].

        If requested, outer products of gradients at the first model are added.
        """
        model, weights, count = self._fit(models).linear(), np.array([weight]), models.hessians
        columns = None if models.columns is None else np.array(models.columns)
        if models.narrow:
            assert columns is not None
            (data, model), w, columns = narrow(data, model, columns), w[:, columns], None
        value, gradient = np.empty(len(w)), np.empty(w.shape)
        arrays, matrices = {"value": value, "gradient": gradient}, Arrays()
        if models.scores is not None:
            matrices |= score_arrays(models.scores, self._loss, model, data, weight, w[0], columns)
        if count:
            value[:count], gradient[:count], hessian = quadratic_of(
                data, weights, model, self._loss, w[:count], columns
            )
            matrices["hessian"] = hessian
            for matrix in matrices.values():
                value[:count][~(np.abs(matrix) <= MAX_MAGNITUDE).all(axis=1)] = np.inf
        if count < len(w):
            risk = DataRisk(data, weights, model, self._loss)(w[count:], gradient=True)
            value[count:], gradient[count:] = risk.value, risk.gradient
        arrays["value"] = np.maximum(value, 0)
        return _with_infinite_values(arrays) | matrices

    def _score_metrics(self, request: Evaluate, fit: Fit, data: ClientData, w: Array, weight: float) -> Arrays:
        """Return the sums for the loss's metrics and the mean squared loss on held-out rows, as far as shared."""
        loss, arrays, known = self._loss, Arrays(), self._metric_sums(request)
        spread = request.spread and loss.client_loss is None and self.policy.share_accuracy
        if known is None and not spread:
            return arrays
        scores = scores_of(fit.linear(), data, w)
        if known is not None:
            finite = np.isfinite(scores[:, 0]).all(axis=1)
            arrays["sums"] = np.full((len(w), known.width), np.nan)
            if finite.any():
                sums = known.of_rows(scores[finite, 0].astype(float), data.y.astype(float))
                arrays["sums"][finite] = self._released_sums(sums) if known.histogram else sums
        if spread:
            total = np.zeros(len(w))
            specialize(add_squared_losses, on_row={"value": loss.bound_kernel("value")})(scores, data.y, total)
            arrays["squares"] = total / len(data.y) * weight
        return arrays

    def _metric_sums(self, request: Evaluate) -> Sums | None:
        """Return the sums for the loss's metrics, None if they are not requested or not shared."""
        known = SUMS.get(type(self._loss))
        withheld = known is not None and known.histogram and not self.policy.share_histograms
        return known if request.sums and not withheld else None

    def _released_sums(self, histograms: Array) -> Array:
        """Return histograms of negative and of positive rows [J, 2 bins] as they may be sent."""
        return np.hstack([self.disclosure.released_histogram(half) for half in np.hsplit(histograms, 2)])

    def _numbers_per_model(self, request: Evaluate, models: EvaluatedModels) -> int:
        """Return the number of answered numbers per model: loss, hits, gradient, squares and sums."""
        shared = self.policy.share_accuracy
        numbers = 1 + shared + request.gradient * self._fit(models).linear().layout.size
        if request.part != "training" and models.noise is None:
            known = self._metric_sums(request)
            numbers += (request.spread and shared) + (0 if known is None else known.width)
        return numbers


def _check_narrow(request: CurvedModels, model: Linear, w: Array) -> None:
    """Raise BadMessage unless a model of the columns alone has the same scores."""
    assert request.columns is not None
    if model.outputs != 1 or request.columns[-1] != model.features or np.delete(w, request.columns, axis=1).any():
        raise BadMessage("narrow: needs one output, the bias as the last column, and zeros in all other columns")


def _with_infinite_values(arrays: Arrays) -> Arrays:
    """Return the arrays [J, ...] with an infinite `value` in jobs in which another number overflows."""
    jobs = len(arrays["value"])
    in_range = [(np.abs(values) <= MAX_MAGNITUDE).reshape(jobs, -1).all(axis=1) for values in arrays.values()]
    arrays["value"][~np.logical_and.reduce(in_range) & np.isfinite(arrays["value"])] = np.inf
    return arrays
