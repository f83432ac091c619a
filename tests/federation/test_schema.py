"""Every kind of message has schemas, whose errors name the invalid key."""

from __future__ import annotations

import pytest

from fco_cli.federation.message import BadMessage, converted, names_digest
from fco_cli.federation.response_schema import RESPONSES, Description, SummaryHead
from fco_cli.federation.schema import REQUESTS
from fco_cli.federation.site.site import WITH_ARRAYS

SUMMARY = {
    "client": "north", "rows": 3, "columns": ["age", "color"], "categories": {"color": {"red": 2}}, "count": [3, 0],
    "mean": [2.0, 0.0], "deviations": [2.0, 0.0], "low": [1.0, None], "high": [3.0, None],
}  # fmt: skip
DESCRIPTION = {
    "number": 1, "version": "0.2.0", "code": "0" * 16, "digest": "1" * 16, "features": 2,
    "names_digest": names_digest(["a", "b"]), "names": ["a", "b"], "classes": None, "split": ["train", "val"],
}  # fmt: skip


def test_every_kind_has_schemas(make_site, hospitals):
    kinds = make_site("north", hospitals("logistic")).kinds
    assert kinds.keys() == REQUESTS.keys() == RESPONSES.keys()
    assert set(WITH_ARRAYS) <= kinds.keys()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": 0}, "rows: expected int >= 1"),
        ({"rows": 2}, "more values than rows"),
        ({"columns": ["age", "age"]}, "columns must be distinct"),
        ({"columns": ["age"]}, "a value for every column"),
        ({"categories": {"size": {"s": 1}}}, "categories of an unknown column"),
        ({"categories": {"color": {"red": 0}}}, "categories[...][...]: expected int >= 1"),
        ({"categories": {"age": {"red": 1}}, "rows": 9}, "numbers and categories"),
        ({"mean": [4.0, 0.0]}, "mean must be between low and high"),
        ({"deviations": [-1.0, 0.0]}, "deviations[0]: expected float >= 0"),
        ({"low": [None, None]}, "low and high must be numbers where count is above 0"),
        ({"high": [3.0, 1.0]}, "low and high must be numbers where count is above 0"),
    ],
)
def test_summaries(change, reason):
    assert converted(SUMMARY, SummaryHead).rows == 3
    with pytest.raises(BadMessage) as refused:
        converted(SUMMARY | change, SummaryHead)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": ["a", "c"]}, "names do not match"),
        ({"features": 3}, "names do not match"),
        ({"classes": ["x", "x"]}, "classes must be distinct"),
        ({"split": ["rest"]}, "split[0]: invalid enum value 'rest'"),
        ({"more": 1}, "unknown field more"),
    ],
)
def test_descriptions(change, reason):
    assert converted(DESCRIPTION, Description).features == 2
    with pytest.raises(BadMessage) as refused:
        converted(DESCRIPTION | change, Description)
    assert reason in str(refused.value)
