"""Tests of the quoting of conditions."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fco_cli.config.compose import quote_condition


@pytest.mark.parametrize("label", ["num>0", "num >= 2", "grade<3", "diagnosis==sick", "ward!=red", "y"])
def test_a_condition_needs_no_quotes(label):
    override = OverridesParser.create().parse_override(quote_condition(f"task.label={label}"))
    assert str(override.value()) == label


@pytest.mark.parametrize("word", ["task.label='num>0'", "task.label=num,age", "task.path=a=b.csv", "-m"])
def test_other_overrides_are_unchanged(word):
    assert quote_condition(word) == word
