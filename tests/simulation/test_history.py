from __future__ import annotations

import pytest

from fco_cli.simulation.history import History

COLUMNS = {"round": [0, 2, 4], "objective": [3.0, 2.0, 1.0]}


def test_columns_are_read_by_name_and_rows_are_appended():
    history = History(tuple(COLUMNS))
    for row in zip(*COLUMNS.values(), strict=True):
        history.rows.append(row)
    assert history == History.of(COLUMNS) == COLUMNS
    assert list(history) == ["round", "objective"]
    assert len(history) == 2
    assert "loss" not in history
    with pytest.raises(KeyError, match="loss"):
        history["loss"]


def test_columns_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        History.of(COLUMNS | {"objective": [3.0]})
