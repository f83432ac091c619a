"""What a report of many records does differently: groups that are read once, work in processes of their own."""

from math import sqrt

import pytest
import yaml

from fco_cli.reporting.gate import read_yaml
from fco_cli.reporting.many import each
from fco_cli.typed_files import BadRecord


def test_groups_that_are_written_alike_are_read_once(tmp_path):
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
        "note: 'one line\nand: another'\nseed: 1\n",  # in quotes a line may begin anywhere
        "# a comment\nseed: 1\n",
        "top:\n- 1\n- 2\nseed: 1\n",
        'seed: 1\n"quoted": 2\n',
        "long: " + "x" * 5000 + "\nseed: 1\n",
        "seed: 1\nseed: 2\n",
    ],
)
def test_what_is_not_written_in_groups_is_read_as_a_whole(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert read_yaml(file) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "a: 1\n---\nb: 2\n", "a: 'open\nb: 2\n", "a\nb\n"])
def test_what_is_refused_as_a_whole_is_refused(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(BadRecord, match=r"^config\.yaml"):
        read_yaml(file)


@pytest.mark.parametrize("enough", [2, 100])
def test_many_processes_or_one(enough):
    assert each(sqrt, [4.0, 9.0, 16.0], enough) == [2, 3, 4]
