"""Warnings about values that are valid but may not mean what they seem to mean.

Missing-value codes, zeros among positive values, values far from all others, numeric codes, row numbers and serial
dates as measurements, different units at different clients, columns without values, equal rows and columns, columns
that determine the label, doubtful labels, and doubtful names (`doubtful_names.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fco_cli.data.doubtful_names import Doubt, find_name_doubts, find_text_doubts
from fco_cli.data.format import FederatedData, format_list, shown
from fco_cli.data.readers.cells import category_name
from fco_cli.data.readers.not_features import EXCEL_DATES
from fco_cli.data.readers.numerals import by_option
from fco_cli.data.sparse import is_sparse
from fco_cli.problem.layout import Array

MIN_ROWS = 20  # with fewer rows, chance can explain most findings
MAX_COLUMNS, MAX_CELLS = 5000, 2_000_000  # larger tables are not examined
CODES = (-1.0, *(float(sign * (10**digits - 1)) for digits in range(1, 6) for sign in (-1, 1)))
MIN_DISTINCT = 10  # values of a measurement
MAX_CODES = 6  # distinct values of a column of codes
ZERO_GAP = 0.25  # smallest positive value, relative to the median, above which a zero is implausible
ZERO_GAPS = 2.0  # and relative to the gaps between the smallest positive values
OUTLIER_GAPS, OUTLIER_LOG_GAPS = 5.0, 2.0  # gap to the other values, relative to their range, and in logarithms
OUTLIER_SHARE = 0.05  # largest share of values that are far from the others
FEW_LABELS = 0.05  # largest share of labels that are neither 0 nor 1
UNIT_FACTOR = 2.0  # between the medians of clients that may have different units
UNIT_SPREAD = 3.0  # factor up to which the ratio of spreads may differ from the ratio of medians
MIN_CLIENT_VALUES = 10
MAX_NAMED = 3  # clients, or columns of an option, in a list
LEAK = 0.99  # area under the curve, or accuracy, of one column
LEAK_CORRELATION = 0.995
MIN_CLASS_ROWS = 5


@dataclass(frozen=True)
class Finding:
    """Warning about some rows of a data set."""

    text: str
    rows: Array | None = None  # mask of the rows; None: not about rows

    def by_client(self, client: Array) -> str:
        """Return the warning with the number of its rows at every client."""
        if self.rows is None:
            return self.text
        names, counts = np.unique(client[self.rows], return_counts=True)
        return f"{self.text} [{format_list(f'{name} {count}' for name, count in zip(names, counts, strict=True))}]"


def find_doubts(data: FederatedData, censored: bool = False, labels_are_numbers: bool = False) -> list[Finding]:
    """Return the warnings about dense rows of moderate size; none for other data.

    `censored`: the labels are times, negative where censored; what a column may determine is then the event.
    `labels_are_numbers`: the user has declared a loss for numbers.
    """
    rows, columns = data.x.shape
    if is_sparse(data.x) or rows < MIN_ROWS or columns > MAX_COLUMNS or rows * columns > MAX_CELLS:
        return []
    found = list(_doubts(data, (data.y > 0).astype(float) if censored else data.y))
    if data.classes is None and not censored and not labels_are_numbers:
        found += _labels(data.y)
    return found


def _doubts(data: FederatedData, y: Array) -> Iterator[Finding]:
    codes: dict[str, str] = {}
    member = np.searchsorted(data.clients, data.client)
    for feature, name in enumerate(data.feature_names):
        values, label = np.asarray(data.x[:, feature], dtype=float), f"column {shown(name)!r}"
        if feature in data.levels:
            names = data.levels[feature]
            for text, about in (
                *find_name_doubts(label, name, names),
                *find_text_doubts(label, name, names, int(np.count_nonzero(~np.isnan(values)))),
            ):
                yield Finding(text, np.isin(values, [names.index(one) for one in about]) if about else None)
        else:
            yield from _numbers(label, name, values)
            yield from _units(label, values, data.clients, member)
            if is_codes(values):
                codes[name] = f"{name} ({', '.join(map(category_name, np.unique(values[~np.isnan(values)])))})"
        yield from _leak(label, name, values, y, feature in data.levels, data.classes is not None)
    if codes:
        declare = f"declare the columns as categorical ({_options('categorical', list(codes))})"
        text = f"few whole numbers, used as measurements: {format_list(codes.values())}"
        yield Finding(f"{text}; {declare} if their numbers are codes without an order")
    yield from _without_text_rows(find_name_doubts("client names", "", data.clients.tolist()))
    if data.classes is not None:
        yield from _without_text_rows(find_name_doubts("label", "", data.classes.tolist()))
    yield from _absent(data, member)
    yield from _duplicates(data)


def _options(name: str, columns: list[str]) -> str:
    """Return how to set an option for several columns; only its name if they are many."""
    return by_option(name, *columns) if len(columns) <= MAX_NAMED else f"--{name} or task.{name}"


def _without_text_rows(doubts: Iterator[Doubt]) -> Iterator[Finding]:
    return (Finding(text) for text, _ in doubts)


def _numbers(label: str, name: str, values: Array) -> Iterator[Finding]:
    """Yield doubts about single values of a column, and about its meaning."""
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    for code in CODES:
        if code in distinct and _is_missing_code(code, distinct[distinct != code]):
            marker = by_option("missing", f"{name}:{code:g}")
            yield Finding(
                f"{label}: {_rows(values == code)} {code:g}, which may mean missing: {marker}", values == code
            )
    positive = distinct[distinct > 0]
    if len(positive) >= MIN_DISTINCT and distinct[0] == 0 and _is_far_from_zero(positive, present):
        zeros = f"{_rows(values == 0)} 0, the others at least {positive[0]:g}"
        marker = by_option("missing", f"{name}:0")
        yield Finding(f"{label}: {zeros}; 0 may mean missing: {marker}", values == 0)
    yield from _outliers(label, values)
    if len(distinct) < MIN_ROWS or (distinct != np.floor(distinct)).any():
        return
    if len(distinct) == len(values) and (np.diff(values) > 0).all():
        yield Finding(
            f"{label}: increases from row to row and may be a row number: drop it ({by_option('drop', name)})"
        )
    elif EXCEL_DATES[0] <= distinct[0] and distinct[-1] <= EXCEL_DATES[1] and len(distinct) > len(present) / 2:
        advice = f"derive an interval (--derive or task.derive), or drop it ({by_option('drop', name)})"
        yield Finding(f"{label}: {category_name(present[0])} may be a serial date of a spreadsheet: {advice}")


def _rows(mask: Array) -> str:
    count = np.count_nonzero(mask)
    return "1 row has" if count == 1 else f"{count} rows have"


def _outliers(label: str, values: Array) -> Iterator[Finding]:
    """Yield a doubt for few values that are far from all others, such as those in another unit."""
    coded = [code for code in CODES if (values == code).any()]
    present = np.sort(values[~np.isnan(values) & ~np.isin(values, coded)])
    if len(present) < MIN_ROWS or not np.isfinite(present).all():
        return
    cut = int(np.argmax(np.diff(present))) + 1
    low, high = present[:cut], present[cut:]
    few, many = (low, high) if len(low) < len(high) else (high, low)
    width, gap = np.ptp(many), high[0] - low[-1]
    if len(few) > max(1, OUTLIER_SHARE * len(present)) or len(np.unique(many)) < MIN_DISTINCT:
        return
    is_far = gap > OUTLIER_GAPS * width
    if present[0] > 0:
        is_far &= bool(np.log(high[0] / low[-1]) > OUTLIER_LOG_GAPS * np.log(many[-1] / many[0]))
    if is_far:
        about, others = (values >= few[0]) & (values <= few[-1]), f"the others {many[0]:g} to {many[-1]:g}"
        value = f"{few[0]:g}" if few[0] == few[-1] else f"{few[0]:g} to {few[-1]:g}"
        yield Finding(f"{label}: {_rows(about)} {value}, {others}: is this a typing error, or another unit?", about)


def _is_far_from_zero(positive: Array, present: Array) -> bool:
    """Return True if 0 is far below the smallest of the sorted positive values, also compared with their gaps."""
    smallest, gap = positive[0], np.diff(positive[:MIN_DISTINCT]).max()
    return bool(smallest > max(ZERO_GAP * np.median(present[present > 0]), ZERO_GAPS * gap))


def _is_missing_code(code: float, others: Array) -> bool:
    """Return True if a code such as -999 is far from all other values, or is the only negative one."""
    if len(others) < 3:
        return False
    low, high = others[0], others[-1]
    if code < 0 <= low:
        return True
    gap = max(low - code, code - high)
    return bool(abs(code) >= 99 and gap > high - low)


def is_codes(values: Array) -> bool:
    """Return True for a column of 3 to MAX_CODES different whole numbers below 10."""
    distinct = np.unique(values[~np.isnan(values)])
    is_small = 3 <= len(distinct) <= MAX_CODES and distinct[0] >= 0 and distinct[-1] < 10
    return bool(is_small and (distinct == np.floor(distinct)).all())


def _units(label: str, values: Array, clients: Array, member: Array) -> Iterator[Finding]:
    """Yield a doubt for a client whose values differ by a large factor, in location and spread, from the others'."""
    present = ~np.isnan(values)
    if not present.any() or (values[present] <= 0).mean() > 0.1:
        return
    center, count = np.median(values[present]), np.bincount(member[present], minlength=len(clients))
    mean = np.bincount(member[present], values[present], len(clients)) / np.maximum(count, 1)
    enough = np.minimum(count, present.sum() - count) >= MIN_CLIENT_VALUES
    for client in np.flatnonzero(enough):
        if _ratio(mean[client], center) < UNIT_FACTOR / 2:
            continue
        is_own = present & (member == client)
        own, others = (np.quantile(values[part], (0.1, 0.5, 0.9)) for part in (is_own, present & ~is_own))
        factor, spread = own[1] / max(others[1], 1e-300), (own[2] - own[0]) / max(others[2] - others[0], 1e-300)
        is_other_scale = _ratio(factor, 1) > UNIT_FACTOR and _ratio(factor, spread) < UNIT_SPREAD
        if is_other_scale and (own[0] > others[2] or own[2] < others[0]):
            medians = f"median {own[1]:g} at client {shown(clients[client])!r}, {others[1]:g} at the others"
            yield Finding(f"{label}: {medians}: is its unit the same?", is_own)


