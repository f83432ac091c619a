"""The ways in which a command can end badly, and how each is said in one line."""

from __future__ import annotations

import re


class UserError(Exception):
    """Something the user gave is wrong: one clear line, exit code 2, no traceback."""


class Interrupted(Exception):
    """A signal asked the run to stop; its checkpoint is on disk."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.exit_code = 128 + signal_number


class SweepFailed(Exception):
    """Some runs of a sweep failed; the message lists them, a line each."""


def require(condition: bool, key: str, given: object, allowed: str) -> None:
    """Refuse a value of the configuration in the one wording that every key uses."""
    if not condition:
        raise UserError(f"{key}: got {given!r}, must be {allowed}")


def one_line(problem: BaseException) -> str:
    """What Hydra and OmegaConf say over several lines, in one."""
    return re.sub(r"\s*\n\s*", "; ", str(problem).strip())
