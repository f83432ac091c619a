"""The main numbers of the documentation, recomputed by the commands next to them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FOLDERS = {"heart": "heart_disease", "crime": "communities_crime", "eicu": "eicu_demo"}
OPTIMUM = "algo=optimum hparams.weighting=examples hparams.dtype=float64 task.test=rows"


def numbers(text: str) -> list[tuple[float, float]]:
    """The numbers of a text, each with half a unit of its last digit."""
    found = re.findall(r"\d*\.?\d+", text)
    return [(float(one), 0.5 * 10.0 ** -len(one.partition(".")[2]) + 1e-12) for one in found]


def row_of(document: str, first: str, after: str = "") -> list[str]:
    """The cells of a Markdown table's row that follow a given first cell."""
    text = (DOCS / document).read_text().partition(after)[2] if after else (DOCS / document).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def assert_printed(text: str, values: list[float]) -> None:
    """Every number of the text is the value, rounded."""
    stated = numbers(text)
    assert len(stated) == len(values), text
    for (number, half), value in zip(stated, values, strict=True):
        assert number == pytest.approx(value, abs=half), text


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("task", FOLDERS)
def test_the_optimum_of_the_published_tables(task, here, real_data, tmp_path):
    """docs/data.md, "Published tables with natural clients"."""
    assert OPTIMUM in (DOCS / "data.md").read_text()
    strength, size, quality = row_of("data.md", f"`{task}`", after="| task | `regularizer.strength`")
    data = f"task.data_dir={real_data(FOLDERS[task])}"
    here(f"task={task}", f"regularizer.strength={strength}", *OPTIMUM.split(), data, f"output_dir={tmp_path}")
    (record,) = tmp_path.glob(f"{task}/optimum/*/result.json")
    result = json.loads(record.read_text())
    final, test = result["final"], result["test"]
    assert_printed(size, [final["nonzeros"], final["nonzeros"] / final["density"]])
    words = {"AUC": "test_auc", "log-loss": "test_loss", "R²": "test_r2"}
    stated = [part.rpartition(" ") for part in quality.split(", ")]
    assert_printed(" ".join(number for *_, number in stated), [test[words[name]] for name, *_ in stated])


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_path_of_heart_disease(here, real_data, tmp_path):
    """docs/path.md, "Numbers"; the figures there and in the README show the same path."""
    here("experiment=path", "task=heart", f"task.data_dir={real_data('heart_disease')}", f"output_dir={tmp_path}")
    (record,) = tmp_path.glob("heart/auto/*/result.json")
    chosen = json.loads(record.read_text())["chosen"]
    with (record.parent / "clients.csv").open() as file:
        lines = list(csv.DictReader(file))
    areas = {(line["choice"], line["client"]): float(line["auc"]) for line in lines}
    areas |= {(line["choice"], "within"): float(line["auc_within"]) for line in lines if line["auc_within"]}
    hospitals = ("all clients", "within", "cleveland", "hungarian", "va", "switzerland")
    for choice in ("min", "1se"):
        strength, loss, size, *quality = row_of("path.md", f"`{choice}`")
        one = chosen[choice]
        assert_printed(strength, [one["strength"]])
        assert_printed(loss, [one["cv_loss"], one["cv_error"]])
        assert_printed(size, [one["nonzeros"]])
        assert_printed(" ".join(quality), [areas[choice, name] for name in hospitals])
