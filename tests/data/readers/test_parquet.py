"""Error messages for Parquet files with unsupported types or excessive sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fco_cli.data.readers import read


class TestParquet:
    """Parquet files."""

    @pytest.fixture
    def write(self, tmp_path) -> Callable[..., Path]:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        def write(names: list[str], columns: list, **options) -> Path:
            parquet.write_table(
                pa.table([pa.array(c) for c in columns], names=names), tmp_path / "t.parquet", **options
            )
            return tmp_path / "t.parquet"

        return write

    def test_a_bomb_is_refused(self, write, error_message):
        zeros = np.zeros(3_000_000, np.int8)
        path = write(["client", "x", "y"], [zeros, zeros, zeros])
        assert path.stat().st_size < 100_000
        assert (
            "would take 120 MB of memory, more than 200 times its size: possibly a decompression bomb"
            in error_message(path)
        )

    def test_more_than_the_memory_is_refused(self, write, monkeypatch, error_message):
        monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 10_000_000)
        zeros = np.zeros(3_000_000, np.int8)
        path = write(["client", "x", "y"], [zeros, zeros, zeros])
        assert "would take 120 MB of memory; this machine has 10 MB" in error_message(path)

    def test_a_long_text_that_is_repeated_is_refused(self, write, error_message):
        path = write(["client", "x", "y"], [["a" * 100_000] * 20, np.zeros(20), np.zeros(20)])
        assert "has 100000 characters" in error_message(path)

    @pytest.mark.parametrize(
        ("column", "expected_message"),
        [
            (np.array(["2024-01-31"] * 4, "M8[D]"), "column 'x' holds date32[day]; dates are not numbers"),
            (np.array(["2024-01-31"] * 4, "M8[ns]"), "column 'x' holds timestamp[ns]; dates are not numbers"),
            (["1", "2", "tall", "4"], "client 'b', row 2: column 'x' is 'tall'; 3 of 4 rows have a number there"),
            (["a", "b", "2024-01-31", "c"], "client 'b', row 2: column 'x' is '2024-01-31'; dates are not numbers"),
            ([[1], [2], [3], [4]], "column 'x' holds list<element: int64>; must be numbers or text"),
            ([b"1", b"2", b"3", b"4"], "column 'x' holds binary; must be numbers or text"),
        ],
    )
    def test_types(self, write, column, expected_message, error_message):
        assert expected_message in error_message(
            write(["client", "x", "y"], [["a", "a", "b", "b"], column, [0, 1, 0, 1]])
        )

    def test_columns_of_one_name(self, write, error_message):
        path = write(["client", "x", "x", "y"], [["a", "a", "b", "b"], range(4), range(4), [0, 1, 0, 1]])
        assert "columns: given more than once: x" in error_message(path)

    def test_all_kinds_of_numbers_and_names_are_read(self, write):
        from decimal import Decimal

        names = ["__index_level_0__", "client", "a.b", "flag", "money", "y", "split"]
        columns = [
            range(4),
            [1, 1, 2, 2],
            range(4),
            [True, False] * 2,
            [Decimal("1.5")] * 4,
            ["n", "y"] * 2,
            ["train"] * 4,
        ]
        data = read(write(names, columns, row_group_size=3))
        assert data.x.tolist() == [[0, 1, 1.5], [1, 0, 1.5], [2, 1, 1.5], [3, 0, 1.5]]
        assert data.feature_names == ["a.b", "flag", "money"]
        assert data.clients.tolist() == ["1", "2"]
        assert data.classes.tolist() == ["n", "y"]
        assert data.split.tolist() == ["train"] * 4