def _ratio(one: float, other: float) -> float:
    """Return the ratio of two numbers, at least 1; infinity if one of them is not positive."""
    return max(one / other, other / one) if min(one, other) > 0 else np.inf


def _labels(y: Array) -> Iterator[Finding]:
    """Yield doubts about labels that are used as numbers."""
    distinct = np.unique(y)
    others = distinct[~np.isin(distinct, (0, 1))]
    is_other = ~np.isin(y, (0, 1))
    declare = by_option("categorical", "LABEL")
    if len(distinct) == 2 and len(others):
        first, second = map(category_name, distinct)
        yield Finding(f"label: every label is {first} or {second}: for classes, use the condition 'LABEL=={second}'")
    elif len(distinct) > 2 and is_other.mean() <= FEW_LABELS and len(others) == 1:
        text = f"{_rows(is_other)} {category_name(others[0])}, all others 0 or 1: correct or remove them"
        yield Finding(f"label: {text}, otherwise the labels are not two classes", is_other)
    elif is_codes(y) or (len(others) == 1 and len(distinct) == 3):
        text = f"few whole numbers ({', '.join(map(category_name, distinct))}), used as a measurement"
        yield Finding(f"label: {text}: declare the label as categorical ({declare}) if they are codes of classes")
    else:
        for code in CODES:
            if code in distinct and _is_missing_code(code, distinct[distinct != code]):
                text = f"{_rows(y == code)} {code:g}, which may mean missing: remove them"
                yield Finding(f"label: {text}", y == code)


