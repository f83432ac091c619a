"""Requests that train: client updates on a site's rows, personal models and client state."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.arrays import Matrix, Scalar, Vector, by_job, slot_count, views
from fco_cli.algorithms.protocol import Federated, State
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.federation.message import (
    MAX_MAGNITUDE,
    Arrays,
    ArraySpec,
    BadMessage,
    Message,
    converted,
    parse_by_name,
    plugin_digests,
    read_arrays,
)
from fco_cli.federation.policy import Refusal
from fco_cli.federation.schema import Forget, Load, Outcome, Own, Save, Stack, Train
from fco_cli.federation.sharing import with_fit
from fco_cli.federation.site.data import SiteData
from fco_cli.federation.site.memory import SiteMemory
from fco_cli.federation.site.row_noise import draw_batches
from fco_cli.federation.site.rows import Fit, Prepared
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.mirror_maps import all_mirrors
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.risk import own_losses
from fco_cli.problem.streams import local_steps_of, message_keys

T = TypeVar("T")
MAX_CHECKED = 50  # models of the local steps of a round


class SiteTrainer:
    """Client of one site in one session, which trains on the rows of `site_data`."""

    def __init__(self, site_data: SiteData, folder: Path) -> None:
        self.site_data, self.memory = site_data, SiteMemory(folder)
        self.algorithm: Federated | None = None
        self.plain: Federated | None = None  # without the transform
        self.initial: Array | None = None
        self.clip_norms: Array | None = None  # [J], largest norms of messages; None without clipping
        self.stack_number, self.fit_index = -1, -1

    def stack(self, request: Stack, arrays: Arrays) -> Message:
        """Bind the algorithm and the regularizer with the parameters of every job of a stack."""
        fit = self.site_data.fit(request.fit)
        policy, model, jobs = self.site_data.policy, fit.linear(), request.jobs
        algorithm = parse_by_name(all_algorithms(), request.algo, "algo")
        psi = parse_by_name(all_regularizers(), _without_paths(request.regularizer), "regularizer")
        mirror = parse_by_name(all_mirrors(), request.mirror, "mirror")
        transform = parse_by_name(all_transforms(), request.transform, "transform")
        own_code = plugin_digests(
            algo=algorithm, regularizer=psi, mirror=mirror, transform=transform, loss=self.site_data.loss()
        )
        if different := sorted({name for name, _ in own_code.items() ^ request.plugins.items()}):
            raise Refusal(
                f"{', '.join(different)}: the plug-in's code differs; install the same version at all parties"
            )
        policy.check("algorithms", algorithm.name)
        policy.check("regularizers", psi.name)
        if not isinstance(algorithm, Federated):
            raise Refusal(f"{algorithm.name} is not a federated algorithm")
        policy.check_numbers(jobs * model.layout.size)
        rows = fit.rows()
        data = TaskData(fit.training(), model, self.site_data.loss(), features=rows.features)
        problem = data.to_problem(psi, mirror)
        owners = {"psi": psi, "options": algorithm, "transform": transform}
        rate = ArraySpec((jobs,), rows.dtype, low=0)
        specs = {name: ArraySpec((jobs, owner.numbers.dtype.itemsize // 8)) for name, owner in owners.items()}
        read = read_arrays(arrays, {"client_lr": rate, "server_lr": rate, **specs})
        numbers = [numbers_of_jobs(name, owner, read[name]) for name, owner in owners.items()]
        names = numbers[-1].dtype.names or ()
        multipliers = numbers[-1]["noise_multiplier"] if "noise_multiplier" in names else None
        self.site_data.disclosure.check_multiplier(transform, multipliers)
        self.clip_norms = numbers[-1]["clip_norm"] if "clip_norm" in names else None
        varying = Varying(read["client_lr"], read["server_lr"], *numbers)
        self.algorithm = self.plain = algorithm.with_transform(transform).bind(problem, varying)
        if transform.name != "none":
            self.plain = algorithm.bind(problem, replace(varying, transform=None))
        self.initial = self.algorithm.initial_client_arrays(problem.initial_models(varying.psi))
        self.stack_number, self.fit_index = request.stack, request.fit
        return Message("")

    def train(self, request: Train, arrays: Arrays) -> Message:
        """Return the messages of `client_update`.

        Batches depend on seed, round, client and the number of rows; they are secret if a transform hides single rows.
        """
        algorithm, tokens = self._bound_algorithm(request.stack), request.tokens
        problem, jobs = algorithm.problem, len(algorithm.varying)
        _check_for_every_job("tokens", tokens, jobs)
        fit, ending = self.site_data.fit(self.fit_index), f".{self.fit_index}"
        specs = {array.name + ending: _spec_of(array, algorithm) for array in algorithm.broadcast}
        received = {name.removesuffix(ending): values for name, values in read_arrays(arrays, specs).items()}
        if self.site_data.agreed is not None:
            self.site_data.agreed.fits[self.fit_index].check_factors(algorithm, request)
        factor, noise = self._factors_and_noise(request, jobs)
        rows, clients = problem.data, np.array([fit.client])
        visited = int(rows.sizes[0]) * request.local_epochs
        if request.steps is not None:
            visited = request.steps * request.batch_size
        self.site_data.policy.check_numbers(visited)
        disclosure = self.site_data.disclosure
        if uses_batches := "batch_size" in algorithm.uses:  # other methods take gradients over all rows
            disclosure.check_batches(request.batch_size, int(rows.sizes[0]))
        hides_rows = algorithm.has_noise and disclosure.min_row_noise > 0  # by enough noise in the local steps
        if not hides_rows:
            disclosure.check_smooth(self.site_data.loss())
            disclosure.check_message_noise(noise, self._sensitivity(factor, jobs))
            if any(isinstance(array, Matrix) for array in algorithm.sent):
                disclosure.check_parameters(problem.layout.size, int(rows.sizes[0]), "use another algorithm")
                disclosure.check_cross_cells(rows.x, "use another algorithm")
        steps = request.local_epochs if request.steps is None else request.steps  # a lower bound
        disclosure.check_steps(steps)
        shape = (request.batch_size, request.local_epochs, request.last_batch, request.steps)
        seed = disclosure.batch_seed(request.seed, *shape)
        order, edges, row_noise = draw_batches(algorithm, request, fit.client, seed, disclosure.policy)
        if row_noise is not None and algorithm.transform.shares > 1:
            disclosure.check_shares(algorithm.transform.shares)
            row_noise.noise[...] *= self._noise_scale(algorithm, request)
        if uses_batches:
            disclosure.check_steps(len(edges) - 1)
            if not hides_rows:
                disclosure.check_visits(order, edges, int(rows.sizes[0]))
        slots = slot_count(algorithm.sent, problem.layout.size)
        disclosure.charge(slots * jobs * problem.layout.size, rounds=jobs)
        first = received[algorithm.broadcast[0].name]
        check_curvature = partial(disclosure.check_curvature, self.site_data.loss(), problem.model, rows)
        check_models = partial(self._check_models, fit, rows)
        is_strict, checked = disclosure.policy.refuse_differences, []
        if is_strict:
            start, *others = algorithm.client_model(first, received, 0.0), *algorithm.other_models(received, steps)
            for model in (start, *others):
                check_curvature(model)
            checked = [start]
        self.memory.apply_outcomes(self._outcomes(request))
        assert self.initial is not None
        kept = self.memory.read(tokens, self.initial) if algorithm.client_arrays else self.initial
        if is_strict:
            for model in (remembered := _remembered_models(algorithm, kept)):
                check_curvature(model)
            if not hides_rows:
                for model in (*others, *remembered):
                    check_models([model])
        keys = message_keys(request.seed, request.round, clients) if algorithm.transform.random else None
        with np.errstate(all="ignore"):  # messages that are not finite are dropped from the mean
            if is_strict and uses_batches and len(edges) > 2 and not hides_rows:  # gradients at several models
                for model in self._models_of_steps(received, kept, order, edges):
                    check_curvature(model)
                    checked.append(model)
            if is_strict and not hides_rows:
                check_models(checked)
            message, after = algorithm.client_update(received, kept, rows, order, edges, keys, row_noise)
            if algorithm.client_arrays:
                self.memory.propose(request.round, tokens, after)
            if factor is not None:  # masked messages are weighted at the site
                message = factor[:, None] * message.astype(float)
            sent = by_job(algorithm.sent, message)
            if noise is not None:
                sent = _add_noise(sent, noise)
        return Message("", arrays=with_fit(sent, self.fit_index))

    def _models_of_steps(self, received: State, memory: Array, order: Array, edges: Array) -> Iterator[Array]:
        """Yield the models [J, P] after the local steps of a round, of at most MAX_CHECKED of them.

        They are computed without the transform, which may hide in a message what the steps did.
        """
        algorithm = self.plain
        assert algorithm is not None
        rows, steps = algorithm.problem.data, len(edges) - 1
        own = memory[: slot_count(algorithm.client_arrays, algorithm.problem.layout.size)]
        for k in np.unique(np.linspace(1, steps, min(steps, MAX_CHECKED)).astype(int)).tolist():
            part = (order[: edges[k]], edges[: k + 1])
            message, after = algorithm.client_update(received, own.copy(), rows, *part)
            yield algorithm.client_model(received[algorithm.broadcast[0].name] + message[0], received, float(k))
            yield from _remembered_models(algorithm, after)

    def _check_models(self, fit: Fit, rows: ClientData, steps: list[Array]) -> None:
        """Raise Refusal if a sum of gradients at some models, with earlier answers, determines few rows."""
        sent, loss = self._bound_algorithm(self.stack_number).sent, self.site_data.loss()
        value, hessian = (any(isinstance(array, kind) for array in sent) for kind in (Scalar, Matrix))
        self.site_data.models.check(loss, fit, ["training"], rows, steps, value=value, hessian=hessian)

    def _factors_and_noise(self, request: Train, jobs: int) -> tuple[Array | None, Array | None]:
        """Return this site's weights and noise deviations [J] for masked messages, each None if not requested."""
        if request.factors is None:
            if request.noise is not None:
                raise BadMessage("noise: needs factors")
            return None, None
        factors = _check_for_every_job("factors", request.factors.get(self.site_data.name, []), jobs)
        noise = request.noise
        return np.array(factors), None if noise is None else np.array(_check_for_every_job("noise", noise, jobs))

    def _sensitivity(self, factor: Array | None, jobs: int) -> Array:
        """Return the largest norm [J] of this site's weighted message; infinite without clipping."""
        norms = np.full(jobs, np.inf) if self.clip_norms is None else self.clip_norms
        return norms if factor is None else norms * factor

    def _noise_scale(self, algorithm: Federated, request: Train) -> float:
        """Return the factor of this site's noise if sites share it."""
        agreed = None if self.site_data.agreed is None else self.site_data.agreed.fits[self.fit_index]
        if agreed is None or request.factors is None:
            raise Refusal("transform.noise_shares: sites share noise in masked sums only; set federation.masks=true")
        sizes = agreed.sizes("training")
        weights = np.array([request.factors[name][0] for name in agreed.names])
        steps = local_steps_of(sizes, request.batch_size, request.local_epochs, request.last_batch)
        if request.steps is not None:
            steps = np.full(len(sizes), request.steps)
        scales = algorithm.noise_scales(weights, sizes, request.batch_size, steps)
        return float(scales[agreed.names.index(self.site_data.name)])

    def own(self, request: Own) -> Message:
        """Return the loss and accuracy of the personal models on the site's rows."""
        algorithm, tokens, rows = self._bound_algorithm(request.stack), request.tokens, self._rows()
        if algorithm.personal is None or self.initial is None:
            raise Refusal(f"{algorithm.name} has no personal models")
        _check_for_every_job("tokens", tokens, len(algorithm.varying))
        self.memory.apply_outcomes(self._outcomes(request))
        kept = views(algorithm.client_arrays, self.memory.read(tokens, self.initial))[algorithm.personal]
        arrays: dict[str, Array] = {}
        self.site_data.disclosure.check_noise_free("metrics of personal models")
        loss, model = self.site_data.loss(), algorithm.problem.model
        self.site_data.disclosure.check_smooth(loss)
        self.site_data.disclosure.charge(4 * len(tokens), evaluations=len(tokens))
        for part, data in (("train", rows.training), ("validation", rows.held_out)):
            if data is not None:
                self.site_data.disclosure.check_curvature(loss, model, data, kept)
                fit = self.site_data.fit(self.fit_index)
                parts = ["training" if part == "train" else "held_out"]
                self.site_data.models.check(loss, fit, parts, data, [kept], gradient=False)
                losses, accuracy = own_losses(data, model, loss, kept[None], np.zeros(1, int))
                arrays[f"own_{part}_loss"] = np.where(losses[0] > MAX_MAGNITUDE, np.inf, np.maximum(losses[0], 0))
                if accuracy is not None and self.site_data.policy.share_accuracy:
                    hits = self.site_data.disclosure.released_counts(np.rint(accuracy[0] * len(data.y)), len(data.y))
                    arrays[f"own_{part}_accuracy"] = hits / len(data.y)
        return Message("", arrays=arrays)

    def save(self, request: Save) -> Message:
        """Save the client state of jobs."""
        self._bound_algorithm(request.stack)
        self.memory.apply_outcomes(self._outcomes(request))
        self.memory.save(request.round, request.tokens)
        return Message("")

    def load(self, request: Load) -> Message:
        """Restore the client state of jobs."""
        algorithm = self._bound_algorithm(request.stack)
        size = algorithm.problem.layout.size
        shape = (slot_count(algorithm.client_arrays, size), size)
        return Message("", {"known": self.memory.load(request.round, request.tokens, shape, algorithm.problem.dtype)})

    def forget(self, request: Forget) -> Message:
        """Delete the client state of jobs."""
        self.memory.forget(request.tokens)
        return Message("")

    def stop(self) -> None:
        """Discard the stack, because the rows change."""
        self.algorithm = None

    def _bound_algorithm(self, stack: int) -> Federated:
        if self.algorithm is None or stack != self.stack_number:
            raise Refusal("unknown stack of jobs")
        return self.algorithm

    def _rows(self) -> Prepared:
        """Return the rows of the stack's fit."""
        return self.site_data.fit(self.fit_index).rows()

    def _outcomes(self, request: Own) -> list[Outcome]:
        return request.outcomes.get(self.site_data.name, [])


