"""Checks of a user's `torch.nn.Module` before training."""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

KEY = "model.module"
PROBE_ROWS = 4


def check_layers(label: str, module: Any) -> None:
    """Raise UserError unless the module has parameters of known sizes that are finite real numbers."""
    from torch.nn.parameter import is_lazy

    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise UserError(f"{KEY}: {label}: the size of {name} is unknown; give lazy layers their sizes")
        if not parameter.is_floating_point():
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UserError(f"{KEY}: {label}: parameter {name} is {kind}, must be real; use a buffer for constants")
        if not bool(parameter.isfinite().all()):
            raise UserError(f"{KEY}: {label}: parameter {name} has entries that are not finite")
        if parameter.requires_grad and parameter.numel() == 0:
            raise UserError(f"{KEY}: {label}: parameter {name} has no entries")
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UserError(f"{KEY}: {label} has no parameters to train")


def check_scores(label: str, module: Any, x: Array, shape: tuple[int, ...], outputs: int, purpose: str) -> bool:
    """Raise UserError unless every row has its own `outputs` finite scores; return True if training is random."""
    import torch

    rows = torch.from_numpy(np.array(x[np.arange(PROBE_ROWS) % len(x)])).reshape(-1, *shape)
    module = module.to(rows.dtype)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        _scores(label, module.train(), rows, outputs, purpose)
        is_random = not torch.equal(before, torch.get_rng_state())
        for name, buffer in module.named_buffers():
            if not torch.equal(buffer, buffers[name]):
                raise UserError(
                    f"{KEY}: {label}: training changes the buffer {name}, which is no parameter; use layers without "
                    "running statistics, such as GroupNorm instead of BatchNorm"
                )
        before = torch.get_rng_state()
        scores = _scores(label, module.eval(), rows, outputs, purpose)
        if not torch.equal(before, torch.get_rng_state()):
            raise UserError(f"{KEY}: {label}: scores are random after eval(); only training may be")
        fewer = _scores(label, module, rows[:2], outputs, purpose)
    if not bool(scores.isfinite().all()):
        raise UserError(f"{KEY}: {label}: the scores of the first rows are not finite")
    tolerance = 1e-3 if rows.dtype == torch.float32 else 1e-8
    if not torch.allclose(scores[:2], fewer, rtol=tolerance, atol=tolerance * float(scores.abs().max())):
        raise UserError(f"{KEY}: {label}: the scores of a row depend on the other rows of its batch")
    return is_random


def _scores(label: str, module: Any, rows: Any, outputs: int, purpose: str) -> Any:
    import torch

    given = tuple(rows.shape[1:])
    try:
        scores = module(rows)
    except Exception as problem:
        reason = (str(problem).strip().splitlines() or [""])[0]
        kind = type(problem).__name__
        text = f"{KEY}: {label}: {kind} for rows of shape {given}: {reason}"
        raise UserError(f"{text} (model.input_shape sets another shape)") from problem
    if not isinstance(scores, torch.Tensor):
        raise UserError(f"{KEY}: {label} returns {type(scores).__name__}, must return a tensor of scores")
    count, shape = len(rows), tuple(scores.shape)
    allowed = [(count, outputs)] + ([(count,)] if outputs == 1 else [])
    if shape not in allowed or scores.dtype != rows.dtype:
        kind = "" if scores.dtype == rows.dtype else f" of {str(scores.dtype).removeprefix('torch.')}"
        needed = f"{(count, outputs)} of {str(rows.dtype).removeprefix('torch.')}"
        raise UserError(f"{KEY}: {label} returns {shape}{kind} for {count} rows, must be {needed}: {purpose}")
    return scores
