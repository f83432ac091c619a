"""The ways in which a command can end badly, and how each is said in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass


class UserError(Exception):
    """Something the user gave is wrong: one clear line, exit code 2, no traceback."""


class NoCertificate(UserError):
    """A solver has stopped short of what was asked of it; another run of the same sweep may well arrive."""


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


def no_such_key(key: str, allowed: Iterable[str]) -> UserError:
    """The wording for a key that no schema knows."""
    return UserError(f"{key}: no such key; allowed: {', '.join(allowed)}")


def one_line(problem: BaseException) -> str:
    """What is wrong, key first, also where Hydra and OmegaConf say it over several lines or only in the cause."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

    cause = problem if isinstance(problem, OmegaConfBaseException) else problem.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and is_dataclass(cause.object_type):
        return str(no_such_key(cause.full_key or "", (field.name for field in fields(cause.object_type))))
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return f"{cause.full_key}: {_plainly(str(cause).splitlines()[0])}"
    if isinstance(problem, MissingConfigException) and problem.missing_cfg_file and problem.options:
        group, _, option = problem.missing_cfg_file.rpartition("/")
        return f"{group}: got {option!r}, must be one of {', '.join(problem.options)}"
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if isinstance(problem, OverrideParseException):
        return f"{problem.override}: cannot be read as key=value: {lines[-2] if len(lines) > 1 else lines[-1]}"
    if lines and (ambiguous := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", lines[0])):
        return f"{ambiguous[1]}: got several values, {ambiguous[2]}: -m runs one after the other"
    return "; ".join(lines)


def _plainly(message: str) -> str:
    """OmegaConf's words for a value of the wrong type, in ours."""
    message = re.sub(r"^field '.*' is not Optional$", "got null, must have a value", message)
    message = re.sub(r"^Missing mandatory value: .*$", "has no value", message)
    message = re.sub(r"^Value (.*) is not a valid bool.*$", r"got \1, must be true or false", message)
    message = re.sub(r"^Value (.*) of type '.*' could not be converted to (\w+)$", r"got \1, must be \2", message)
    return re.sub("Integer$", "a whole number", re.sub("Float$", "a number", message))
