"""Dates in tables: their notations, and the intervals between them, such as `age=years_between(birth, admission)`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fco_cli.data.format import format_list, shown
from fco_cli.data.readers.numerals import by_option
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(\D|$)")
DAYS_PER_YEAR = 365.25
INTERVALS = {"days_between": 1.0, "years_between": DAYS_PER_YEAR}
EXCEL_EPOCH = datetime(1899, 12, 30)
EXCEL_RANGE = (1.0, 100_000.0)  # serial dates from 1899 to 2173
_FORM = re.compile(rf"\s*(.+?)\s*=\s*({'|'.join(INTERVALS)})\s*\(\s*(.+)\)\s*")
_PARTS = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d*)?)?)?")


def date_advice(column: str) -> str:
    """Return what to do with a column of dates."""
    interval = "derive an interval (--derive 'age=years_between(birth, admission)' or task.derive)"
    return f"dates are not numbers: {interval}, or drop the column ({by_option('drop', column)})"


@dataclass(frozen=True)
class Derivation:
    """Column that is computed from two columns of dates: name=function(first, second)."""

    name: str
    function: str
    first: str
    second: str

    @classmethod
    def of(cls, text: str, header: Sequence[str]) -> Derivation:
        """Parse a derivation; raise UserError if it names an unknown column or an existing one."""
        name, function, arguments = cls._form(text)
        if name in header:
            raise UserError(f"derive: got {shown(text)!r}, but the table has a column {shown(name)!r}")
        for comma in re.finditer(",", arguments):  # a column name may contain a comma
            first, second = arguments[: comma.start()].strip(), arguments[comma.end() :].strip()
            if first in header and second in header:
                return cls(name, function, first, second)
        raise UserError(
            f"derive: got {shown(text)!r}; the arguments must be two columns; columns are {format_list(header)}"
        )

    @classmethod
    def name_in(cls, text: str) -> str:
        """Return the name of the derived column."""
        return cls._form(text)[0]

    @classmethod
    def arguments_in(cls, text: str) -> list[str]:
        """Return the texts between the commas of the arguments."""
        return [argument.strip() for argument in cls._form(text)[2].split(",")]

    @staticmethod
    def _form(text: str) -> tuple[str, str, str]:
        """Return the name, the function and the arguments; raise UserError for any other form."""
        form = _FORM.fullmatch(text)
        if form is None:
            example = f"age=years_between(birth, admission); functions are {', '.join(INTERVALS)}"
            raise UserError(f"derive: got {shown(text)!r}, must be an interval such as {example}")
        return form[1], form[2], form[3]

    def interval(self, first: Array, second: Array) -> Array:
        """Return the intervals from the first to the second dates, both in days."""
        return (second - first) / INTERVALS[self.function]


class InvalidDate(ValueError):
    """Cell that is not a date, with the reason."""

    def __init__(self, cell: str, reason: str) -> None:
        self.cell, self.reason = cell, reason


def parse_dates(cells: Iterable[str]) -> dict[str, float]:
    """Return the days since 1970 of the distinct dates of a column; raise InvalidDate for other cells.

    Dates with slashes are month/day/year or day/month/year; the column must have a date that only one of them allows.
    """
    cells = sorted(cells)
    slashes = [match for cell in cells if (match := _PARTS.fullmatch(cell)) and match[2] == "/" and len(match[1]) < 3]
    is_day_first = any(int(match[1]) > 12 for match in slashes)
    if slashes and not is_day_first and not any(int(match[3]) > 12 for match in slashes):
        raise InvalidDate(slashes[0][0], "day and month are ambiguous: write dates as YYYY-MM-DD")
    return {cell: _days(cell, is_day_first) for cell in cells}


def _days(cell: str, is_day_first: bool) -> float:
    try:
        moment = _moment(cell, is_day_first)
    except (ValueError, OverflowError):
        raise InvalidDate(cell, "must be a date such as 2024-01-31 or 31.01.2024") from None
    return (moment - datetime(1970, 1, 1)) / timedelta(days=1)


def _moment(cell: str, is_day_first: bool) -> datetime:
    if (number := _number(cell)) is not None:
        if EXCEL_RANGE[0] <= number <= EXCEL_RANGE[1]:
            return EXCEL_EPOCH + timedelta(days=number)
        if not is_calendar_number(number):
            raise ValueError
        return datetime.strptime(f"{number:.0f}", "%Y%m%d")
    if (match := _PARTS.fullmatch(cell)) is None:
        moment = datetime.fromisoformat(cell)
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    first, mark, middle, last, *clock = match.groups()
    if len(first) == 4:
        year, month, day = first, middle, last
    elif len(last) != 4:
        raise ValueError  # two digits do not define a year
    elif mark == "/" and not is_day_first:
        month, day, year = first, middle, last
    else:
        day, month, year = first, middle, last
    hour, minute, second = (int(part or 0) for part in clock)
    return datetime(int(year), int(month), int(day), hour, minute, second)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def is_calendar_number(value: float) -> bool:
    """Return True for a whole number that is a date from 1900 to 2100 as YYYYMMDD."""
    if not 19000101 <= value <= 21001231 or value != int(value):
        return False
    year, month, day = int(value) // 10000, int(value) // 100 % 100, int(value) % 100
    try:
        datetime(year, month, day)
    except ValueError:
        return False
    return True
