"""Content of one table before validation: numbers and texts by column, with the conversion of texts to numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.data.format import Arrays, name_array, shown
from fco_cli.data.readers.cells import TRUTH, CellParser, Label, Renaming, category_name, parse_number
from fco_cli.data.readers.dates import DATE, DATE_ADVICE, Derivation, InvalidDate, parse_dates
from fco_cli.data.readers.not_features import TEXT_ADVICE, is_free_text, reason_to_refuse, suspects
from fco_cli.data.readers.numerals import by_option, interpret, split_unit
from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

Problem = tuple[str, str]  # a cell, and what is wrong with it


@dataclass
class RawTable:
    """Content of one file before validation, so that `fco-data describe` can show invalid columns."""

    path: Path
    columns: Columns
    features: list[str]
    numbers: Array  # [N, d]; NaN: missing or text
    texts: dict[int, tuple[Array, Array]]  # by feature: the rows with text cells, and the texts
    lines: Array  # [N], line number of each row in the file
    client: Array
    meaning: Label
    label: Array | None  # numbers (NaN: missing) or texts (empty: missing); None: the rows are for prediction
    renaming: Renaming
    split: Array | None = None
    weights: Array | None = None
    unit: str = "line"  # what `lines` counts
    event_meaning: Label | None = None
    event: Array | None = None  # same format as the label
    patient: Array | None = None
    problems: dict[int, Problem] = field(default_factory=dict)  # of columns that are neither numbers nor categories
    label_problem: tuple[int, str, str] | None = None  # the row, the cell and the reason

    def complete(self, cells: CellParser, dates: dict[str, list[str]], derivations: list[Derivation]) -> RawTable:
        """Convert texts to numbers, mark missing values, rename, and add columns derived from `dates`."""
        units = self._convert_texts(cells.decimal)
        cells.mark_missing(self.numbers, self.features)
        for feature, unit in units.items():  # so that columns with different units have different names
            self.features[feature] += f" [{unit}]"
        self.client = self.renaming.names(self.columns.client, self.client)
        if self.patient is not None:
            self.patient = self.renaming.names(self.columns.patient or "", self.patient)
        if self.label is not None and self.label.dtype.kind == "U":
            self.label = self.renaming.names(self.meaning.column, self.label)
        days = {name: self._days(name, texts, cells) for name, texts in dates.items()}
        for one in derivations:
            values = one.interval(days[one.first], days[one.second])
            if one.name == self.meaning.column:
                self.label = values
            else:
                self.numbers = np.column_stack([self.numbers, values])
                self.features.append(one.name)
        return self

    def _convert_texts(self, decimal: str | None) -> dict[int, str]:
        """Replace the texts of columns of numbers with commas or units; return the units by feature."""
        units = {}
        for feature, (rows, texts) in list(self.texts.items()):
            name = self.features[feature]
            if name in self.columns.categorical or self.kind(feature) == "date":
                continue
            numbers = self.numbers[:, feature]
            meaning = interpret(np.unique(texts).tolist(), numbers[~np.isnan(numbers)], decimal, name)
            if meaning.problem is not None:
                self.problems[feature] = meaning.problem
            elif meaning.values is not None:
                self.numbers[rows, feature] = [meaning.values[text] for text in texts.tolist()]
                del self.texts[feature]
                if meaning.unit:
                    units[feature] = meaning.unit
        return units

    def _days(self, name: str, texts: list[str], cells: CellParser) -> Array:
        """Return a column of dates in days; NaN where it is missing."""
        stripped = [text.strip() for text in texts]
        try:
            days = parse_dates({text for text in stripped if text not in cells.missing_texts})
        except InvalidDate as problem:
            self.fail(stripped.index(problem.cell), name, problem.cell, problem.reason)
        return np.array([days.get(text, np.nan) for text in stripped])

    def kind(self, feature: int) -> str:
        """Return the type of a feature: number, category, date, mixed or empty."""
        numbers = ~np.isnan(self.numbers[:, feature]).all()
        if self.features[feature] in self.columns.categorical:
            return "category" if numbers or feature in self.texts else "empty"
        if feature not in self.texts:
            return "number" if numbers else "empty"
        if any(DATE.match(text) for text in np.unique(self.texts[feature][1])):
            return "date"
        return "mixed" if numbers else "category"

    def arrays(self) -> Arrays:
        """Return the arrays of the neutral format; raise UserError if a column cannot be used."""
        categorical = self._categorical()
        self._check_numbers(categorical)
        x, names, category_of = self.numbers, [], []
        for feature in categorical:
            levels, codes = self.categories(feature)
            x[:, feature] = codes
            names.append(levels)
            category_of.append(np.full(len(levels), feature))
        arrays = {"x": x, "client": self.client, "features": name_array(self.path, "feature", self.features)}
        if names:
            arrays |= {"categories": np.concatenate(names), "category_of": np.concatenate(category_of)}
        if self.label is not None:
            arrays |= self._labels(self.label)
        if self.split is not None:
            arrays["split"] = np.char.strip(self.split)
        if self.patient is not None:
            arrays["patient"] = self.patient
        if self.weights is not None:
            if (wrong := ~((self.weights >= 0) & (self.weights < np.inf))).any():
                row = int(np.argmax(wrong))
                self.fail(row, self.columns.weights, self.weights[row], "a weight must be a number >= 0")
            arrays["weights"] = self.weights
        return arrays

    def _categorical(self) -> list[int]:
        """Return the categorical features; raise UserError for columns that are neither numbers nor categories."""
        declared = [k for k, name in enumerate(self.features) if name in self.columns.categorical]
        for feature in sorted({*self.texts}.difference(declared)):
            name = self.features[feature]
            rows, texts = self.texts[feature]
            if self.kind(feature) == "date":
                first = next(i for i, text in enumerate(texts) if DATE.match(text))
                self.fail(int(rows[first]), name, texts[first], DATE_ADVICE)
            if feature in self.problems:
                cell, advice = self.problems[feature]
                numbers = np.count_nonzero(~np.isnan(self.numbers[:, feature]))
                share = f"{numbers} of {len(self.lines)} rows have a number there; " if numbers else ""
                self.fail(int(rows[texts.tolist().index(cell)]), name, cell, share + advice)
            if self.label is not None and is_free_text(texts):
                self.fail(int(rows[0]), name, texts[0], TEXT_ADVICE)
        return sorted({*self.texts, *declared})

    def _check_numbers(self, categorical: list[int]) -> None:
        """Raise UserError for identifiers and dates among the columns of numbers; not for rows to predict from."""
        if self.label is None:
            return
        for feature in sorted(suspects(self.numbers).difference(categorical)):
            numbers = self.numbers[:, feature]
            if (reason := reason_to_refuse(self.features[feature], numbers)) is not None:
                row = int(np.argmin(np.isnan(numbers)))
                self.fail(row, self.features[feature], category_name(numbers[row]), reason)

    def categories(self, feature: int) -> tuple[Array, Array]:
        """Return the sorted category names of a column and the index of each row's category [N], NaN if missing."""
        numbers = self.numbers[:, feature]
        rows = np.flatnonzero(~np.isnan(numbers))
        values, which = np.unique(numbers[rows], return_inverse=True)
        names = name_array(self.path, "category", [category_name(value) for value in values] or [""])
        texts = names[which] if len(values) else np.array([], dtype=np.str_)
        if feature in self.texts:
            rows, texts = np.append(rows, self.texts[feature][0]), np.append(texts, self.texts[feature][1])
        texts = self.renaming.names(self.features[feature], texts)
        levels, member = np.unique(texts, return_inverse=True)
        codes = np.full(len(numbers), np.nan)
        codes[rows.astype(np.int64)] = member
        return levels, codes

    def _labels(self, label: Array) -> Arrays:
        missing = label == "" if label.dtype.kind == "U" else np.isnan(label)
        if missing.any():
            self.fail(int(np.argmax(missing)), self.meaning.column, "", "every row must have a label")
        if self.meaning.column in self.columns.categorical and label.dtype.kind != "U":
            label = np.array([category_name(value) for value in label.tolist()])
            label = self.renaming.names(self.meaning.column, label)
        elif self.label_problem is not None and not self.meaning.comparison and self.event is None:
            row, cell, advice = self.label_problem
            self.fail(row, self.meaning.column, cell, advice)
        arrays = {
            "y": self.meaning.apply(label) if self.event_meaning is None else self._times(label, self.event_meaning)
        }
        return arrays if self.meaning.classes is None else arrays | {"classes": self.meaning.classes}

    def _times(self, times: Array, meaning: Label) -> Array:
        """Return the labels of the Cox model: the times, negated where censored."""
        assert self.event is not None
        if self.meaning.comparison or times.dtype.kind == "U":
            self.fail(
                0, self.meaning.text, times[0], f"with event {shown(meaning.text)!r}, the label must be a time > 0"
            )
        if (wrong := ~(times > 0)).any():
            row = int(np.argmax(wrong))
            self.fail(row, self.meaning.column, times[row], "a time must be a number > 0")
        known = self.event != "" if self.event.dtype.kind == "U" else ~np.isnan(self.event)
        happened = meaning.apply(self.event)
        if not meaning.comparison:
            known &= np.isin(happened, (0, 1)) if happened.dtype.kind != "U" else False
        if not known.all():
            row = int(np.argmin(known))
            expected = "0 (censored) or 1 in every row, or a condition such as status==2"
            self.fail(row, meaning.column, self.event[row], f"the event must be {expected}")
        return np.where(happened > 0, times, -times)

    def fail(self, row: int, column: object, cell: object, advice: str) -> NoReturn:
        """Raise UserError for an invalid cell."""
        text = shown(cell, 40)
        problem = f"column {shown(column)!r} is {repr(text) if text else 'empty'}"
        line = f"client {shown(self.client[row])!r}, {self.unit} {self.lines[row]}"
        raise UserError(f"{self.path}: {line}: {problem}; {advice}")