def _absent(data: FederatedData, member: Array) -> Iterator[Finding]:
    """Yield doubts about columns without values, at all clients or at some."""
    sizes, empty, absent = np.bincount(member, minlength=len(data.clients)), list[str](), list[str]()
    partly: list[str] = []
    for feature, name in enumerate(data.feature_names):
        present = ~np.isnan(np.asarray(data.x[:, feature], dtype=float))
        counts = np.bincount(member[present], minlength=len(data.clients))
        without = data.clients[(counts == 0) & (sizes >= MIN_CLIENT_VALUES)].tolist()
        if not present.any():
            empty.append(name)
        elif without:
            where = ", ".join(without) if len(without) <= MAX_NAMED else f"{len(without)} clients"
            absent.append(f"{shown(name)} (at {shown(where)})")
            partly.append(name)
    if empty:
        yield Finding(f"columns without values: {format_list(empty)}: drop them ({_options('drop', empty)})")
    if absent:
        drop = f"drop the columns ({_options('drop', partly)}) if these differ"
        advice = f"their values there are filled from the other clients; {drop}"
        yield Finding(f"no values at some clients: {format_list(absent)}; {advice}")


def _duplicates(data: FederatedData) -> Iterator[Finding]:
    """Yield doubts about equal columns, more equal rows than by chance, and patients at several clients."""
    first: dict[bytes, str] = {}
    for feature, name in enumerate(data.feature_names):
        values = np.asarray(data.x[:, feature], dtype=float)
        same = first.setdefault(values.tobytes(), name)
        if same != name and len(np.unique(values)) > 2:
            yield Finding(
                f"columns {shown(same)!r} and {shown(name)!r} are equal: drop one ({by_option('drop', name)})"
            )
    table = np.column_stack([np.asarray(data.x, dtype=float), data.y])
    _, member, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True, equal_nan=True)
    repeated = counts[member.ravel()] > 1
    extra = len(table) - len(counts)
    if extra:
        pairs = len(table) * (len(table) - 1) / 2
        counts_by_column = (np.unique(column, return_counts=True)[1] for column in table.T)
        expected = pairs * np.prod([(one * (one - 1)).sum() / 2 / pairs for one in counts_by_column])
        if extra > 10 * expected:
            advice = "declare the patient column (--patient or task.patient) to keep them together, or remove them"
            yield Finding(f"{extra} rows repeat another row in all features and the label: {advice}", repeated)
    if data.patient is not None:
        stays = {*zip(data.patient.tolist(), data.client.tolist(), strict=True)}
        many = [patient for patient, count in Counter(patient for patient, _ in stays).items() if count > 1]
        if many:
            text = f"{len(many)} patients have rows at several clients, which may be in different folds"
            yield Finding(text, np.isin(data.patient, many))


