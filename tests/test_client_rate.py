"""Tests of client learning rates: numbers and multiples of 1/L."""

from __future__ import annotations

import pytest

from fco_cli.client_rate import positive, relative
from fco_cli.errors import UserError


@pytest.mark.parametrize(("rate", "times"), [("auto", 1.0), ("1/L", 1.0), ("0.3/L", 0.3), (0.3, None), ("0.3", None)])
def test_multiples_of_1_over_l(rate, times):
    assert relative(rate) == times


@pytest.mark.parametrize("word", ["/L", "-1/L", "0/L", "x/L", "nan/L", "1e400/L"])
def test_other_texts_are_not_multiples(word):
    with pytest.raises(UserError, match=r"hparams.client_lr: got .*, must be auto or a multiple of 1/L such as 0.3/L"):
        relative(word)


def test_numbers_that_are_not_positive_are_refused():
    assert positive("key", "1e-3", "a number > 0") == 1e-3
    for given in ("fast", "", "-1", "inf", "nan", 0.0):
        with pytest.raises(UserError, match=r"key: got .*, must be a number > 0"):
            positive("key", given, "a number > 0")
