"""The `hparams` group of the configuration (docs/paper.md, "Experiments")."""

from __future__ import annotations

from dataclasses import dataclass

from fco_cli.algorithms.rounds import MAX_FRACTION_BITS
from fco_cli.client_rate import positive, relative
from fco_cli.errors import require
from fco_cli.problem.streams import LAST_BATCHES

AUTO, ALL = "auto", "all"


@dataclass
class Hparams:
    """The `hparams` group."""

    client_lr: int | float | str  # eta_c; auto is 1/L, estimated from the data (simulation/smoothness.py)
    server_lr: float  # eta_s
    rounds: int | str  # auto: until the KKT residual is at most `tolerance` (simulation/evaluate.py)
    clients_per_round: int | str  # a number, or all
    batch_size: int  # rows of a local step
    local_epochs: int  # passes over a client's rows in a round
    eval_every: int = 1  # rounds between evaluations
    weighting: str = "uniform"  # client weights p_m in F and in every mean: uniform, or examples (rows per client)
    normalize_steps: bool = True  # divide a client's update by its number of steps; false: the paper's plain mean,
    # which weighs client m by p_m K_m if the clients take different numbers of steps
    last_batch: str = "keep"  # remaining rows of an epoch: keep as a smaller batch, drop, or straddle into the next
    dtype: str = "float64"  # of rows and weights: float32 or float64
    fraction_bits: int | None = None  # add messages in 64-bit fixed point with this number of fractional bits, required
    # by masks (docs/federation.md); null: floating point
    tolerance: float = 1e-8  # on the relative KKT residual
    most_rounds: int = 20_000  # limit of rounds=auto

    def __post_init__(self) -> None:
        if relative(self.client_lr) is None:
            allowed = "a number > 0, auto or a multiple of 1/L such as 0.3/L"
            self.client_lr = positive("hparams.client_lr", self.client_lr, allowed)
        self.server_lr = positive("hparams.server_lr", self.server_lr, "a number > 0")
        symbols = {"rounds": AUTO, "clients_per_round": ALL}
        for key in ("rounds", "clients_per_round", "batch_size", "local_epochs", "eval_every", "most_rounds"):
            value, symbol = getattr(self, key), symbols.get(key)
            allowed = "a whole number >= 1" if symbol is None else f"a whole number >= 1 or {symbol}"
            require(value == symbol or (isinstance(value, int) and value >= 1), f"hparams.{key}", value, allowed)
        require(0 < self.tolerance < 1, "hparams.tolerance", self.tolerance, "above 0, below 1")
        require(self.weighting in ("uniform", "examples"), "hparams.weighting", self.weighting, "uniform or examples")
        require(self.last_batch in LAST_BATCHES, "hparams.last_batch", self.last_batch, "keep, drop or straddle")
        is_valid = self.fraction_bits is None or 8 <= self.fraction_bits <= MAX_FRACTION_BITS
        require(
            is_valid,
            "hparams.fraction_bits",
            self.fraction_bits,
            f"null or a whole number from 8 to {MAX_FRACTION_BITS}",
        )
        require(self.dtype in ("float32", "float64"), "hparams.dtype", self.dtype, "float32 or float64")

    @property
    def until_converged(self) -> bool:
        return self.rounds == AUTO

    @property
    def last_round(self) -> int:
        """Largest number of rounds."""
        return self.most_rounds if isinstance(self.rounds, str) else self.rounds

    def sampled(self, clients: int) -> int:
        """Return how many of `clients` participate in a round."""
        return clients if isinstance(self.clients_per_round, str) else self.clients_per_round
