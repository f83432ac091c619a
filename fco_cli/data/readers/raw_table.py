"""Content of one table before validation: numbers and texts by column, with the conversion of texts to numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.data.format import Arrays, name_array, shown
from fco_cli.data.readers.cells import TRUTH, CellParser, Label, Renaming, category_name, parse_number
from fco_cli.data.readers.dates import DATE, Derivation, InvalidDate, date_advice, parse_dates
from fco_cli.data.readers.not_features import is_free_text, reason_to_refuse, suspects, text_advice
from fco_cli.data.readers.numerals import by_option, interpret, split_unit
from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

Problem = tuple[int, str, str]  # the row, its cell, and what is wrong with it


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
    is_typed: bool = False  # numbers are stored as numbers, not written with a decimal separator
    event_meaning: Label | None = None
    event: Array | None = None  # same format as the label
    patient: Array | None = None
    problems: dict[int, Problem] = field(default_factory=dict)  # of columns that are neither numbers nor categories
    label_problem: Problem | None = None

    def complete(self, cells: CellParser, dates: dict[str, list[str]], derivations: list[Derivation]) -> RawTable:
        """Convert texts to numbers, mark missing values, rename, and add columns derived from `dates`."""
        units = self._convert_texts(cells)
        self._note_renamed_numbers()
        cells.mark_missing(self.numbers, self.features)
        for feature, unit in units.items():  # so that columns with different units have different names
            suffix = f" [{unit}]"
            self.features[feature] = self.features[feature].removesuffix(suffix) + suffix
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

    def _convert_texts(self, cells: CellParser) -> dict[int, str]:
        """Replace the texts of columns of numbers, after renaming, by numbers; return the units by feature."""
        units, commas = {}, {}
        self._mark_missing_cells(cells)
        for feature, (rows, texts) in list(self.texts.items()):
            name = self.features[feature]
            if name in self.columns.categorical or self.kind(feature) == "date":
                continue
            numbers, new_texts = self.numbers[:, feature], self.renaming.new_texts(name, texts)
            meaning = interpret(set(new_texts), numbers[~np.isnan(numbers)], cells.decimal, name)
            if meaning.problem is not None:
                cell, advice = meaning.problem
                row = int(rows[new_texts.index(cell)])
                self.problems[feature] = row, cell, advice
            elif meaning.values is not None:
                self.numbers[rows, feature] = [meaning.values[text] for text in new_texts]
                del self.texts[feature]
                if meaning.unit:
                    units[feature] = meaning.unit
                if meaning.decimal == "," and not self.is_typed:
                    commas[feature] = next(text for text in new_texts if "," in text)
        if commas and cells.decimal is None:
            self._note_decimal_points(commas)
        return units

    def _note_decimal_points(self, commas: dict[int, str]) -> None:
        """Note decimal points in a table with decimal commas, where points may separate thousands."""
        feature, cell = next(iter(commas.items()))
        example = f"column {shown(self.features[feature])!r} has decimal commas ({shown(cell, 40)})"
        for other in sorted({*range(len(self.features))}.difference(self.texts, commas)):
            numbers = self.numbers[:, other]
            rows = np.flatnonzero(np.isfinite(numbers) & (numbers != np.floor(numbers)))
            if len(rows):
                advice = f"state that points separate thousands ({by_option('decimal', ',')}), or use one separator"
                self.problems[other] = (
                    int(rows[0]),
                    f"{numbers[rows[0]]:g}",
                    f"{example}, this one has points: {advice}",
                )

    def _mark_missing_cells(self, cells: CellParser) -> None:
        """Remove the texts and numbers that are renamed to a missing-value marker."""
        for name in set(self.renaming.texts).intersection(self.features):
            feature = self.features.index(name)
            missing = self.renaming.missing_cells(name, cells)
            numbers = [number for cell in missing if (number := parse_number(cell)) is not None]
            self.numbers[np.isin(self.numbers[:, feature], numbers), feature] = np.nan
            if feature in self.texts:
                rows, texts = self.texts.pop(feature)
                is_known = ~np.isin(texts, missing)
                if is_known.any():
                    self.texts[feature] = rows[is_known], texts[is_known]

    def _note_renamed_numbers(self) -> None:
        """Note numbers in columns of numbers that are to be renamed, which is possible for categories only."""
        for name, rules in self.renaming.texts.items():
            if name in self.columns.categorical:
                continue
            for old in rules:
                if (number := parse_number(old)) is None:
                    continue
                missing = f"declare it as missing ({by_option('missing', f'{name}:{old}')})"
                declare = f"the column as categorical ({by_option('categorical', name)})"
                advice = f"a number cannot be renamed (map): {missing}, or {declare}"
                if name in self.features:
                    feature = self.features.index(name)
                    rows = np.flatnonzero(self.numbers[:, feature] == number)
                    if len(rows) and feature not in self.texts:
                        self.problems.setdefault(feature, (int(rows[0]), old, advice))
                if name == self.meaning.column and self.label is not None and self.label.dtype.kind != "U":
                    rows = np.flatnonzero(self.label == number)
                    if len(rows) and self.label_problem is None:
                        self.label_problem = int(rows[0]), old, advice

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
                self.fail(int(rows[first]), name, texts[first], date_advice(name))
            if feature in self.problems:
                row, cell, advice = self.problems[feature]
                numbers = np.count_nonzero(~np.isnan(self.numbers[:, feature]))
                share = f"{numbers} of {len(self.lines)} rows have a number there; " if numbers else ""
                self.fail(row, name, cell, share + advice)
            if self.label is not None and is_free_text(texts):
                self.fail(int(rows[0]), name, texts[0], text_advice(name))
        return sorted({*self.texts, *declared})

    def _check_numbers(self, categorical: list[int]) -> None:
        """Raise UserError for invalid columns of numbers, also for identifiers and dates unless rows are to predict."""
        for feature, (row, cell, advice) in self.problems.items():
            if feature not in categorical:
                self.fail(row, self.features[feature], cell, advice)
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
    rules = {} if name in table.columns.categorical else table.renaming.texts.get(name, {})
    new = {text: rules.get(text.strip(), text.strip()) for text in set(texts)}
    known = {text: "" if cell in cells.missing_texts else cell for text, cell in new.items()}
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
    return name_array(table.path, "label", [known[text] and text.strip() for text in texts])  # renamed later
