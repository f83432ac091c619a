"""Composition of configurations with Hydra, called from Python, and checks of overrides.

The checks find overrides that Hydra would accept silently or answer with a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fco_cli.errors import UserError, did_you_mean, is_expected, one_line
from fco_cli.help import GROUPS, options_of

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

FORMULA = re.compile(r"(task\.formula)=(?!null$)([^'\"].*)")
CONDITION = re.compile(r"(task\.label)=([^'\"\[,]*[<>=!][^'\"\[,]*)")
TEXT_KEYS = (
    "label",
    "event",
    "client",
    "split",
    "weights",
    "patient",
    "decimal",
    "offset",
    "exposure",
    "path",
    "data_dir",
)  # of tasks on tables: a text
COLUMN_LISTS = ("drop", "categorical", "missing", "names", "derive", "map")  # of task=custom: a list of texts
TEXTS = re.compile(rf"(output_dir|task\.(?:{'|'.join(TEXT_KEYS)}))=(.+)")
LISTS = re.compile(rf"(task\.(?:{'|'.join(COLUMN_LISTS)}))=\[(.*)\]")
ELEMENT = re.compile(r"""\s*('[^']*'|"[^"]*"|[^,'"(]*(?:\([^)]*\))?[^,'"]*)\s*(?:,|$)""")
QUOTES = ("'", '"')
OPTIONAL_GROUPS = ("experiment", "hparams/grid")


@contextmanager
def initialized_hydra() -> Iterator[Hydra]:
    """Initialize Hydra with the package's configuration; restore the application's global Hydra afterwards."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    from fco_cli.config.schemas import register

    register()
    original = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("fco_cli.conf", job_name="fco", version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            yield hydra
    finally:
        GlobalHydra.instance().hydra = original


def compose(overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of one run."""
    import hydra

    with initialized_hydra():
        return hydra.compose("config", list(overrides))


@contextmanager
def attribute_errors_to_overrides(started: list[bool], where: str) -> Iterator[None]:
    """Convert any exception into a UserError about the overrides, unless `started` is nonempty.

    Until our own code has started, only Hydra has run, and its exceptions are caused by the overrides.
    """
    try:
        yield
    except Exception as problem:
        if started or is_expected(problem):
            raise
        raise UserError(f"{where}: {type(problem).__name__}: {one_line(problem)}") from problem


def quote_texts(override: str) -> str:
    """Return an override with quotes around column names and conditions, which need not follow Hydra's grammar.

    `task.client=subject#`, `task.label=num>0`, `task.drop=[heart rate,a/b (%)]` and
    `task.formula=age * sex + bs(chol, df=4)` need no quotes of their own.
    """
    if formula := FORMULA.fullmatch(override):
        return f"{formula[1]}={_quoted(formula[2])}"
    if condition := CONDITION.fullmatch(override):
        return f"{condition[1]}={_quoted(condition[2])}"
    text, texts = TEXTS.fullmatch(override), LISTS.fullmatch(override)
    if (text or texts) and not _is_parseable(override):
        if text and _is_parseable(quoted := f"{text[1]}={_quoted(text[2])}"):
            return quoted
        if texts:
            elements = [match[1].strip() for match in ELEMENT.finditer(texts[2]) if match[0]]
            quoted = f"{texts[1]}=[{','.join(one if one[:1] in QUOTES else _quoted(one) for one in elements)}]"
            return quoted if _is_parseable(quoted) else override
    return override


def _quoted(text: str) -> str:
    mark = '"' if "'" in text else "'"
    return f"{mark}{text}{mark}"


def _is_parseable(override: str) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True


def check_overrides(overrides: list[str]) -> None:
    """Raise UserError for invalid options of a group and for numbers as values of Boolean keys."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from fco_cli.config.schemas import switches

    parser, boolean_keys = OverridesParser.create(), switches()
    for text in overrides:
        if text.startswith("-") or ("=" not in text and not text.startswith("~")):
            continue  # a flag, or an error that Hydra reports
        try:
            override = parser.parse_override(text)
        except HydraException:
            continue  # Hydra reports it with its position
        _check(override, text, boolean_keys)


def _check(override: Override, text: str, boolean_keys: frozenset[str]) -> None:
    key, group = override.key_or_group, override.key_or_group.partition(".")[0]
    if key in GROUPS:
        if override.is_delete() and key not in OPTIONAL_GROUPS:
            raise UserError(f"{key}: cannot be removed ({text}); use {key}=... to choose another")
        for value in _values(override):
            _check_choice(key, value)
    elif group in ("experiment", "profile") and override.is_add():
        raise UserError(f"{key}: no such key; use {group}=... with one of {', '.join(options_of(group))}")
    elif key == "theory" and {} in _values(override):
        raise UserError("theory: got {}, which has no effect; must be keys with values, such as theory.seeds=4")
    elif key in boolean_keys:
        for value in _values(override):
            if isinstance(value, int) and value not in (0, 1):  # Booleans are integers
                raise UserError(f"{key}: got {value}, must be true or false")


def _values(override: Override) -> Iterator[Any]:
    """Yield the value, or each value of a sweep over listed values."""
    from hydra.core.override_parser.types import ChoiceSweep

    value = override._value
    for item in value.list if isinstance(value, ChoiceSweep) else [value]:
        yield getattr(item, "text", item)  # the text of a quoted string


def _check_choice(group: str, value: Any) -> None:
    options = options_of(group)
    if value is None and group in OPTIONAL_GROUPS:
        return
    if isinstance(value, list):
        raise UserError(f"{group}: got {len(value)} options, must be one; with -m: {group}=first,second")
    if isinstance(value, int | float | dict) or value is None or value == "":
        text = "null" if value is None else repr(value)
        raise UserError(f"{group}: got {text}, must be one of {', '.join(options)}")
    if isinstance(value, str) and ("/" in value or "." in value or ":" in value):
        raise UserError(f"{group}: got {value!r}, must be one of {', '.join(options)}{did_you_mean(value, options)}")
