"""Doubts about names of categories, clients and classes: synonyms, missing values, several values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from fco_cli.data.format import format_list, shown
from fco_cli.data.readers.cells import parse_number
from fco_cli.data.readers.numerals import by_option

MIN_PAIRS = 10  # names that hold two numbers
MIN_TEXTS, TEXT_SHARE = 20, 0.25  # different names, also relative to the rows, of a column that has no categories
SAME = (
    ("yes", "y", "ja", "j", "oui", "si", "true", "wahr", "vrai"),
    ("no", "n", "nein", "non", "false", "falsch", "faux"),
    ("male", "m", "man", "mann", "männlich", "homme"),
    ("female", "f", "w", "woman", "frau", "weiblich", "femme"),
)
MISSING_WORDS = frozenset((
    "-", "--", "---", ".", "..", "...", "n.a.", "n.a", "n.d.", "nd", "n/d", "k.a.", "unk", "unk.", "unknown", "missing",
    "not available", "not done", "not known", "not recorded", "xx", "xxx", "unbekannt", "nicht bekannt", "fehlt",
    "fehlend", "keine angabe", "inconnu", "#div/0!", "#value!", "#ref!", "#name?",
))  # fmt: skip
_PAIR = re.compile(r"\d+(?:[.,]\d+)?\s*[/:–-]\s*\d+(?:[.,]\d+)?")

Doubt = tuple[str, list[str]]  # the warning, and the names that it is about


def find_name_doubts(label: str, column: str, names: Sequence[str]) -> Iterator[Doubt]:
    """Yield doubts about the different names in a column; `label` describes the column in a warning."""
    by_case: dict[str, list[str]] = {}
    for name in names:
        by_case.setdefault(name.casefold(), []).append(name)
    for same in by_case.values():
        if len(same) > 1:
            yield f"{label}: {format_list(same)} differ only in case: --fold-case or task.fold_case=true", same
    firsts = [name for name, *_ in by_case.values()]
    yield from _abbreviations(label, column, firsts)
    yield from _same(label, column, firsts, _spelling, "differ only in spaces")
    yield from _same(label, column, firsts, parse_number, "are the same number")
    yield from _same(
        label, column, [name for name in firsts if _longer(name, firsts) is None], _meaning, "may be the same"
    )
    for name in firsts:
        if name.casefold() in MISSING_WORDS:
            yield f"{label}: {shown(name)!r} may mean missing: {by_option('missing', name)}", by_case[name.casefold()]


def find_text_doubts(label: str, column: str, names: Sequence[str], rows: int) -> Iterator[Doubt]:
    """Yield doubts about a column of texts as a feature."""
    drop = f"drop it ({by_option('drop', column)})"
    if len(names) >= MIN_PAIRS and all(map(_PAIR.fullmatch, names)):
        yield f"{label}: its cells hold two numbers ({names[0]}): write them to two columns, or {drop}", []
    elif len(names) >= max(MIN_TEXTS, TEXT_SHARE * rows):
        advice = f"names, identifiers and free text are no categories: {drop}"
        yield f"{label}: {len(names)} different texts in {rows} rows; {advice}", []


def _longer(name: str, names: Sequence[str]) -> str | None:
    """Return the only name that one or two letters abbreviate, or None."""
    short = name.casefold()
    if len(short) > 2 or not short.isalpha():
        return None
    longer = [one for one in names if len(one) > 3 and one.casefold().startswith(short) and one.isalpha()]
    return longer[0] if len(longer) == 1 else None


def _abbreviations(label: str, column: str, names: Sequence[str]) -> Iterator[Doubt]:
    for name in names:
        if (longer := _longer(name, names)) is not None:
            yield f"{label}: is {shown(name)!r} short for {shown(longer)!r}? {_rename(column, name, longer)}", [name]


def _same(label: str, column: str, names: Sequence[str], key: Callable[[str], object], what: str) -> Iterator[Doubt]:
    """Yield a doubt for every set of names with the same key; None is no key."""
    by_key: dict[object, list[str]] = {}
    for name in names:
        if (one := key(name)) is not None:
            by_key.setdefault(one, []).append(name)
    for same in by_key.values():
        if len(same) > 1:
            yield f"{label}: {format_list(same)} {what}: {_rename(column, same[1], same[0])}", same


def _rename(column: str, old: str, new: str) -> str:
    return by_option("map", f"{column or 'COLUMN'}:{old}={new}")


def _spelling(name: str) -> str:
    """Return a name without spaces, underscores and dots after words."""
    return re.sub(r"\s+|_+|(?<=[^\W\d_])\.(?=\s|$)", "", name.casefold())


def _meaning(name: str) -> int | None:
    """Return the number of the set of synonyms that has this name, or None."""
    return next((k for k, words in enumerate(SAME) if name.casefold() in words), None)
