"""Tests that no damaged record stops a report: a valid record is damaged in many ways, one at a time."""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.report import make_report
from fco_cli.reporting.text import as_csv
from fco_cli.studies import all_studies

MISSING = object()
VALUES = [
    MISSING, None, True, "", "../../../pwn", "\x1b[31m$x^{", "\ud800", "1e-3", [[]], {"a": {"b": []}},
    -1, 0, 0.5, 1e300, 5e-324, 10**30, float("nan"),
]  # fmt: skip
CELLS = [
    "",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "-1e308",
    "5e-324",
    "-1",
    "0",
    "0.5",
    "x",
    "0x10",
    "1 2",
    "#",
    '"1"',
    "1e999",
]
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
SECONDS = 60.0  # of processor time, to read or reject a record; only a hang takes longer


def paths(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in nested content."""
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield (*before, key)
        yield from paths(content[key], (*before, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    content = copy.deepcopy(content)
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


def field_mutations(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield file names and new contents: every field of both files with every value."""
    result = json.loads((folder / "result.json").read_text())
    for path in paths(result):
        for value in VALUES:
            yield "result.json", json.dumps(changed(result, path, value)).encode()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for path in paths(config):
        for value in VALUES:
            content = changed(config, path, value)
            # JSON is YAML, and can encode unpaired surrogates
            text = json.dumps(content) if value == "\ud800" else yaml.dump(content, Dumper=DUMPER)
            yield "config.yaml", text.encode()
    for name in ("result.json", "config.yaml"):
        for whole in ("null", "[]", "3", '"x"', "{}", "[" * 100_000, "- " * 200_000, "{a: " * 50_000, "9" * 5000):
            yield name, whole.encode()
    yield "config.yaml", b"a: &a [x]\nb: &b [*a,*a]\n" + (folder / "config.yaml").read_bytes()
    yield "config.yaml", (folder / "config.yaml").read_bytes() + b"when: 2026-01-01\n"
    yield "config.yaml", (folder / "config.yaml").read_bytes() + b"1: !!binary aGVsbG8=\n"
    yield "config.yaml", b"a: !!python/object/apply:os.system ['touch pwned']\n"


def table_mutations(folder: Path) -> Iterator[tuple[str, bytes]]:
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]

    def table(rows: list[list[str]]) -> tuple[str, bytes]:
        return "metrics.csv", ("\n".join(map(",".join, rows)) + "\n").encode(errors="surrogatepass")

    for row in (1, 2, len(rows) - 1):
        for column in range(len(rows[0])):
            for cell in CELLS:
                yield table(changed(rows, (row, column), cell))
    for column, name in enumerate(rows[0]):
        for other in ("", "round", "x", "=cmd()", "a b", "<b>", "\ud800", "f1"):
            yield table(changed(rows, (0, column), other))
        yield table([row[:column] + row[column + 1 :] for row in rows])
        yield table([[*row, name if i == 0 else "1"] for i, row in enumerate(rows)])
    for row in range(len(rows)):
        yield table(rows[:row] + rows[row + 1 :])  # removed
        yield table(rows[: row + 1] + rows[row:])  # twice
        yield table([*rows[:row], rows[row] * 2, *rows[row + 1 :]])
    yield table(rows[:1] + rows[:0:-1])  # backwards
    yield table(rows[:1])
    yield table([rows[0] * 100_000])
    yield table([rows[0], ["0"] * 10**6])
    yield "metrics.csv", b"\n".join([",".join(rows[0]).encode(), b"0\n" * (10**6 + 1)])


def mutations(folder: Path) -> Iterator[tuple[str, bytes]]:
    yield from field_mutations(folder)
    yield from table_mutations(folder)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


PLACES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": Path.mkdir,
    "pipe": lambda path: os.mkfifo(path),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a gibibyte": _sparse,
    "empty": Path.touch,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 40),
}


