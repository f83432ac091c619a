"""A hospital that sends what it should not; Python runs this first where its PYTHONPATH has this folder."""

from __future__ import annotations

import time

import numpy as np

from fco_cli.federation.message import Message
from fco_cli.federation.site.site import Site

honest = Site.answer


def answer(self: Site, content: bytes) -> bytes:
    """In its second round it is silent, then not finite, and at last of another shape and type."""
    told = Message.unpacked(honest(self, content))
    if told.kind != "train":
        return told.packed()
    changed = {
        1: lambda values: time.sleep(2.5) or values,
        2: lambda values: np.full_like(values, np.nan),
        3: lambda values: np.full_like(values, np.inf),
        4: lambda values: values[:, 1:].astype(np.float32),
    }.get(Message.unpacked(content).head["round"], lambda values: values)
    return Message("train", told.head, {name: changed(values) for name, values in told.arrays.items()}).packed()


Site.answer = answer  # type: ignore[method-assign]
