"""Record-level differential privacy (DP-SGD: Abadi et al., 2016): noise that hides single rows, not whole clients.

In every local step a client draws a Poisson sample of its rows, clips the gradient of every row and adds Gaussian noise
to their sum. A message, the client's memory and the model are then computed from noisy sums only: epsilon bounds what
any reader of the messages learns about one row, also if all other parties cooperate. If only sums of messages can be
read (secure aggregation), `noise_shares` clients can share the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.algorithms.numba_backend import keep_message
from fco_cli.algorithms.transforms.base import Evaluations, Releases, Transform
from fco_cli.algorithms.transforms.clip_noise import check_clip_and_noise
from fco_cli.algorithms.transforms.row_accounting import RowSums, row_epsilon, undominated
from fco_cli.errors import UserError, install_extra, require
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.private_descent import private_gradient_step
from fco_cli.problem.problem import Problem

if TYPE_CHECKING:
    from fco_cli.algorithms.round import FederatedRound


@dataclass(kw_only=True)
class RowClipNoise(Transform):
    """Clipping of row gradients to `clip_norm` and Gaussian noise on their sum in every local step.

    The noise has standard deviation `noise_multiplier` * `clip_norm`, in the sum of any `noise_shares` clients.
    Messages are sent as they are.
    """

    name: str = "row_clip_noise"
    clip_norm: float = 1.0  # largest l2 norm of a row's gradient; longer ones are scaled down
    noise_multiplier: float = 1.0  # 0: clipping only, no privacy
    delta: float = 1e-5  # delta of (epsilon, delta)-differential privacy
    noise_shares: int = 1  # clients that share the noise of a sum of messages; 1: every client adds the whole noise
    encode = keep_message
    protects_rows = True
    gradient_step = private_gradient_step

    def __post_init__(self) -> None:
        check_clip_and_noise(self.clip_norm, self.noise_multiplier, self.delta)
        require(self.noise_shares >= 1, "transform.noise_shares", self.noise_shares, "a whole number >= 1")

    @property
    def shares(self) -> int:
        return self.noise_shares

    def check(self, algorithm: FederatedRound, weighting: str) -> None:
        allowed = f"another: {algorithm.name} takes several gradients of the same rows"
        require(algorithm.row_sums is not None, "transform", self.name, allowed)
        algorithm.check_shares()
        if self.noise_multiplier > 0 and find_spec("dp_accounting") is None:
            raise UserError(f"transform: row_clip_noise needs dp-accounting: {install_extra('privacy')}")

    def check_problem(self, problem: Problem) -> None:
        loss, model = problem.loss, problem.model
        why = {
            "needs a linear model": not isinstance(model, Linear),
            "does not support task.site_intercept, which depends on all rows of a client": model.site_bias,
            f"does not support the {loss.name} loss, which is not a sum over rows": loss.client_loss is not None,
            "does not support row weights (task.weights, task.class_weight)": problem.data.row_weights is not None,
        }
        for reason, applies in why.items():
            require(not applies, "transform", self.name, f"another: it {reason}")

    def privacy_spent(
        self,
        rounds: int,
        sampled: int,
        clients: int,
        dropped: Array,
        numbers: Numbers,
        evaluated: Evaluations | None = None,
        releases: Releases | None = None,
    ) -> dict[str, Array]:
        """Return `epsilon` of the model and `epsilon_run` of the rounds and the evaluations, for one row.

        Both are maxima over the clients and include a noisy preparation. `epsilon_run` is infinite if evaluations are
        exact, as in a simulation.
        Dropped messages change neither: clipped gradients are finite, so that no row can make a message infinite.
        """
        assert releases is not None
        pairs = undominated(zip(releases.sums.tolist(), releases.sampling.tolist(), strict=True))
        exact = Evaluations(1, 0.0) if evaluated is None else evaluated
        answers = RowSums(exact.answers, 1.0, exact.noise_multiplier)
        noise = releases.preparation_noise
        prepared = () if noise is None else (RowSums(1, 1.0, noise),)
        spent: dict[str, list[float]] = {"epsilon": [], "epsilon_run": []}
        for multiplier, delta in zip(numbers["noise_multiplier"].tolist(), numbers["delta"].tolist(), strict=True):
            for name, others in (("epsilon", prepared), ("epsilon_run", (*prepared, answers))):
                each = [row_epsilon((RowSums(*pair, multiplier / releases.change), *others), delta) for pair in pairs]
                spent[name].append(max(each))
        return {name: np.array(values) for name, values in spent.items()}
