"""How a run is simulated: the `hparams` group of the configuration (docs/method.md, "Experiments")."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fco_cli.errors import require


@dataclass
class Hparams:
    """The `hparams` group."""

    client_lr: float  # eta_c
    server_lr: float  # eta_s
    rounds: int
    clients_per_round: int
    batch_size: int
    local_epochs: int
    eval_every: int = 1
    weighting: str = "uniform"  # of the clients in F and in every mean: uniform, or by their number of examples
    normalize_steps: bool = True  # divide a client's change by its number of steps; false: the paper's plain mean,
    # which with unequal clients solves the problem that weighs client m by p_m K_m
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for key in ("client_lr", "server_lr"):
            value = getattr(self, key)
            require(math.isfinite(value) and value > 0, f"hparams.{key}", value, "a number > 0")
        for key in ("rounds", "clients_per_round", "batch_size", "local_epochs", "eval_every"):
            require(getattr(self, key) >= 1, f"hparams.{key}", getattr(self, key), "a whole number >= 1")
        require(self.weighting in ("uniform", "examples"), "hparams.weighting", self.weighting, "uniform or examples")
        require(self.dtype in ("float32", "float64"), "hparams.dtype", self.dtype, "float32 or float64")