@pytest.fixture
def pair(records) -> tuple[Path, Path]:
    """Return a valid record and one to be damaged."""
    options = {"panels": ("f1", "density", "objective"), "smoothness": 2.0}
    return records.add("fedmid", **options), records.add("feddualavg", **options)


def assert_sane(root: Path, sound: Path, damaged: Path, what: object) -> bool:
    """Return True if the damaged record was read; otherwise assert that it is listed in one line, within SECONDS."""
    start = time.process_time()
    results = collect([root])
    assert time.process_time() - start < SECONDS, what
    read = [run.folder for study in results.studies for run in study.runs]
    assert sound in read, what
    if damaged in read:
        return True
    ((folder, reason),) = results.left_out
    assert folder == damaged, what
    assert reason.isprintable(), what
    assert len(reason) < 600, what
    return False


# By default only every twelfth damage is applied, and one in forty survivors is drawn; every third and twelfth in CI.
@pytest.mark.usefixtures("quick_figures")
@pytest.mark.parametrize(
    ("done", "drawn"), [(12, 40), pytest.param(3, 12, marks=pytest.mark.ci), pytest.param(1, 1, marks=pytest.mark.slow)]
)
def test_damaged_record_is_listed_or_drawn(records, pair, tmp_path, monkeypatch, done, drawn):
    sound, damaged = pair
    monkeypatch.chdir(tmp_path)
    originals = {path.name: path.read_bytes() for path in damaged.iterdir()}
    tried, survivors = 0, []
    for name, content in itertools.islice(mutations(damaged), 0, None, done):
        (damaged / name).write_bytes(content)
        if assert_sane(records.root, sound, damaged, (name, content[:2000])):
            survivors.append((name, content))
        (damaged / name).write_bytes(originals[name])
        tried += 1
    assert 0.05 < len(survivors) / tried < 0.6  # some damages are rejected, some are not
    chosen = survivors[::drawn]
    for low in range(0, len(chosen), 8):
        root = tmp_path / f"batch{low}"
        shutil.copytree(sound, root / "sound")
        for i, (name, content) in enumerate(chosen[low : low + 8]):
            shutil.copytree(damaged, root / str(i))
            (root / str(i) / name).write_bytes(content)
            _make_distinct(root / str(i), i)
        results = collect([root])
        page = make_report(results, tmp_path / f"report{low}", all_studies()).page
        assert page.read_text().startswith("<!doctype html>")
        as_csv(results.table()).encode()
    assert not (tmp_path / "pwned").exists()
    assert not list(tmp_path.parent.rglob("pwn*"))


def _make_distinct(folder: Path, i: int) -> None:
    """Give a copy its own identity and learning rate, so that it counts as a separate run."""
    for name, old, new in (
        ("result.json", json.loads((folder / "result.json").read_text())["run_id"], f"{i:012x}"),
        ("config.yaml", "client_lr: 0.001", f"client_lr: {0.002 + i / 1000}"),
    ):
        (folder / name).write_text((folder / name).read_text().replace(old, new))


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "metrics.csv"])
@pytest.mark.parametrize("place", PLACES)
def test_unusual_or_oversized_files_are_not_read(records, pair, name, place):
    sound, damaged = pair
    (damaged / name).unlink()
    PLACES[place](damaged / name)
    assert not assert_sane(records.root, sound, damaged, place)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes(records, data):
    if not records.root.exists():
        records.add("fedmid")
        records.add("feddualavg")
    sound, damaged = sorted(path.parent for path in records.root.rglob("result.json"))[::-1]
    path = damaged / data.draw(st.sampled_from(["result.json", "config.yaml", "metrics.csv"]))
    original = path.read_bytes()
    at = data.draw(st.integers(0, len(original) - 1))
    new = data.draw(st.binary(max_size=4))
    path.write_bytes(original[:at] + new + original[at + data.draw(st.integers(0, 4)) :])
    try:
        assert_sane(records.root, sound, damaged, (path.name, at, new))
    finally:
        path.write_bytes(original)
