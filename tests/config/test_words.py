"""What the shell takes off, and Hydra needs."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fco_cli.config.words import quoted


@pytest.mark.parametrize("label", ["num>0", "num >= 2", "grade<3", "diagnosis==sick", "ward!=red", "y"])
def test_a_label_s_condition_needs_no_quotes_of_its_own(label):
    override = OverridesParser.create().parse_override(quoted(f"task.label={label}"))
    assert str(override.value()) == label


@pytest.mark.parametrize("word", ["task.label='num>0'", "task.label=num,age", "task.path=a=b.csv", "-m"])
def test_other_words_stay_as_they_are(word):
    assert quoted(word) == word
