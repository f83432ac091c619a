"""Columns that are refused as features: identifiers, free text, and dates that are written as numbers.

The rules use the name and the values of a column. They are strict, because a refusal stops a run: a column of numbers
is an identifier only if its name is one of these. Other doubtful columns are reported by `data/plausibility.py`.
"""

from __future__ import annotations

import re

import numpy as np

from fco_cli.data.format import CHUNK_ROWS
from fco_cli.data.readers.dates import date_advice, is_calendar_number
from fco_cli.data.readers.numerals import by_option
from fco_cli.problem.layout import Array

MIN_IDENTIFIERS = 10  # distinct numbers; a column of fewer may hold codes
MIN_TEXTS = 20  # rows with different texts
MIN_DATES = 5  # rows with a calendar number
MIN_CALENDAR = 19000101
EXCEL_DATES = (10_000, 80_000)  # serial dates from 1927 to 2119
_PEOPLE = "patient|patienten|subject|subj|pat|person|case|fall|record|stay|visit|encounter|hadm|icustay|sample|study"
_AREA = "zip|plz|postcode|postal code"
_IDENTIFIER = re.compile(
    rf"(?:.* )?(?:ids?|mrn|ssn|pid|uuid|guid|{_AREA})(?: .*)?|.*(?:{_PEOPLE})s? ?(?:id|nr|no|number|nummer|num|#)"
)
_DATE = re.compile(
    r"(?:.* )?(?:date|dates|datum|dob|birthday)(?: .*)?|.*(?:date|datum)|birth|admission|discharge|death"
)


def words_of(name: str) -> str:
    """Return the words of a column name in lower case: `PatientID` and `patient_id` give `patient id`."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|#", name)).lower()


def suspects(numbers: Array) -> set[int]:
    """Return the columns of numbers [N, d] whose values allow a refusal; few, for tables with many columns."""
    low, high = np.fmin.reduce(numbers, initial=np.inf), np.fmax.reduce(numbers, initial=-np.inf)
    candidates = (low >= EXCEL_DATES[0]) & (high <= EXCEL_DATES[1]) | (low >= MIN_CALENDAR)
    if len(numbers) > MIN_IDENTIFIERS:
        is_whole = np.ones(numbers.shape[1], dtype=bool)
        for start in range(0, len(numbers), CHUNK_ROWS):  # without a copy of the table
            block = numbers[start : start + CHUNK_ROWS]
            is_whole &= ((block == np.floor(block)) | np.isnan(block)).all(axis=0)
        candidates |= is_whole
    return set(np.flatnonzero(candidates & (low < high)).tolist())


def reason_to_refuse(name: str, numbers: Array) -> str | None:
    """Return why a column of numbers (NaN: missing) cannot be a feature, or None."""
    values = np.unique(numbers[~np.isnan(numbers)])
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    words, dates = words_of(name), date_advice(name)
    if _DATE.fullmatch(words) and EXCEL_DATES[0] <= values[0] and values[-1] <= EXCEL_DATES[1]:
        return f"the column holds serial dates of a spreadsheet; {dates}"
    if (values != np.floor(values)).any():
        return None
    if len(values) >= MIN_DATES and is_calendar_number(values[0]) and all(map(is_calendar_number, values.tolist())):
        return f"the column holds dates as YYYYMMDD; {dates}"
    if len(values) <= MIN_IDENTIFIERS or not _IDENTIFIER.fullmatch(words):
        return None
    rename = f"rename it ({by_option('map', f'{name}=NAME')}) if it is a measurement"
    return f"an identifier is not a feature: {_drop_or_declare(name)}; {rename}"


def is_free_text(texts: Array) -> bool:
    """Return True if the texts of a column are all different and thus not categories."""
    return len(texts) >= MIN_TEXTS and len(np.unique(texts)) == len(texts)


def text_advice(name: str) -> str:
    """Return what to do with a column of free text."""
    return f"every row has another text, so that the column has no categories: {_drop_or_declare(name)}"


def _drop_or_declare(name: str) -> str:
    patient = f"declare it as the patient column ({by_option('patient', name)})"
    return f"drop the column ({by_option('drop', name)}), or {patient}"
