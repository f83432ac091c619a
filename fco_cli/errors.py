"""The ways in which a command can end badly, and how each is said in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any


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


def is_foreseen(problem: Exception) -> bool:
    """Whether it is one of those above, or Hydra's or OmegaConf's word for a wrong configuration."""
    if isinstance(problem, UserError | Interrupted | SweepFailed | MemoryError | BrokenPipeError):
        return True
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return isinstance(problem, HydraException | OmegaConfBaseException)


@contextmanager
def as_python_errors() -> Iterator[None]:
    """What a user got wrong is a ValueError in Python, of the one line that a command says; Ctrl-C is what it is."""
    try:
        yield
    except Interrupted as problem:
        raise KeyboardInterrupt("stopped; the same call continues from what is saved") from problem
    except Exception as problem:
        if not is_foreseen(problem) or isinstance(problem, SweepFailed | MemoryError | BrokenPipeError):
            raise
        raise ValueError(one_line(problem)) from None


def require(condition: bool, key: str, given: object, allowed: str) -> None:
    """Refuse a value of the configuration in the one wording that every key uses."""
    if not condition:
        names = allowed.removeprefix("one of ").split(", ") if allowed.startswith("one of ") else []
        raise UserError(f"{key}: got {given!r}, must be {allowed}{did_you_mean(str(given), names)}")


def install_extra(extra: str) -> str:
    """Return how to install an optional dependency; on PyPI the name fco-cli is not this project's."""
    return f"run pip install '.[{extra}]' in the checkout of this project"


def no_such_key(key: str, allowed: Iterable[str], elsewhere: Iterable[str] = ()) -> UserError:
    """The wording for a key that no schema knows; `elsewhere` are whole keys of other groups."""
    allowed = list(allowed)
    group, dot, name = key.rpartition(".")
    same_name = [other for other in elsewhere if other.rpartition(".")[2] == name]
    hint = did_you_mean(name, allowed, group + dot)
    if same_name and not group:
        hint = f"; did you mean {' or '.join(same_name)}?"
    elif not hint and not group:
        hint = did_you_mean(name, elsewhere)
    return UserError(f"{key}: no such key; allowed: {', '.join(allowed)}{hint}")


def did_you_mean(word: str, names: Iterable[str], prefix: str = "") -> str:
    """The name that is nearest to the word by its last part, as the end of a message; nothing if none is near."""
    from difflib import get_close_matches

    by_last_part = {name.rpartition(".")[2]: name for name in names}
    near = get_close_matches(word, by_last_part, n=1, cutoff=0.7)
    return f"; did you mean {prefix}{by_last_part[near[0]]}?" if near else ""


def one_line(problem: BaseException) -> str:
    """What is wrong, key first, also where Hydra and OmegaConf say it over several lines or only in the cause."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

    cause = problem if isinstance(problem, OmegaConfBaseException) else problem.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and is_dataclass(cause.object_type):
        known = (field.name for field in fields(cause.object_type))
        root = cause.parent_node._get_root() if cause.parent_node is not None else None
        return str(no_such_key(cause.full_key or "", known, _keys_of(root)))
    if isinstance(cause, MissingMandatoryValue) and cause.full_key:
        return f"{cause.full_key}: has no value and needs one: {cause.full_key}=..."
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return f"{cause.full_key}: {_plainly(str(cause).splitlines()[0])}"
    if isinstance(problem, MissingConfigException) and problem.missing_cfg_file and problem.options:
        group, _, option = problem.missing_cfg_file.rpartition("/")
        hint = did_you_mean(option, problem.options)
        return f"{group}: got {option!r}, must be one of {', '.join(problem.options)}{hint}"
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if isinstance(problem, OverrideParseException):
        reason = (lines[-2] if len(lines) > 1 else lines[-1]) if "=" in problem.override else "it has no ="
        return f"{problem.override}: cannot be read as key=value: {reason}"
    if lines and (ambiguous := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", lines[0])):
        return f"{ambiguous[1]}: got several values, {ambiguous[2]}: -m (in Python: sweep) runs them all"
    return "; ".join(lines)


def _keys_of(node: Any, prefix: str = "") -> list[str]:
    """All keys of a composed configuration in full, Hydra's own left out."""
    from omegaconf import DictConfig

    if not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
        return [prefix] if prefix else []
    keys = [key for key in node if isinstance(key, str) and key != "hydra"]
    inner = (_keys_of(node._get_node(key), f"{prefix}.{key}" if prefix else key) for key in keys)
    return [key for found in inner for key in found]


def _plainly(message: str) -> str:
    """OmegaConf's words for a value of the wrong type, in ours."""
    message = re.sub(r"^field '.*' is not Optional$", "got null, must have a value", message)
    message = re.sub(r"^Value (.*) is not a valid bool.*$", r"got \1, must be true or false", message)
    message = re.sub(r"^Value (.*) of type '.*' could not be converted to (\w+)$", r"got \1, must be \2", message)
    message = re.sub(
        r"^Value (.*) of type .* 'Union\[int, float, str\]'$", r"got \1, must be a number or auto", message
    )
    message = re.sub(
        r"^Value (.*) of type .* 'Union\[int, str\]'$", r"got \1, must be a whole number or a word", message
    )
    return re.sub("Integer$", "a whole number", re.sub("Float$", "a number", message))