def label_column(table: RawTable, cells: CellParser, texts: list[str], name: str) -> Array:
    """Return a column as numbers if all cells are numbers, otherwise as texts; note what is wrong with the label."""
    known = {text: "" if text.strip() in cells.missing_texts else text.strip() for text in set(texts)}
    distinct = {text for text in known.values() if text}
    numbers = {text: parse_number(text, cells.decimal) for text in distinct if text.lower() not in TRUTH}
    values = {text: number for text, number in numbers.items() if number is not None}
    problem = None
    if len(values) < len(distinct) and name not in table.columns.categorical:
        meaning = interpret(distinct, np.array([]), cells.decimal, name)
        values, problem = meaning.values or {}, meaning.problem
        if problem is not None and split_unit(problem[0]) is None:  # a text among numbers
            declare = f"declare the column as categorical ({by_option('categorical', name)})"
            problem = problem[0], f"labels must be all numbers or all texts: correct the cell, or {declare}"
        elif meaning.unit:
            problem = min(distinct), f"a label must not have a unit ({meaning.unit}): write numbers only"
    if problem is None and len(values) == len(distinct):
        return np.array([values.get(known[text], np.nan) for text in texts])
    if problem is not None and name == table.meaning.column:
        row = next(row for row, text in enumerate(texts) if known[text] == problem[0])
        table.label_problem = row, *problem
    return name_array(table.path, "label", [known[text] for text in texts])
