"""Figure 1 from records that are written here."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import pytest

from fco_cli.errors import UserError
from fco_cli.reporting.figure1 import figure1, side_by_side

mpl.use("Agg")

FINAL = {"validation_accuracy": 0.9, "density": 0.1, "validation_objective": 0.3}
QUARTILES = {
    f"{name}{suffix}": value + step
    for name, value in FINAL.items()
    for suffix, step in (("_q25", -0.05), ("_q75", 0.02))
}


def write_record(folder: Path, final: dict[str, float | None]) -> Path:
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"final": final}))
    return folder


def test_the_table_has_quartiles_where_a_run_has_them(tmp_path: Path) -> None:
    table = side_by_side(
        {"Local": write_record(tmp_path / "a", FINAL | QUARTILES), "FedMiD": write_record(tmp_path / "b", FINAL)}
    )
    assert table.loc["Local", ["density_q25", "density", "density_q75"]].tolist() == pytest.approx([0.05, 0.1, 0.12])
    assert table.loc["FedMiD", ["density_q25", "density", "density_q75"]].tolist() == [0.1, 0.1, 0.1]


def test_the_figure_is_drawn_also_with_a_run_that_has_diverged(tmp_path: Path) -> None:
    records = {
        "Local": write_record(tmp_path / "a", FINAL | QUARTILES),
        "FedMiD": write_record(tmp_path / "b", FINAL),
        "FedAvg(∂)": write_record(tmp_path / "c", FINAL | {"validation_objective": None}),
    }
    path = figure1(records, tmp_path / "report" / "figure1.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", ["", "[]", '{"final": {"f1": 1}}'])
def test_a_record_without_the_metrics_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UserError, match=r"result.json: not the result of a classification run"):
        side_by_side({"x": tmp_path})
