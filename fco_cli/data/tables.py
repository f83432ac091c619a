"""Tables: a folder with one file per client, or one file with a client column; what CSV and Parquet have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.data.cells import DATE, DECIMAL_COMMA, NO_COMMAS, NO_DATES, NO_WORDS, Cells, category
from fco_cli.data.format import NOBODY, Arrays, as_names, listed, shown
from fco_cli.data.label import Label
from fco_cli.data.source import Columns, Format, Wanted
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array


@dataclass
class RawTable:
    """A file as it was read, with nothing refused that a description could show."""

    path: Path
    columns: Columns
    features: list[str]
    numbers: Array  # [N, d]; NaN: missing, or a text
    texts: dict[int, tuple[Array, Array]]  # by feature: the rows whose cells are texts, and these
    lines: Array  # [N], where a row stands in the file
    client: Array
    meaning: Label
    label: Array | None  # numbers (NaN: missing) or words (empty: missing)
    split: Array | None = None
    weights: Array | None = None
    unit: str = "line"  # what `lines` counts
    event_meaning: Label | None = None
    event: Array | None = None  # as the label

    def kind(self, feature: int) -> str:
        """number, category, date, mixed, or empty."""
        numbers = ~np.isnan(self.numbers[:, feature]).all()
        if self.features[feature] in self.columns.categorical:
            return "category" if numbers or feature in self.texts else "empty"
        if feature not in self.texts:
            return "number" if numbers else "empty"
        if any(DATE.match(text) for text in np.unique(self.texts[feature][1])):
            return "date"
        return "mixed" if numbers else "category"

    def arrays(self) -> Arrays:
        """In the neutral format; refuses what no model could be made of."""
        categorical = self._categorical()
        x, names, owner = self.numbers, [], []
        for feature in categorical:
            levels, codes = self.categories(feature)
            x[:, feature] = codes
            names.append(levels)
            owner.append(np.full(len(levels), feature))
        arrays = {"x": x, "client": self.client, "features": as_names(self.path, "feature", self.features)}
        if names:
            arrays |= {"categories": np.concatenate(names), "category_of": np.concatenate(owner)}
        if self.label is not None:
            arrays |= self._labels(self.label)
        if self.split is not None:
            arrays["split"] = self.split
        if self.weights is not None:
            if (wrong := ~((self.weights >= 0) & (self.weights < np.inf))).any():
                row = int(np.argmax(wrong))
                self.fail(row, self.columns.weights, self.weights[row], "a row's weight is a number >= 0")
            arrays["weights"] = self.weights
        return arrays

    def _categorical(self) -> list[int]:
        """The features that are; a text among numbers is refused, and so are dates."""
        declared = [place for place, name in enumerate(self.features) if name in self.columns.categorical]
        for feature in sorted({*self.texts}.difference(declared)):
            kind, name = self.kind(feature), self.features[feature]
            rows, texts = self.texts[feature]
            if kind == "date":
                first = next(i for i, text in enumerate(texts) if DATE.match(text))
                self.fail(int(rows[first]), name, texts[first], NO_DATES)
            if (comma := _first_decimal_comma(texts)) is not None:
                advice = f"{NO_COMMAS}, or name the column as categorical if its texts are names"
                self.fail(int(rows[comma]), name, texts[comma], advice)
            if kind == "mixed":
                share = f"{np.count_nonzero(~np.isnan(self.numbers[:, feature]))} of {len(self.lines)} rows"
                wanted = f"{share} have a number there; {NO_WORDS}"
                self.fail(int(rows[0]), name, texts[0], wanted)
        return sorted({*self.texts, *declared})

    def categories(self, feature: int) -> tuple[Array, Array]:
        """The names in a column, sorted, and which of them every row has [N]; NaN: none."""
        numbers = self.numbers[:, feature]
        rows = np.flatnonzero(~np.isnan(numbers))
        values, which = np.unique(numbers[rows], return_inverse=True)
        names = as_names(self.path, "category", [category(value) for value in values] or [""])
        words = names[which] if len(values) else np.array([], dtype=np.str_)
        if feature in self.texts:
            rows, words = np.append(rows, self.texts[feature][0]), np.append(words, self.texts[feature][1])
        levels, member = np.unique(words, return_inverse=True)
        codes = np.full(len(numbers), np.nan)
        codes[rows.astype(np.int64)] = member
        return levels, codes

    def _labels(self, label: Array) -> Arrays:
        missing = label == "" if label.dtype.kind == "U" else np.isnan(label)
        if missing.any():
            self.fail(int(np.argmax(missing)), self.meaning.column, "", "it must be given in every row")
        if label.dtype.kind == "U" and (first := _first_decimal_comma(label)) is not None:
            self.fail(first, self.meaning.column, label[first], NO_COMMAS)
        made = {
            "y": self.meaning.apply(label) if self.event_meaning is None else self._times(label, self.event_meaning)
        }
        return made if self.meaning.classes is None else made | {"classes": self.meaning.classes}

    def _times(self, times: Array, meaning: Label) -> Array:
        """The label of the Cox model: negative where nothing has happened until then."""
        assert self.event is not None
        if self.meaning.comparison or times.dtype.kind == "U":
            self.fail(
                0, self.meaning.text, times[0], f"a time is a number > 0, beside the event {shown(meaning.text)!r}"
            )
        if (wrong := ~(times > 0)).any():
            row = int(np.argmax(wrong))
            self.fail(row, self.meaning.column, times[row], "a time is a number > 0")
        known = self.event != "" if self.event.dtype.kind == "U" else ~np.isnan(self.event)
        happened = meaning.apply(self.event)
        if not meaning.comparison:
            known &= np.isin(happened, (0, 1)) if happened.dtype.kind != "U" else False
        if not known.all():
            row = int(np.argmin(known))
            wanted = "0 (not until then) or 1 in every row, or a condition such as status==2"
            self.fail(row, meaning.column, self.event[row], f"the event is {wanted}")
        return np.where(happened > 0, times, -times)

    def fail(self, row: int, column: object, cell: object, wanted: str) -> NoReturn:
        """The one wording for a bad cell."""
        text = shown(cell, 40)
        is_what = f"column {shown(column)!r} is {repr(text) if text else 'empty'}"
        line = f"client {shown(self.client[row])!r}, {self.unit} {self.lines[row]}"
        raise UserError(f"{self.path}: {line}: {is_what}; {wanted}")


class Table(Format):
    """Labels that are words become 0, 1, 2, ... in alphabetical order, once all files are read."""

    @abstractmethod
    def raw(self, path: Path, wanted: Wanted) -> RawTable:
        """One file, cell by cell."""

    def read(self, path: Path, wanted: Wanted) -> Arrays:
        return self.raw(path, wanted).arrays()

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        first_path, first = parts[0]
        for path, part in parts[1:]:
            if "y" in part and (part["y"].dtype.kind == "U") != (first["y"].dtype.kind == "U"):
                raise UserError(f"{path}: only one of it and {first_path.name} has numbers for labels")
        categories: Arrays = {}
        if len(parts) > 1:
            parts = [(path, _in_order(path, part, first_path, first)) for path, part in parts]
            parts, categories = _same_categories(parts)
        arrays = super().join(parts) | categories
        if "y" in arrays and arrays["y"].dtype.kind == "U":
            arrays["classes"], arrays["y"] = np.unique(arrays["y"], return_inverse=True)
        return arrays


def _in_order(path: Path, part: Arrays, first_path: Path, first: Arrays) -> Arrays:
    """With its features as the first file has them."""
    ours, theirs = part["features"].tolist(), first["features"].tolist()
    if ours == theirs:
        return part
    lacking, extra = (sorted(set(one) - set(other)) for one, other in ((theirs, ours), (ours, theirs)))
    if lacking or extra:
        odd = [f"{what} {listed(names)}" for what, names in (("it lacks", lacking), ("only it has", extra)) if names]
        raise UserError(f"{path}: its columns differ from those of {first_path.name}: {'; '.join(odd)}")
    place = {name: k for k, name in enumerate(ours)}
    order = np.array([place[name] for name in theirs])
    moved = {"x": part["x"][:, order], "features": first["features"]}
    if "category_of" in part:
        moved["category_of"] = np.argsort(order)[part["category_of"]]
    return part | moved


def _same_categories(parts: list[tuple[Path, Arrays]]) -> tuple[list[tuple[Path, Arrays]], Arrays]:
    """Every file has numbered the categories it knows; now all of them are numbered alike."""
    levels: dict[int, Array] = {}
    source: dict[int, Path] = {}
    for path, part in parts:
        for feature in np.unique(part.get("category_of", np.array([], dtype=int))).tolist():
            names = part["categories"][part["category_of"] == feature]
            levels[feature] = np.unique(np.append(levels[feature], names)) if feature in levels else names
            source.setdefault(feature, path)
    joined = []
    for path, part in parts:
        x, owner = part["x"], part.get("category_of", np.array([], dtype=int))
        for feature, names in levels.items():
            codes = x[:, feature]
            present = ~np.isnan(codes)
            own = part["categories"][owner == feature] if (owner == feature).any() else None
            if own is None and present.any():
                raise UserError(
                    f"{path}: column {shown(part['features'][feature])!r} holds numbers, that of "
                    f"{source[feature].name} texts: name it as categorical, or write it alike"
                )
            if own is not None:
                codes[present] = np.searchsorted(names, own)[codes[present].astype(np.int64)]
        joined.append((path, {name: array for name, array in part.items() if not name.startswith("categor")}))
    if not levels:
        return joined, {}
    owner = np.concatenate([np.full(len(names), feature) for feature, names in sorted(levels.items())])
    return joined, {"categories": np.concatenate([levels[k] for k in sorted(levels)]), "category_of": owner}


def _first_decimal_comma(texts: Array) -> int | None:
    """Return the place of the first text such as 1,6; a table of them would make categories of measurements."""
    return next((i for i, text in enumerate(texts.tolist()) if DECIMAL_COMMA.fullmatch(text)), None)


def label_column(path: Path, cells: Cells, texts: Sequence[str]) -> Array:
    """Numbers if all of them are, else words."""
    known = {text: "" if text.strip() in cells.words else text.strip() for text in set(texts)}
    try:
        if not any("_" in text for text in known):
            values = {text: np.nan if not word else float(word) for text, word in known.items()}
            return np.array([values[text] for text in texts])
    except ValueError:
        pass
    return as_names(path, "label", [known[text] for text in texts])


def owners(path: Path, names: Sequence[str] | None, rows: int, wanted: Wanted) -> Array:
    """Whose rows they are: as a column says, the file's, or nobody's."""
    if names is not None:
        return as_names(path, "client", names)
    return as_names(path, "client", [path.stem if wanted.in_folder else NOBODY] * rows)
