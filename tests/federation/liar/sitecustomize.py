"""Hospital that sends invalid responses; Python imports this module at start if PYTHONPATH has this folder."""

from __future__ import annotations

import time

import numpy as np

from fco_cli.federation.message import Message
from fco_cli.federation.site.site import Site

honest_handle = Site.handle


def handle(self: Site, content: bytes) -> bytes:
    """Delay the response of round 2, then send NaN, infinity, and another shape and type."""
    response = Message.unpacked(honest_handle(self, content))
    if response.kind != "train":
        return response.packed()
    changed = {
        1: lambda values: time.sleep(2.5) or values,
        2: lambda values: np.full_like(values, np.nan),
        3: lambda values: np.full_like(values, np.inf),
        4: lambda values: values[:, 1:].astype(np.float32),
    }.get(Message.unpacked(content).head["round"], lambda values: values)
    return Message("train", response.head, {name: changed(values) for name, values in response.arrays.items()}).packed()


Site.handle = handle  # type: ignore[method-assign]
