"""Exceptions of the commands, and their messages in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any


class UserError(Exception):
    """Invalid user input, reported as one line with exit code 2 and no traceback."""


class NoCertificate(UserError):
    """A solver that stopped before reaching its tolerance; other runs of the same sweep may still succeed."""


class Interrupted(Exception):
    """A stop by a signal, after the checkpoint was written."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.exit_code = 128 + signal_number


class SweepFailed(Exception):
    """Failure of some runs of a sweep; the message lists them, one per line."""


class NotConverged(SweepFailed):
    """Selected models of a path that have not reached their tolerance; the record is complete."""


def is_expected(problem: Exception) -> bool:
    """Return True for the exceptions above and for configuration errors of Hydra and OmegaConf."""
    if isinstance(problem, UserError | Interrupted | SweepFailed | MemoryError | BrokenPipeError):
        return True
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return isinstance(problem, HydraException | OmegaConfBaseException)


@contextmanager
def as_python_errors() -> Iterator[None]:
    """Convert errors of the user into ValueError with one line, and Interrupted into KeyboardInterrupt."""
    try:
        yield
    except Interrupted as problem:
        raise KeyboardInterrupt("stopped; the same call continues from what is saved") from problem
    except Exception as problem:
        if not is_expected(problem) or isinstance(problem, SweepFailed | MemoryError | BrokenPipeError):
            raise
        raise ValueError(one_line(problem)) from None


def require(condition: bool, key: str, given: object, allowed: str) -> None:
    """Raise UserError about the value of a key unless the condition holds."""
    if not condition:
        names = allowed.removeprefix("one of ").split(", ") if allowed.startswith("one of ") else []
        raise UserError(f"{key}: got {given!r}, must be {allowed}{did_you_mean(str(given), names)}")


def install_extra(extra: str) -> str:
    """Return how to install an optional dependency; fco-cli on PyPI is another project."""
    return f"run pip install '.[{extra}]' in the checkout of this project"


OWN_TABLE = ("task.path", "task.label", "task.client")  # keys of task=custom


def no_such_key(key: str, allowed: Iterable[str], other_keys: Iterable[str] = ()) -> UserError:
    """Return the error for an unknown key; `other_keys` are the full keys of other groups, for suggestions."""
    allowed = list(allowed)
    group, dot, name = key.rpartition(".")
    same_name = [other for other in other_keys if other.rpartition(".")[2] == name]
    hint = did_you_mean(name, allowed, group + dot)
    if same_name and not group:
        hint = f"; did you mean {' or '.join(same_name)}?"
    elif not hint and not group:
        hint = did_you_mean(name, other_keys)
    if key in OWN_TABLE:
        hint = "; for your own table, add task=custom"
    return UserError(f"{key}: no such key; allowed: {', '.join(allowed)}{hint}")


def did_you_mean(text: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion with the name whose last part is most similar to the text; empty if none is similar."""
    from difflib import get_close_matches

    by_last_part = {name.rpartition(".")[2]: name for name in names}
    near = get_close_matches(text, by_last_part, n=1, cutoff=0.7)
    return f"; did you mean {prefix}{by_last_part[near[0]]}?" if near else ""


def one_line(problem: BaseException) -> str:
    """Return the message of an exception in one line, key first, also for those of Hydra and OmegaConf."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

    cause = problem if isinstance(problem, OmegaConfBaseException) else problem.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and is_dataclass(cause.object_type):
        known = (field.name for field in fields(cause.object_type))
        root = cause.parent_node._get_root() if cause.parent_node is not None else None
        return str(no_such_key(cause.full_key or "", known, _keys_of(root)))
    if isinstance(cause, MissingMandatoryValue) and cause.full_key:
        return f"{cause.full_key}: has no value and needs one: {cause.full_key}=..."
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and "is not a ListConfig" in str(cause):
        example = f", such as [{cause.value}]" if isinstance(cause.value, str | int | float) else ""
        return f"{cause.full_key}: got {str(cause.value)!r}, must be a list{example}"
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return f"{cause.full_key}: {_reworded(str(cause).splitlines()[0])}"
    if isinstance(problem, MissingConfigException) and problem.missing_cfg_file and problem.options:
        group, _, option = problem.missing_cfg_file.rpartition("/")
        hint = did_you_mean(option, problem.options)
        return f"{group}: got {option!r}, must be one of {', '.join(problem.options)}{hint}"
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if isinstance(problem, OverrideParseException):
        reason = (lines[-2] if len(lines) > 1 else lines[-1]) if "=" in problem.override else "it has no ="
        reason = reason if reason.strip("^") else "quote its value, such as \"key='a/ü'\""
        return f"{problem.override}: cannot be read as key=value: {reason}"
    if lines and (ambiguous := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", lines[0])):
        return f"{ambiguous[1]}: got several values, {ambiguous[2]}: -m (in Python: sweep) runs them all"
    return "; ".join(lines)


def _keys_of(node: Any, prefix: str = "") -> list[str]:
    """Return all full keys of a composed configuration except Hydra's."""
    from omegaconf import DictConfig

    if not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
        return [prefix] if prefix else []
    keys = [key for key in node if isinstance(key, str) and key != "hydra"]
    inner = (_keys_of(node._get_node(key), f"{prefix}.{key}" if prefix else key) for key in keys)
    return [key for group in inner for key in group]


def _reworded(message: str) -> str:
    """Return OmegaConf's message about a value of the wrong type in the wording of `require`."""
    message = re.sub(r"^field '.*' is not Optional$", "got null, must have a value", message)
    message = re.sub(r"^Invalid type assigned: NoneType .*$", "got null, must have a value", message)
    message = re.sub(r"^Cannot merge DictConfig with ListConfig$", "got a mapping, must be a list", message)
    message = re.sub(r"^Cannot convert '\w+' to string: '(.*)'$", r"got \1, must be a text", message)
    message = re.sub(r"^Value (.*) is not a valid bool.*$", r"got \1, must be true or false", message)
    message = re.sub(r"^Value (.*) of type '.*' could not be converted to (\w+)$", r"got \1, must be \2", message)
    message = re.sub(
        r"^Value (.*) of type .* 'Union\[int, float, str\]'$", r"got \1, must be a number or auto", message
    )
    message = re.sub(
        r"^Value (.*) of type .* 'Union\[int, str\]'$", r"got \1, must be a whole number or a text", message
    )
    return re.sub("Integer$", "a whole number", re.sub("Float$", "a number", message))
