"""Numbers with commas, thousands separators and units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.data.readers.numerals import interpret, number_in, split_unit

NONE = np.array([])


def grouped(value: int, decimals: int, mark: str, group: str) -> str:
    text = f"{value:,}".replace(",", group)
    return f"{text}{mark}{decimals:02d}"


@given(st.integers(0, 10**12), st.integers(0, 99), st.sampled_from([(".", ","), (",", "."), (",", " "), (".", "'")]))
def test_a_number_is_read_in_the_notation_in_which_it_is_written(value, decimals, notation):
    mark, group = notation
    text = grouped(value, decimals, mark, group)
    assert number_in(text, mark) == float(f"{value}.{decimals:02d}")
    assert number_in("-" + text, mark) == -float(f"{value}.{decimals:02d}")


@given(st.text(alphabet="0123456789.,' eE+-", max_size=12))
def test_a_text_is_a_number_in_python_s_notation_or_has_separators(text):
    """A text without separators of thousands is a number exactly if Python reads it, with one decimal separator."""
    for mark, other in ((".", ","), (",", ".")):
        value = number_in(text, mark)
        if not set(text) & {other, "'", " "}:
            try:
                expected = float(text.replace(mark, "."))
            except ValueError:
                expected = None
            assert value == expected


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=8), st.sampled_from(["", " mg/dl", "%", " mmHg"]))
def test_a_column_with_decimal_commas_and_a_unit(values, unit):
    """At most two decimals: three of them could be thousands."""
    texts = {f"{value / 100:.2f}".replace(".", ",") + unit: value / 100 for value in values}
    meaning = interpret(texts, NONE, None, "u")
    assert meaning.values == pytest.approx(texts)
    assert meaning.unit == unit.strip()


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("85.3 µmol/l", "85.3", "µmol/l"), ("85.3 umol/L", "85.3", "µmol/l"), ("95%", "95", "%"),
        ("120 mm Hg", "120", "mmHg"), ("5.2 10^9/l", "5.2", "10^9/l"), ("7 G/l", "7", "G/l"), ("37,2 °C", "37,2", "°C"),
        ("24 kg/m²", "24", "kg/m²"), ("1.234,5", "1.234,5", ""), ("8 /µl", "8", "/µl"), ("12 days", "12", "days"),
    ],
)  # fmt: skip
def test_units(text, number, unit):
    assert split_unit(text) == (number, unit)


@pytest.mark.parametrize(
    "text", ["3a", "1st", "10-19", "<1", "2 vessels", "T2", "", "-", ".", "1_0", "9" * 100, "63 F"]
)
def test_other_texts_are_no_numbers(text):
    assert split_unit(text) is None


def test_words_without_numbers_are_categories():
    meaning = interpret({"red", "3a", "10-19"}, NONE, None, "u")
    assert (meaning.values, meaning.problem) == (None, None)
