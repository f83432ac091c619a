"""When two runs are the same: THE definition of the same data, the same problem, the same stack and the same run.

Computed once from a typed run and stored in its record; nobody else computes it. What a result does not depend on
(paths, threads, settings that an algorithm does not use) is left out. The code that a run executes is part of it: its
task, loss, regularizer, mirror map, algorithm, transform and engine with all that they refer to, in this package and in
the user's modules. A record made by other code is another record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fco_cli.code_digest import Definition, definition_of, digest_of
from fco_cli.errors import UserError

if TYPE_CHECKING:
    from fco_cli.config.run import Run

RATES = ("client_lr", "server_lr")  # they may vary along the job axis
ENDING = frozenset(("tolerance", "most_rounds"))  # when rounds=auto ends
EXECUTION = ("fco_cli.sweeps.runner", "execute")
PATH_EXECUTION = ("fco_cli.path.record", "recorded_selection")
# No number of a result depends on these: the configuration enters by its values.
WITHOUT_NUMBERS = ("config", "simulation.provenance", "simulation.stop", "kernels.cache")


@dataclass(frozen=True)
class Identity:
    """Equal strings mean equal things."""

    data: str  # the clients' rows, the model and the loss
    problem: str  # the same with regularizer, mirror map and weights of the clients: what is minimized
    family: str  # problems that differ only in the seed of their data
    stack: str  # runs that differ only in what may vary along the job axis
    run: str  # runs with the same result
    code: str  # the code that a run executes


def identity_of(run: Run) -> Identity:
    used = run.algo.uses | (ENDING if run.hparams.until_converged and "rounds" in run.algo.uses else frozenset())
    hparams = {key: value for key, value in asdict(run.hparams).items() if key in used}
    unused = packages_not_used(run)

    def described(part: Any) -> dict[str, Any]:
        return asdict(part) | code_of(part, unused)

    data = {"task": run.task.identity() | code_of(run.task, unused), "seed": run.seed, "dtype": run.hparams.dtype}
    kind = {"mirror": described(run.mirror), "weighting": run.hparams.weighting}
    psi, algo = described(run.regularizer), described(run.algo)
    # A record without the clients' models, or without snapshots, is no record of a run that asks for them.
    extra: dict[str, Any] = {key: True for key in ("record_clients", "record_path") if getattr(run, key)}
    if (noise := run.federation.noise) is not None:
        extra["evaluation_noise"] = asdict(noise)
    if run.path is not None:
        extra["path"] = asdict(run.path)
        psi.pop("strength" if "strength" in psi else "radius", None)  # what it chooses
    common = {
        **data, **kind, **extra,
        "execution": digest_of(execution_roots(run), (*WITHOUT_NUMBERS, *unused)),
        "regularizer": {"kind": run.regularizer.kind} | code_of(run.regularizer, unused),
        "algo": {key: value for key, value in algo.items() if key not in run.algo.varying_options()},
        "hparams": {key: value for key, value in hparams.items() if key not in RATES},
    }  # fmt: skip
    whole = {**common, "regularizer": psi, "algo": algo, "hparams": hparams}
    if (transform := run.method.transform).name != "none":  # it is none, too, where an algorithm sends no messages
        common["transform"] = {"kind": transform.name} | code_of(transform, unused)
        whole["transform"] = described(transform)
    return Identity(
        data=_digest(data),
        problem=_digest({**data, **kind, "regularizer": psi}),
        family=_digest({**data, **kind, "regularizer": psi, "seed": None}),
        stack=_digest(common),
        run=_digest(whole),
        code=executed_code(run),
    )


def executed_code(run: Run) -> str:
    """Return a digest of all code that a run executes."""
    parts = (run.task, run.algo, run.regularizer, run.mirror, run.method.transform)
    classes = tuple(kind for part in parts for kind in part_classes(part))
    return digest_of((*execution_roots(run), *classes), (*WITHOUT_NUMBERS, *packages_not_used(run)))


def check_code(run: Run) -> None:
    """Raise UserError if this process does not have the code by which the run was identified, in another process."""
    if executed_code(run) != run.identity.code:
        raise UserError(f"{run.folder}: the code was edited after this command started; run the command again")


def code_of(part: Any, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the digest of a part's class, of the classes it holds, and of all code that they refer to."""
    return {"code": digest_of(tuple(part_classes(part)), (*WITHOUT_NUMBERS, *without))}


def part_classes(part: Any) -> Iterator[type]:
    """Yield the class of a part and the classes that it looks up by a configured name."""
    yield type(part)
    yield from part.bound_classes() if hasattr(part, "bound_classes") else ()


def execution_roots(run: Run) -> tuple[Definition, ...]:
    """Return the functions that turn a run into its record."""
    return PATH_EXECUTION if run.path is not None else EXECUTION, definition_of(type(run.hparams))


def packages_not_used(run: Run) -> tuple[str, ...]:
    """Return the packages that the text refers to but that this run does not execute."""
    return () if run.federation.apart else ("federation",)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
