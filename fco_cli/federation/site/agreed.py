"""Numbers of rows that all sites agreed on, and the weights that follow from them.

A masked sum with arbitrary weights could isolate one site. The coordinator therefore announces the numbers of rows of
all sites before the first masked request. Every site checks its own, and masks cancel only if all sites received the
same numbers. Weights of later requests must follow from these numbers: equal, or proportional to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import Cohort
from fco_cli.federation.message import BadMessage
from fco_cli.federation.policy import Refusal
from fco_cli.federation.schema import Train
from fco_cli.problem.layout import Array
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import ALL, Hparams

RowsByPart = Mapping[str, Mapping[str, int]]  # part -> site -> number of rows
WEIGHTINGS = ("uniform", "examples")
RELATIVE_TOLERANCE = 1e-12  # of weights


def rows_digest(rows: Sequence[RowsByPart]) -> str:
    """Return a digest of the numbers of rows of all fits, which masked requests repeat."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


class AgreedFits:
    """Numbers of rows of all sites in every fit."""

    def __init__(
        self, rows: Sequence[RowsByPart], name: str, own: Sequence[Mapping[str, int]], weightings: set[str]
    ) -> None:
        """Store the numbers; raise Refusal unless they are complete (`AgreedRows`)."""
        if len(rows) != len(own):
            raise Refusal("rows: must have the numbers of every fit")
        self.fits = [AgreedRows(sizes, name, counts, weightings) for sizes, counts in zip(rows, own, strict=True)]
        self.digest, self.names = rows_digest(rows), self.fits[0].names
        if any(fit.names != self.names for fit in self.fits):
            raise Refusal("rows: every site must have rows of every fit")


class AgreedRows:
    """Numbers of rows of all sites by part, in one fit."""

    def __init__(self, rows: RowsByPart, name: str, own: Mapping[str, int], weightings: set[str]) -> None:
        """Store the numbers; raise Refusal unless those of this site are its own and all sites have all parts.

        `weightings` are the possible ones of training rows in this session; the first request reduces them to one.
        """
        for part, count in own.items():
            if rows.get(part, {}).get(name, 0) != count:
                raise Refusal(f"rows: the site has {count} rows of the part {part}, not the announced number")
        names = sorted(rows.get("training", {}))
        if any(sorted(sizes) != names for sizes in rows.values()):
            raise Refusal("rows: every site must have rows of every part")
        self.rows, self.names, self.weightings = rows, names, weightings

    def check_weights(self, part: str, weights: Mapping[str, float] | None) -> None:
        """Raise Refusal unless the weights of an evaluation are equal (None) or proportional to the rows."""
        if weights is None:
            weights = dict.fromkeys(self.names, 1 / len(self.names))
        self._check_names(weights)
        given = np.array([weights[name] for name in self.names])
        allowed = self.weightings if part == "training" else set(WEIGHTINGS)
        sizes = self.sizes(part)
        shares = {"uniform": np.ones(len(sizes)), "examples": sizes}
        matching = {one for one in allowed if _equal(given, shares[one] / shares[one].sum())}
        self._restrict(part, matching)

    def check_factors(self, algorithm: Federated, request: Train) -> None:
        """Raise Refusal unless the factors of a round follow from the rows and the numbers of local steps."""
        if request.factors is None:
            raise Refusal("masks: the request has no factors")
        self._check_names(request.factors)
        if {len(one) for one in request.factors.values()} != {len(algorithm.varying)}:
            raise BadMessage("factors: must have one value per job")
        given = np.array([request.factors[name] for name in self.names])
        normalized = (True, False) if algorithm.normalized is None else (algorithm.normalized,)
        matching = {
            weighting
            for weighting in self.weightings
            if any(_equal(given, self._factors(algorithm, request, weighting, choice)) for choice in normalized)
        }
        self._restrict("training", matching)

    def _factors(self, algorithm: Federated, request: Train, weighting: str, normalize: bool) -> Array:
        """Return the factors [S, J] of the sites' messages in a round of the simulation."""
        sizes = self.sizes("training")
        hparams = Hparams(
            1.0, 1.0, 1, ALL, request.batch_size, request.local_epochs, weighting=weighting,
            normalize_steps=normalize, last_batch=request.last_batch,
        )  # fmt: skip
        sampler, none = Sampler(sizes, hparams, 0, algorithm.local_step_rule), np.empty(0, np.int64)
        steps = sampler.steps if request.steps is None else np.full(len(sizes), request.steps)
        cohort = Cohort(
            np.arange(len(sizes)), none, none, np.append(0, np.cumsum(steps)), sampler.weights, sampler.total_weight,
            sampler.mean_steps, normalize,
        )  # fmt: skip
        return algorithm.message_weights(cohort).factors

    def sizes(self, part: str) -> Array:
        """Return the numbers of rows of a part [S], in the order of `names`."""
        return np.array([self.rows[part][name] for name in self.names], np.int64)

    def _check_names(self, given: Mapping[str, object]) -> None:
        if sorted(given) != self.names:
            raise Refusal("weights: must be those of all sites of the group")

    def _restrict(self, part: str, matching: set[str]) -> None:
        if not matching:
            raise Refusal(f"weights: not those that follow from the agreed numbers of rows ({part})")
        if part == "training":
            self.weightings &= matching


def _equal(given: Array, expected: Array) -> bool:
    return given.shape == expected.shape and np.allclose(given, expected, rtol=RELATIVE_TOLERANCE, atol=0)
