"""Progress display for a list of long steps: a progress bar on a terminal, otherwise a log line per step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items and show the progress."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=len(items))
        for number, item in enumerate(items, 1):
            if not console.is_terminal:
                log.info("%s: %d of %d", what, number, len(items))
            yield item
            bar.update(task, completed=number)