def _leak(label: str, name: str, values: Array, y: Array, is_category: bool, has_classes: bool) -> Iterator[Finding]:
    """Yield a doubt if the column alone determines the label."""
    present = ~np.isnan(values)
    classes = np.unique(y)
    advice = f"is it known before the label? Otherwise drop it ({by_option('drop', name)})"
    if len(classes) == 2:
        positive = y == classes[1]
        if min(positive.sum(), (~positive).sum()) < MIN_CLASS_ROWS:
            return
        if not present.all() and (share := _accuracy(present.astype(float), positive)) > LEAK:
            yield Finding(f"{label}: whether it is missing predicts {share:.1%} of the labels: {advice}")
        counts = positive[present].sum(), (~positive)[present].sum()
        if min(counts) < MIN_CLASS_ROWS:
            return
        if is_category:
            if (share := _accuracy(values[present], positive[present])) > LEAK:
                yield Finding(f"{label}: predicts {share:.1%} of the labels alone: {advice}")
        elif (area := _area(values[present], positive[present])) > LEAK:
            yield Finding(f"{label}: predicts the label alone (AUC {area:.3f}): {advice}")
    elif not is_category and not has_classes and present.sum() >= MIN_ROWS:
        x, target = values[present], y[present]
        with np.errstate(all="ignore"):
            correlation = abs(np.corrcoef(x, target)[0, 1])
        if correlation > LEAK_CORRELATION:
            yield Finding(f"{label}: predicts the label alone (correlation {correlation:.4f}): {advice}")


def _accuracy(codes: Array, positive: Array) -> float:
    """Return the balanced accuracy of the best prediction from the codes; 0 for codes of few rows each."""
    distinct, member = np.unique(codes, return_inverse=True)
    if len(codes) < MIN_CLASS_ROWS * len(distinct):
        return 0.0
    hits = np.bincount(member, positive, len(distinct)) / positive.sum()
    misses = np.bincount(member, ~positive, len(distinct)) / (~positive).sum()
    return float(np.maximum(hits, misses).sum() / 2)


def _area(values: Array, positive: Array) -> float:
    """Return the area under the ROC curve, or 1 minus it if that is larger."""
    _, member, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[member]  # mean ranks of equal values
    hits, misses = positive.sum(), (~positive).sum()
    area = float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))
    return max(area, 1 - area)
