"""When two runs are the same: THE definition of the same data, the same problem, the same stack and the same run.

Computed once from a typed run and stored in its record; nobody else computes it. What a result does not depend on
(paths, threads, settings that an algorithm does not use) is left out; the source of the algorithm, of the regularizer
and of the task is part of it, for a record made by other code is another record.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fco_cli.config.run import Run

RATES = ("client_lr", "server_lr")  # they may vary along the job axis
ENDING = frozenset(("tolerance", "most_rounds"))  # when rounds=auto ends


@dataclass(frozen=True)
class Identity:
    """Equal strings mean equal things."""

    data: str  # the clients' rows, the model and the loss
    problem: str  # the same with regularizer, mirror map and weights of the clients: what is minimized
    family: str  # problems that differ only in the seed of their data
    stack: str  # runs that differ only in what may vary along the job axis
    run: str  # runs with the same result


def identity_of(run: Run) -> Identity:
    used = run.algo.uses | (ENDING if run.hparams.until_converged and "rounds" in run.algo.uses else frozenset())
    hparams = {key: value for key, value in asdict(run.hparams).items() if key in used}
    data = {"task": run.task.identity() | source_of(run.task), "seed": run.seed, "dtype": run.hparams.dtype}
    kind = {"mirror": asdict(run.mirror) | source_of(run.mirror), "weighting": run.hparams.weighting}
    psi = asdict(run.regularizer) | source_of(run.regularizer)
    algo = asdict(run.algo) | source_of(run.algo)
    # A record without the clients' models, or without snapshots, is no record of a run that asks for them.
    extra: dict[str, Any] = {key: True for key in ("record_clients", "record_path") if getattr(run, key)}
    if (noise := run.federation.noise) is not None:
        extra["evaluation_noise"] = asdict(noise)
    if run.path is not None:
        extra["path"] = asdict(run.path) | source_of(run.path)
        psi.pop("strength" if "strength" in psi else "radius", None)  # what it chooses
    common = {
        **data, **kind, **extra,
        "regularizer": {"kind": run.regularizer.kind} | source_of(run.regularizer),
        "algo": {key: value for key, value in algo.items() if key not in run.algo.varying_options()},
        "hparams": {key: value for key, value in hparams.items() if key not in RATES},
    }  # fmt: skip
    whole = {**common, "regularizer": psi, "algo": algo, "hparams": hparams}
    if (transform := run.method.transform).name != "none":  # it is none, too, where an algorithm sends no messages
        common["transform"] = {"kind": transform.name} | source_of(transform)
        whole["transform"] = asdict(transform) | source_of(transform)
    return Identity(
        data=_digest(data),
        problem=_digest({**data, **kind, "regularizer": psi}),
        family=_digest({**data, **kind, "regularizer": psi, "seed": None}),
        stack=_digest(common),
        run=_digest(whole),
    )


def source_of(part: object) -> dict[str, str]:
    """A digest of the modules that a part's class and its ancestors are written in."""
    kind: Any = type(part)  # a class is hashable, whatever mypy thinks of object's
    return {"source": _source(kind)}


@functools.cache
def _source(kind: type) -> str:
    modules = {ancestor.__module__ for ancestor in kind.__mro__} - {"builtins", "abc"}
    return _digest([_meaning(module) for module in sorted(modules)])


@functools.cache
def _meaning(module: str) -> str:
    """A module's text without comments, docstrings and layout, none of which changes a result."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # written in a session: it has a name only
        return module
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