def _spec_of(array: Vector, algorithm: Federated) -> ArraySpec:
    """Return the declared shape and type of a broadcast array."""
    shape = array.shape(len(algorithm.varying), algorithm.problem.layout.size)
    return ArraySpec(shape) if isinstance(array, Scalar) else ArraySpec(shape, algorithm.problem.dtype)


def _remembered_models(algorithm: Federated, memory: Array) -> list[Array]:
    """Return the models [J, P] among the remembered arrays, at which the next round evaluates rows."""
    own = views(algorithm.client_arrays, memory)
    return [own[array.name] for array in algorithm.remembered if array.model]


def _without_paths(regularizer: dict[str, Any]) -> dict[str, Any]:
    """Return the options; raise Refusal if `groups`, also of a block, is a path: no file of the site is read."""
    if not isinstance(regularizer.get("groups"), dict | None):
        raise Refusal("regularizer.groups must be a mapping")
    if isinstance(blocks := regularizer.get("blocks"), dict):
        kinds = {name: kind for name, kind in all_regularizers().items() if name != "blockwise"}
        for block, options in blocks.items():
            parse_by_name(kinds, _without_paths(converted(options, dict[str, Any])), f"regularizer.blocks.{block}")
    return regularizer


def numbers_of_jobs(name: str, owner: Any, flat: Array) -> Numbers:
    """Return the parameters of every job [J] as records; raise UserError if one is out of range.

    The checks of `owner` run for every job; parameters that cannot vary within a stack must equal those of `owner`.
    """
    for job in flat:
        _check_numbers(name, owner, job)
    return np.frombuffer(flat.tobytes(), owner.numbers.dtype).view(np.recarray)


