"""Notations of dates."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.data.readers.dates import InvalidDate, is_calendar_number, parse_dates

DAYS = st.dates(date(1900, 3, 1), date(2100, 12, 31))
FORMS = {
    "iso": lambda day: day.isoformat(),
    "time": lambda day: f"{day.isoformat()}T00:00:00",
    "zone": lambda day: f"{day.isoformat()} 02:00:00+02:00",
    "german": lambda day: f"{day.day}.{day.month:02d}.{day.year}",
    "dashes": lambda day: f"{day.day:02d}-{day.month:02d}-{day.year}",
    "calendar": lambda day: day.strftime("%Y%m%d"),
    "excel": lambda day: str((day - date(1899, 12, 30)).days),
}


@given(DAYS, st.sampled_from(sorted(FORMS)))
def test_every_notation_gives_the_days_since_1970(day, form):
    text = FORMS[form](day)
    assert parse_dates([text]) == {text: (day - date(1970, 1, 1)).days}


@given(st.lists(DAYS, min_size=1), st.booleans())
def test_dates_with_slashes_need_one_that_is_unambiguous(days, is_day_first):
    def text(day: date) -> str:
        return f"{day.day}/{day.month}/{day.year}" if is_day_first else f"{day.month}/{day.day}/{day.year}"

    texts = {text(day): (day - date(1970, 1, 1)).days for day in days}
    if any(day.day > 12 for day in days):
        assert parse_dates(texts) == texts
    else:
        with pytest.raises(InvalidDate) as problem:
            parse_dates(texts)
        assert problem.value.cell in texts


@pytest.mark.parametrize("text", ["1.3.60", "yesterday", "31.2.2024", "-5", "2024-13-01", "123456", "nan", "1e400"])
def test_other_texts_are_refused(text):
    with pytest.raises(InvalidDate):
        parse_dates([text])


@given(st.integers(18000000, 22000000))
def test_calendar_numbers(number):
    try:
        day = datetime.strptime(str(number), "%Y%m%d")
    except ValueError:
        assert not is_calendar_number(number)
    else:
        assert is_calendar_number(number) == (1900 <= day.year <= 2100)
    assert not is_calendar_number(number + 0.5)


def test_times_are_parts_of_days():
    half = parse_dates(["2024-01-31 12:00", "31.01.2024 06:00:00"])
    days = (date(2024, 1, 31) - date(1970, 1, 1)) / timedelta(days=1)
    assert sorted(half.values()) == [days + 0.25, days + 0.5]
