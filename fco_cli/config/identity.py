"""Identity of a run: digests that define when two runs have the same data, problem, stack or result.

The identity is computed once from a typed run and stored in its record. It excludes everything that does not affect
the result: paths, threads, and settings that the algorithm does not use. It includes the code that the run executes:
task, loss, regularizer, mirror map, algorithm, transform and engine, with all code they refer to in this package and in
the user's modules. A record made by other code is therefore another record.
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

RATES = ("client_lr", "server_lr")  # may vary along the job axis
STOPPING_KEYS = frozenset(("tolerance", "most_rounds"))  # stopping rule of rounds=auto
# Packages and modules that no result depends on; the configuration enters by its values.
WITHOUT_NUMBERS = ("config", "problem.registry", "simulation.process", "kernels.cache")


@dataclass(frozen=True)
class Identity:
    """Digests of a run; two runs with equal digests agree in the following."""

    data: str  # the clients' rows, the model and the loss
    problem: str  # the data, the regularizer, the mirror map and the client weights
    family: str  # the problem up to the seed of its data
    stack: str  # everything except settings that may vary along the job axis
    run: str  # the result
    trajectory: str  # the result up to the number of rounds: a longer run begins with a shorter one
    code: str  # the executed code


def identity_of(run: Run) -> Identity:
    """Return the identity of a run."""
    used = run.algo.uses | (STOPPING_KEYS if run.hparams.until_converged and "rounds" in run.algo.uses else frozenset())
    hparams = {key: value for key, value in asdict(run.hparams).items() if key in used}
    unused = packages_not_used(run)

    def described(part: Any) -> dict[str, Any]:
        return asdict(part) | code_of(part, unused)

    data = {"task": run.task.identity() | code_of(run.task, unused), "seed": run.seed, "dtype": run.hparams.dtype}
    if run.task.model.name != "auto":
        data["model"] = run.task.model.identity() | code_of(run.task.model, unused)
    kind = {"mirror": described(run.mirror), "weighting": run.hparams.weighting}
    psi, algo = described(run.regularizer), described(run.algo) | run.algo.contents()
    # A run that records client models or snapshots needs another record than one without.
    extra: dict[str, Any] = {key: True for key in ("record_clients", "record_path") if getattr(run, key)}
    if (noise := run.federation.noise) is not None:
        extra["evaluation_noise"] = asdict(noise)
    extra |= run.own_identity()
    psi.pop(run.selected_parameter or "", None)
    common = {
        **data, **kind, **extra,
        "execution": digest_of(execution_roots(run), (*WITHOUT_NUMBERS, *unused)),
        "regularizer": {"kind": run.regularizer.kind} | code_of(run.regularizer, unused),
        "algo": {key: value for key, value in algo.items() if key not in run.algo.varying_options()},
        "hparams": {key: value for key, value in hparams.items() if key not in RATES},
    }  # fmt: skip
    if not run.network.is_plain:
        settings, parts = run.network.identity(), run.network.parts
        common["network"] = {key: settings[key] | code_of(part, unused) for key, part in parts.items()}
    whole = {**common, "regularizer": psi, "algo": algo, "hparams": hparams}
    if (transform := run.method.transform).name != "none":  # also "none" for an algorithm without messages
        whole["transform"] = described(transform)
        # The size of messages decides which clients are late, so that jobs of one stack must have equal sizes.
        is_shared = run.network.aggregation.depends_on_times
        common["transform"] = whole["transform"] if is_shared else {"kind": transform.name} | code_of(transform, unused)
    return Identity(
        data=_digest(data),
        problem=_digest({**data, **kind, "regularizer": psi}),
        family=_digest({**data, **kind, "regularizer": psi, "seed": None}),
        stack=_digest(common),
        run=_digest(whole),
        trajectory=_digest({**whole, "hparams": {key: value for key, value in hparams.items() if key != "rounds"}}),
        code=executed_code(run),
    )


def executed_code(run: Run) -> str:
    """Return the digest of all code that a run executes."""
    parts = (run.task, run.task.model, run.algo, run.regularizer, run.mirror, run.method.transform)
    parts += () if run.network.is_plain else tuple(run.network.parts.values())
    classes = tuple(kind for part in parts for kind in part_classes(part))
    return digest_of((*execution_roots(run), *classes), (*WITHOUT_NUMBERS, *packages_not_used(run)))


def check_code(run: Run) -> None:
    """Raise UserError if this process has other code than the process that computed the run's identity."""
    if executed_code(run) != run.identity.code:
        raise UserError(f"{run.folder}: the code was edited after this command started; run the command again")


def code_of(part: Any, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the digest of a part's class, its bound classes, and all code that they refer to."""
    return {"code": digest_of(tuple(part_classes(part)), (*WITHOUT_NUMBERS, *without))}


def part_classes(part: Any) -> Iterator[type | Definition]:
    """Yield the class of a part and the classes and definitions that it looks up by a configured name."""
    yield type(part)
    yield from part.bound_classes() if hasattr(part, "bound_classes") else ()


def execution_roots(run: Run) -> tuple[Definition, ...]:
    """Return the functions that turn a run into its record."""
    return run.execution, definition_of(type(run.hparams))


def packages_not_used(run: Run) -> tuple[str, ...]:
    """Return the packages that the code refers to but this run does not execute."""
    return () if run.federation.is_remote else ("federation",)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
