"""Sections of records of experiment=glm and experiment=table1."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.reporting.coefficients import cells, headings
from fco_cli.reporting.figures.classification import classification_caption, classification_figures
from fco_cli.reporting.figures.coefficients import LARGEST, coefficient_numbers, coefficients_figure
from fco_cli.reporting.figures.forest import forest_figure
from fco_cli.reporting.objects import Figure, Section, Table
from fco_cli.reporting.page.tables import card_table
from fco_cli.reporting.records import table1 as record_of_table1
from fco_cli.reporting.records.glm import RecordedGlm, caption
from fco_cli.reporting.records.predictions import RecordedPredictions
from fco_cli.reporting.records.table1 import RecordedTable1
from fco_cli.reporting.text import printable
from fco_cli.typed_files import BadRecord

if TYPE_CHECKING:
    from pandas import DataFrame

COEFFICIENTS = (
    "Estimates with their intervals, without intercepts; numbers per standard deviation of the column (in "
    "parentheses), categories against their reference. Arrows: beyond the axis."
)
FOREST = (
    "The clients' own fits, their pooled values and the federated fit, for the coefficients with the largest "
    "statistics. Arrows: beyond the axis."
)
MAX_OPEN = 80  # rows of a table that is not folded
PICTURES = {
    "survival": "Kaplan-Meier curve of every client, with intervals and numbers at risk.",
    "calibration": "Predicted risk and its Kaplan-Meier estimate until the horizon, by groups of the prediction.",
}


def glm_section(record: RecordedGlm, damaged: list[tuple[Path, str]]) -> Section:
    """Return the section of a record of experiment=glm; add files that cannot be drawn to `damaged`."""
    result = record.result
    section = Section(
        record.slug, printable(caption(result), max_length=400), printable(str(record.folder), max_length=4096),
        notes=[printable(note, max_length=2000) for note in result["notes"]], menu=f"Inference: {result['task']}",
    )  # fmt: skip
    try:
        section.figures += _figures(record)
        section.tables += _tables(record)
    except BadRecord as problem:
        damaged.append((record.folder, str(problem)))
    if result.get("card"):
        section.tables.append(card_table(result["card"]))
    return section


def _figures(record: RecordedGlm) -> Iterator[Figure]:
    result, slug = record.result, record.slug
    lines = record.client_lines()
    if result["meta"] and lines:
        yield Figure(f"{slug}_forest", partial(forest_figure, result, lines), FOREST, record.meta, "forest", wide=True)
    numbers = coefficient_numbers(result)
    if len(numbers):
        left_out = len(result["coefficients"]) - len(numbers)
        most = f" The {LARGEST} with the largest statistics." if left_out > 0 and len(numbers) == LARGEST else ""
        draw = partial(coefficients_figure, result)
        yield Figure(f"{slug}_coefficients", draw, COEFFICIENTS + most, numbers, "coefficients")
    if (predictions := record.predictions()) is not None:
        yield from _classification(slug, predictions)
    for name, content in record.pictures().items():
        yield Figure(f"{slug}_{name}", content, PICTURES[name], kind=name)


def _classification(slug: str, predictions: RecordedPredictions) -> Iterator[Figure]:
    """Yield ROC curves, calibration and decision curves by client."""
    for kind, draw, numbers in classification_figures(predictions):
        yield Figure(f"{slug}_{kind}", draw, classification_caption(kind, predictions), numbers, kind)


def _tables(record: RecordedGlm) -> Iterator[Table]:
    import pandas as pd

    result = record.result
    shown = pd.DataFrame([cells(line) for line in result["coefficients"]], columns=headings(result))
    yield Table(pd.DataFrame(result["coefficients"]), f"{record.slug}_coefficients", shown=_numbered(shown))
    others = {
        "tests of columns": pd.DataFrame(result["terms"]),
        "meta-analysis": pd.DataFrame(result["meta"]),
        "performance on the rows of the fit": record.checked_performance(),
    }
    for title, frame in others.items():
        if len(frame):
            yield Table(frame.dropna(axis=1, how="all"), caption=title, folded=True)


def _numbered(frame: DataFrame) -> DataFrame:
    """Return the frame with distinct names of columns."""
    seen: dict[str, int] = {}
    names = []
    for name in frame.columns:
        seen[name] = seen.get(name, 0) + 1
        names.append(str(name) + " " * (seen[name] - 1))
    return frame.set_axis(names, axis=1)


def table1_section(record: RecordedTable1) -> Section:
    """Return the section of a record of experiment=table1."""
    import pandas as pd

    head, *rows = record_of_table1.rows_of(record.result, repeat=False)
    shown = pd.DataFrame([[printable(cell) for cell in row] for row in rows], columns=_numbered(
        pd.DataFrame(columns=head)).columns)  # fmt: skip
    frame = record.table.reset_index()
    return Section(
        record.slug, printable(record_of_table1.caption(record.result), max_length=400),
        printable(str(record.folder), max_length=4096),
        notes=[printable(note, max_length=2000) for note in record.result["notes"]],
        tables=[Table(frame, record.slug, shown=shown, folded=len(rows) > MAX_OPEN, caption="table 1")],
        menu=f"Table 1: {record.result['task']}",
    )  # fmt: skip