def _check_numbers(name: str, owner: Any, job: Array) -> None:
    if pieces := getattr(owner, "pieces", None):  # their parameters are concatenated
        ends = np.cumsum([one.numbers.dtype.itemsize // 8 for one in pieces.values()])
        for one, part in zip(pieces.values(), np.split(job, ends[:-1]), strict=True):
            _check_numbers(name, one, part)
        return
    known, changes = {key.name for key in fields(owner)}, {}
    for key, number in zip(owner.numbers.dtype.names, job.tolist(), strict=True):
        if key in known and isinstance(getattr(owner, key), float):
            changes[key] = number
        elif number != float(owner.numbers[key][0]):
            raise BadMessage(f"the array {name}: {key} cannot vary within a stack")
    replace(owner, **changes)


def _check_for_every_job(name: str, values: list[T], jobs: int) -> list[T]:
    if len(values) != jobs:
        raise BadMessage(f"{name}: must have one value per job")
    return values


def _add_noise(sent: dict[str, Array], deviation: Array) -> dict[str, Array]:
    """Add this site's share of the noise, drawn from a secret seed."""
    random = np.random.default_rng(secrets.randbits(128))
    return {
        # independent for every job
        name: values + deviation.reshape(-1, *[1] * (values.ndim - 1)) * random.standard_normal(values.shape)
        for name, values in sent.items()
    }
