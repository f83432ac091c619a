"""Damaged records: every file of a run and of a path is changed in every way, and every command reads it again.

A command ends with its result or with one line. It never says "already done" of a record that lacks a file.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli import api
from fco_cli.commands.predict import predictions
from fco_cli.commands.report import main as report
from fco_cli.commands.run import run as fco_run
from fco_cli.config import PathRun, Run, kind_of, register
from fco_cli.errors import UserError
from fco_cli.reporting.figures import drawing
from tests.reporting.test_mutations import PLACES, VALUES, changed, paths

DATA = Path(__file__).parents[1] / "old_records"
CLINICS = ["task=custom", f"task.path={DATA / 'clinics.csv'}", "task.loss=logistic"]
RUN = ["hparams.rounds=2", "hparams.clients_per_round=2", "hparams.batch_size=4", "hparams.client_lr=0.1"]
PATH = ["path.strengths=3", "path.folds=2", "path.ratio=0.3", "path.tolerance=1e-2", "hparams.tolerance=1e-2"]
WHOLE = ["", "null", "[]", "3", '"x"', "{}", '{"status": "finished"}', "[" * 100_000, '{"a":' * 50_000, "9" * 5000,
         '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "\ufeff{}"]  # fmt: skip
SCALARS = [np.array("x"), np.array(1j), np.array(None), np.array(np.nan), np.array(1e308), np.array(-1), np.zeros(0)]

Damage = tuple[str, str, Callable[[Path], object]]  # file, what is done to it, how


def damages(folder: Path) -> list[Damage]:
    """Return all damages to the files of a record."""
    found: list[Damage] = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(".") and name != "run.log":
            found += [(name, what, partial(Path.write_bytes, data=content)) for what, content in contents(path)]
            found += [(name, what, place) for what, place in PLACES.items()]
    return found


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield descriptions and new contents of a file."""
    before, rng = path.read_bytes(), random.Random(path.name)
    for length in (1, len(before) // 2, len(before) - 1):
        yield f"cut to {length}", before[:length]
    for _ in range(20):
        place, bit = rng.randrange(len(before)), 1 << rng.randrange(8)
        yield f"bit {bit} of byte {place}", before[:place] + bytes([before[place] ^ bit]) + before[place + 1 :]
    yield "UTF-16", before.decode("latin-1").encode("utf-16")
    if path.suffix == ".json":
        plain = json.loads(before)
        for where in paths(plain):
            for value in VALUES:
                yield f"{where} is {value!r}", json.dumps(changed(plain, where, value)).encode()
        for text in WHOLE:
            yield text[:20], text.encode()
        yield "twice", before.rstrip()[:-1] + b"," + before.lstrip()[1:]
    elif path.suffix == ".npz":
        yield from arrays(path)
    elif path.suffix == ".csv":
        rows = list(csv.reader(before.decode().splitlines()))
        for where in [(i, j) for i in {0, 1, len(rows) - 1} & set(range(len(rows))) for j in range(len(rows[i]))]:
            for cell in ("", "nan", "inf", "1e308", "-1", "x", "=1", "9" * 400):
                yield f"{where} is {cell!r}", "\n".join(map(",".join, changed(rows, where, cell))).encode() + b"\n"


def arrays(path: Path) -> Iterator[tuple[str, bytes]]:
    with np.load(path) as stored:
        plain = dict(stored)
    for name, values in plain.items():
        others = [
            None,
            *SCALARS,
            values[..., None],
            np.atleast_1d(values)[:0],
            np.full_like(values, np.nan, dtype=float),
        ]
        kinds = (str, object) if values.dtype.kind == "U" else (str, complex, object, np.float16, np.longdouble, bool)
        others += [values.astype(kind) for kind in kinds]
        for other in others:
            content = io.BytesIO()
            kept = {key: one for key, one in plain.items() if key != name}
            np.savez(content, **kept, **({} if other is None else {name: other}))
            yield f"{name} is {other!r}"[:80], content.getvalue()
    yield "no arrays", b"PK\x05\x06" + b"\x00" * 18


@pytest.fixture(scope="module")
def configs(tmp_path_factory) -> dict[str, Any]:
    """The configurations of a small run and of a small path, both done."""
    register()
    root = tmp_path_factory.mktemp("records")
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        made = {
            "run": compose("config", overrides=[*CLINICS, *RUN, f"output_dir={root / 'run'}"]),
            "path": compose("config", overrides=["experiment=path", *CLINICS, *PATH, f"output_dir={root / 'path'}"]),
        }
    for config in made.values():
        fco_run(config)
    return made


def end_of(call: Callable[[], object]) -> Exception | None:
    """Call; return the UserError that it ends with, in Python a ValueError without a cause, if any."""
    try:
        call()
    except UserError as problem:
        return problem
    except ValueError as problem:
        if not problem.__suppress_context__:  # a bug, and not a UserError that api has converted
            raise
        return problem
    return None


def one_line(call: Callable[[], object]) -> None:
    """Call; assert that it ends with a result or with one line."""
    if (problem := end_of(call)) is not None:
        text = str(problem)
        assert text.isprintable(), text
        assert 0 < len(text) < 1500, text


def read_again(config: Any, folder: Path, originals: dict[str, bytes], caplog: Any) -> None:
    """Read a record by every command that reads records."""
    models = [folder] if kind_of(config) == "run" else [folder / "min", folder / "1se"]
    for model in models:
        one_line(lambda model=model: predictions(model, DATA / "new.csv"))  # type: ignore[misc]
    one_line(lambda: api.load(folder.parents[2]))
    sizes = {name: len(content) for name, content in originals.items() if name not in ("result.json", "config.yaml")}
    complete = all((folder / name).is_file() and (folder / name).stat().st_size == sizes[name] for name in sizes)
    complete = complete and (folder / "config.yaml").is_file()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        one_line(lambda: fco_run(config))
    assert complete or "already done" not in caplog.text


def restore(folder: Path, originals: dict[str, bytes]) -> None:
    shutil.rmtree(folder)
    for name, content in originals.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def fuzz(config: Any, count: int | None, caplog: Any, also: Callable[[Path], None] | None = None) -> int:
    """Do `count` of all damages, or all of them, one at a time; return how many were done."""
    folder = {"run": Run, "path": PathRun}[kind_of(config)].of(config).folder
    originals = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    originals.pop(".lock", None)
    found = damages(folder)
    chosen = found if count is None else random.Random(0).sample(found, count)
    for name, what, damage in chosen:
        (folder / name).unlink()
        damage(folder / name)
        try:
            if also is not None:
                also(folder)
            else:
                read_again(config, folder, originals, caplog)
        except BaseException as problem:
            problem.add_note(f"{name}: {what}")
            raise
        finally:
            restore(folder, originals)
    return len(chosen)


def save_small(figure: Any, path: Path) -> list[Path]:
    """Write a figure small and once."""
    small = path.with_name(path.name + ".png")
    figure.savefig(small, dpi=20)
    return [small, small]


MANY = pytest.param(None, marks=pytest.mark.slow)


@pytest.mark.parametrize("count", [30, MANY])
def test_a_damaged_run_is_read_or_refused_in_one_line(configs, caplog, capfd, count):
    assert fuzz(configs["run"], count, caplog) >= 30


@pytest.mark.parametrize("count", [4, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_damaged_path_is_read_or_refused_in_one_line(configs, caplog, capfd, count):
    assert fuzz(configs["path"], count, caplog) == count


@pytest.mark.parametrize("kind", ["run", "path"])
@pytest.mark.parametrize("count", [1, pytest.param(400, marks=pytest.mark.slow)])
def test_a_report_leaves_a_damaged_record_out_in_one_line(configs, caplog, capfd, tmp_path, monkeypatch, kind, count):
    monkeypatch.setattr(drawing, "save", drawing.styled(save_small))

    def make_report(folder: Path) -> None:
        code = 0
        try:
            report([str(folder.parents[2]), "--output", str(tmp_path / "report")])
        except SystemExit as end:
            code = end.code
        assert code in (0, 2)
        for line in capfd.readouterr().err.splitlines():
            assert line.startswith("fco-report: ")
            assert line.isprintable()

    assert fuzz(configs[kind], count, caplog, make_report) == count
