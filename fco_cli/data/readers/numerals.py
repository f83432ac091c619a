"""Numbers as people write them: decimal commas, thousands separators and units (`1.234,5`, `85.3 µmol/l`, `95%`).

A column is interpreted as a whole: all of its cells must have the same unit and the same decimal separator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fco_cli.data.format import shown
from fco_cli.problem.layout import Array

DECIMALS = (".", ",")
MAX_LENGTH = 60  # characters of a number with its unit
MAX_WORDS, MAX_WORD = 4, 20  # texts among numbers that an error lists, and their length
_SPACES = " '’\u00a0\u202f"  # separate thousands in either notation


def _notation(decimal: str, group: str) -> re.Pattern[str]:
    grouped = rf"[0-9]{{1,3}}([{group}{_SPACES}])[0-9]{{3}}(?:\1[0-9]{{3}})*"
    return re.compile(rf"[+-]?(?:{grouped}|[0-9]*)(?:\{decimal}[0-9]*)?(?:[eE][+-]?[0-9]+)?")


NOTATIONS = {".": _notation(".", ","), ",": _notation(",", ".")}
_WORD = (
    "%|‰|°C|°F|mm ?Hg|cm ?H2O|bpm|bar|min|sec|hrs?|hours?|days?|weeks?|wk|months?|mo|years?|yrs?|y|h|d|cells|beats|"
    r"breaths|torr|Torr|[x×*]? ?10(?:\^|E|\*\*)?[0-9]+|[kKMG](?=/)"
)
_METRIC = "[fpnuµmcdk]?(?:g|l|L|mol|[eE]q|[oO]sm|U|IU|kat|m|s|Hz|Pa)|[mk](?:V|A|W|J|cal|bar)"
_TOKEN = f"(?:{_WORD}|(?:{_METRIC})[²³23]?)"
UNIT = re.compile(rf"/?{_TOKEN}(?: ?[/·*] ?{_TOKEN}| (?:per )?{_TOKEN})*")
_WITH_UNIT = re.compile(rf"(.+?)\s*({UNIT.pattern})")


def number_in(text: str, decimal: str) -> float | None:
    """Return the number that a text denotes with this decimal separator, or None."""
    text = text.replace("−", "-")
    match = NOTATIONS[decimal].fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        return None
    plain = text if match[1] is None else text.replace(match[1], "")
    try:
        return float(plain.replace(decimal, "."))
    except ValueError:  # without digits
        return None


def split_unit(text: str) -> tuple[str, str] | None:
    """Return the number and the normalized unit ("" for none) of a text, or None if it is not a number."""
    text = text.replace("μ", "µ")  # GREEK SMALL LETTER MU; units have MICRO SIGN
    if _is_number(text):
        return text, ""
    match = _WITH_UNIT.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None or not _is_number(match[1]):
        return None
    unit = re.sub(r"\bu(?=[glLmsU]|mol|kat)", "µ", match[2])
    return match[1], unit.replace(" ", "").replace("L", "l").replace("×", "x")


def _is_number(text: str) -> bool:
    return any(number_in(text, decimal) is not None for decimal in DECIMALS)


@dataclass(frozen=True)
class Interpretation:
    """Meaning of the texts of a column: numbers, categories, or neither."""

    values: dict[str, float] | None = None  # by text; None: not numbers
    unit: str = ""
    decimal: str = "."
    problem: tuple[str, str] | None = None  # a cell, and why the column is neither numbers nor categories


def interpret(texts: Iterable[str], numbers: Array, decimal: str | None, column: str) -> Interpretation:
    """Interpret the distinct texts of a column whose other cells are `numbers`, written with a decimal point.

    `decimal` is the separator given by the user, or None to infer it.
    """
    texts = sorted(texts)
    parts = {text: part for text in texts if (part := split_unit(text)) is not None}
    words = [text for text in texts if text not in parts]
    declare = f"the column as categorical ({by_option('categorical', column)})"
    if words:
        if not parts and not len(numbers):
            return Interpretation()
        few = [shown(words[0], 40), *[word for word in words[1:] if len(word) <= MAX_WORD][: MAX_WORDS - 1]]
        other = f"; {len(words)} different texts there are not numbers" if len(words) > 1 else ""
        missing = f"the text{'s' * (len(few) > 1)} as missing ({by_option('missing', *few)})"
        number = f"write a number for it ({by_option('map', f'{shown(column, 40)}:{few[0]}=NUMBER')})"
        advice = f"a column must hold numbers or categories{other}: declare {missing}, {number}, or declare {declare}"
        return Interpretation(problem=(words[0], advice))
    first_with_unit: dict[str, str] = {}
    for text, (_, unit) in parts.items():
        first_with_unit.setdefault(unit, text)
    if len(numbers):
        first_with_unit.setdefault("", f"{numbers[0]:g}")
    if len(first_with_unit) > 1:
        (one, _), (other, cell) = sorted(first_with_unit.items())[:2]  # `other` is not empty: its cell is a text
        units = f"cells have the units {_unit(one)} and {_unit(other)}"
        return Interpretation(problem=(cell, f"{units}: convert them to one unit, or declare {declare}"))
    (unit,) = first_with_unit
    used, problem = _decimal(texts, parts, numbers, decimal)
    if used is None:
        return Interpretation(problem=problem)
    values = {text: number_in(number, used) for text, (number, _) in parts.items()}
    if invalid := [text for text, value in values.items() if value is None]:
        allowed = f"not a number with the decimal separator {used!r} ({by_option('decimal', used)})"
        return Interpretation(problem=(invalid[0], allowed))
    return Interpretation({text: value for text, value in values.items() if value is not None}, unit, used)


def _decimal(
    texts: list[str], parts: dict[str, tuple[str, str]], numbers: Array, decimal: str | None
) -> tuple[str | None, tuple[str, str]]:
    """Return the decimal separator of a column; None, with a cell and the reason, if it is ambiguous."""
    if decimal is not None:
        return decimal, ("", "")
    commas = [text for text in texts if "," in parts[text][0]]
    if not commas:
        return ".", ("", "")
    possible = [one for one in DECIMALS if all(number_in(number, one) is not None for number, _ in parts.values())]
    has_points = any("," not in number and "." in number for number, _ in parts.values())
    has_points |= bool((numbers != np.floor(numbers)).any())
    if len(possible) == 1 and not (possible == [","] and has_points):
        return possible[0], ("", "")
    if len(possible) > 1:
        meaning = "the comma may separate decimals or thousands: state"
    else:
        meaning = "other cells have a decimal point: write all numbers with one separator, or state"
    return None, (commas[0], f"{meaning} the decimal separator ({by_option('decimal', ',')})")


def _unit(unit: str) -> str:
    return repr(unit) if unit else "none"


def by_option(name: str, *values: str) -> str:
    """Return how to set an option of the readers, on the command line and as a key of `task=custom`, for a shell."""
    texts = [shown(value, 40) for value in values]
    if name == "decimal":
        return f"--decimal {texts[0]!r} or task.decimal={texts[0]!r}"
    if name == "patient":  # one column, not a list
        return f"--patient {in_shell(texts[0])} or {in_shell(f'task.patient={texts[0]}', SAFE_IN_KEYS)}"
    arguments = [f"--{name}={in_shell(text)}" if text[:1] == "-" else f"--{name} {in_shell(text)}" for text in texts]
    elements = ",".join(_element(text) for text in texts)
    return f"{' '.join(arguments)} or {in_shell(f'task.{name}=[{elements}]', SAFE_IN_KEYS)}"


SAFE, SAFE_IN_KEYS = r"[\w]*", r"[\w\[\].,:=%+/@-]*"  # characters that need no quotes in a shell


def in_shell(text: str, safe: str = SAFE) -> str:
    """Return a text in the quotes that a shell needs."""
    if re.fullmatch(safe, text):
        return text
    return f"'{text}'" if "'" not in text else '"' + re.sub(r'(["\\$`])', r"\\\1", text) + '"'


def _element(text: str) -> str:
    """Return an element of a list of texts in the configuration, in quotes where its characters end an element."""
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}" if re.search(r"""[,\[\]{}'"]""", text) else text
