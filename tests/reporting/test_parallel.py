"""Tests of reading many records: cached groups of config.yaml and the parallel map."""

from math import sqrt

import pytest
import yaml

from fco_cli.reporting.records.studies import parallel_map
from fco_cli.reporting.records.validation import read_yaml
from fco_cli.typed_files import BadRecord


def test_equal_groups_are_parsed_once(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("task:\n  name: lasso\n  sizes:\n  - 1\n  - 2\nseed: 1\n")
    second.write_text("task:\n  name: lasso\n  sizes:\n  - 1\n  - 2\nseed: 2\n")
    assert read_yaml(first) == {"task": {"name": "lasso", "sizes": [1, 2]}, "seed": 1}
    again = tmp_path / "c" / "a.yaml"
    again.parent.mkdir()
    again.write_text(second.read_text())
    assert read_yaml(again)["task"] is read_yaml(first)["task"]


@pytest.mark.parametrize(
    "text",
    [
        "note: 'one line\nand: another'\nseed: 1\n",  # a quoted string may span lines
        "# a comment\nseed: 1\n",
        "top:\n- 1\n- 2\nseed: 1\n",
        'seed: 1\n"quoted": 2\n',
        "long: " + "x" * 5000 + "\nseed: 1\n",
        "seed: 1\nseed: 2\n",
    ],
)
def test_text_without_groups_is_parsed_as_a_whole(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert read_yaml(file) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "a: 1\n---\nb: 2\n", "a: 'open\nb: 2\n", "a\nb\n"])
def test_invalid_yaml_raises_bad_record(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(BadRecord, match=r"^config\.yaml"):
        read_yaml(file)


@pytest.mark.parametrize("min_items", [2, 100])
def test_parallel_map_keeps_the_order(min_items):
    assert parallel_map(sqrt, [4.0, 9.0, 16.0], min_items) == [2, 3, 4]
