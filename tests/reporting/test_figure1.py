"""Figure 1 from records that are written here."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest

from fco_cli.reporting.figure1 import can_compare, figure1, side_by_side

mpl.use("Agg")

FINAL = {"validation_accuracy": 0.9, "density": 0.1, "validation_objective": 0.3}
QUARTILES = {
    f"{name}{suffix}": value + step
    for name, value in FINAL.items()
    for suffix, step in (("_q25", -0.05), ("_q75", 0.02))
}


def test_the_table_has_quartiles_where_a_run_has_them() -> None:
    table = side_by_side({"Local": FINAL | QUARTILES, "FedMiD": FINAL})
    assert table.loc["Local", ["density_q25", "density", "density_q75"]].tolist() == pytest.approx([0.05, 0.1, 0.12])
    assert table.loc["FedMiD", ["density_q25", "density", "density_q75"]].tolist() == [0.1, 0.1, 0.1]


def test_the_figure_is_drawn_whatever_the_numbers(tmp_path: Path) -> None:
    finals = {
        "Local": FINAL | QUARTILES,
        "FedMiD": FINAL | {"density_q25": 0.5, "density_q75": None},  # the middle is below its quartile
        "FedAvg(∂)": FINAL | {"validation_objective": None, "density": 1e300},
    }
    path = figure1(finals, tmp_path / "report" / "figure1.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_the_metrics_is_not_compared() -> None:
    assert can_compare(FINAL | {"density": None})
    assert not can_compare({"f1": 1.0})
