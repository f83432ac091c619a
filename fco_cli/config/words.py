"""The gate for the command line: what Hydra would take without a word, or answer with a traceback, is refused here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fco_cli.errors import UserError, did_you_mean
from fco_cli.help import GROUPS, options_of

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

CONDITION = re.compile(r"(task\.label)=([^'\"\[,]*[<>=!][^'\"\[,]*)")
MAY_BE_NULL = ("experiment", "hparams/grid")


def quoted(word: str) -> str:
    """A label's condition in the quotes that the shell has taken off: Hydra's grammar has no < and no >."""
    condition = CONDITION.fullmatch(word)
    return f"{condition[1]}='{condition[2]}'" if condition else word


def check_words(words: list[str]) -> None:
    """Refuse what no schema sees: the choice of an option of a group, and switches, for which every number is true."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from fco_cli.config.schemas import switches

    parser, known_switches = OverridesParser.create(), switches()
    for word in words:
        if word.startswith("-") or ("=" not in word and not word.startswith("~")):
            continue  # a flag, or what Hydra refuses itself
        try:
            override = parser.parse_override(word)
        except HydraException:
            continue  # it will say so itself, with the place
        _check(override, word, known_switches)


def _check(override: Override, word: str, switches: frozenset[str]) -> None:
    key, group = override.key_or_group, override.key_or_group.partition(".")[0]
    if key in GROUPS:
        if override.is_delete() and key not in MAY_BE_NULL:
            raise UserError(f"{key}: cannot be removed ({word}); {key}=... chooses another")
        for value in _values(override):
            _check_choice(key, value)
    elif group in ("experiment", "profile") and override.is_add():
        raise UserError(f"{key}: no such key; {group}=... chooses among {', '.join(options_of(group))}")
    elif key == "theory" and {} in _values(override):
        raise UserError("theory: got {}, which changes nothing; must be keys with values, such as theory.seeds=4")
    elif key in switches:
        for value in _values(override):
            if isinstance(value, int) and value not in (0, 1):  # Booleans are integers
                raise UserError(f"{key}: got {value}, must be true or false")


def _values(override: Override) -> Iterator[Any]:
    """The value, or each value of a sweep that lists them."""
    from hydra.core.override_parser.types import ChoiceSweep

    value = override._value
    for one in value.list if isinstance(value, ChoiceSweep) else [value]:
        yield getattr(one, "text", one)  # what stood in quotes


def _check_choice(group: str, value: Any) -> None:
    options = options_of(group)
    if value is None and group in MAY_BE_NULL:
        return
    if isinstance(value, list):
        raise UserError(f"{group}: got {len(value)} options, must be one; with -m: {group}=first,second")
    if isinstance(value, int | float | dict) or value is None or value == "":
        given = "null" if value is None else repr(value)
        raise UserError(f"{group}: got {given}, must be one of {', '.join(options)}")
    if isinstance(value, str) and ("/" in value or "." in value or ":" in value):
        raise UserError(f"{group}: got {value!r}, must be one of {', '.join(options)}{did_you_mean(value, options)}")
