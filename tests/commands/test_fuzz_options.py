"""Wrong values of every option of every command but fco-run: exit code 0, or 2 and one line; never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from fco_cli.commands import advise, data, export, federate, predict, report, run, theory
from fco_cli.errors import UserError

FEW, MANY = 25, 2000
SECONDS = 20  # for one call
TABLE = "client,age,ward,w,time,y\n" + "".join(
    f"{'ab'[i % 2]},{30 + 7 * i % 40},{['red', 'blue'][i % 3 % 2]},{1 + i % 2},{1 + i},{i // 2 % 2}\n"
    for i in range(12)
)
TINY = [
    "task=lasso", "task.dimension=6", "task.ones=2", "task.clients=4", "task.samples=8", "hparams.rounds=2",
    "hparams.clients_per_round=2", "hparams.batch_size=4",
]  # fmt: skip
GRID = ["theory.rounds=[4]", "theory.steps=[1,2]", "theory.clients=[2]", "theory.rates=[0.0625]", "theory.seeds=2",
        "theory.dimension=4", "theory.noise=4", "theory.radius=1"]  # fmt: skip
COLUMNS = ["--label", "y", "--client", "client", "--split", "split", "--weights", "w", "--drop", "ward",
           "--categorical", "age", "--missing", "-9", "--min-samples", "0"]  # fmt: skip
# A good call of each command; the words at the given places are replaced.
CALLS: dict[str, tuple[Any, list[list[str]]]] = {
    "fco-data": (data, [
        ["check", "t.csv", *COLUMNS, "--loss", "logistic"],
        ["check", "t.csv", "--positive", "age>40", "--names", ""],
        ["check", "t.csv", "--label", "time", "--event", "y", "--loss", "cox"],
        ["convert", "t.csv", "t.npz", "--label", "y"],
        ["describe", "t.csv", "--table", "out.csv"],
        ["list", "."],
    ]),
    "fco-report": (report, [["outputs", "--output", "out", "--csv", "out.csv", "--x", "rounds", "--claims"]]),
    "fco-predict": (predict, [["record", "new.csv", "--output", "out.csv"]]),
    "fco-export": (export, [["record", "--output", "model.json", "--format", "json"]]),
    "fco-federate": (federate, [
        ["--home", "home", "request", "north"],
        ["--home", "home", "serve", "localhost:8002"],
        ["--home", "home", "approve", "north.request.zip"],
        ["--home", "home", "status"],
        ["--home", "home", "join", "north.signed.zip", "--fingerprint", "00:11", "--data", "t.csv", *COLUMNS[:6]],
    ]),
    "fco-advise": (advise, [TINY]),
    "fco-theory": (theory, [GRID]),
}  # fmt: skip
VALUES = [
    "", " ", "0", "-1", "nan", "inf", "-inf", "1e400", "9" * 30, "0x10", "1_000", "null", "true", "[]", "{}", "[1,2]",
    "y", "client", "nobody", "y>0", "y>", ">0", "y==", "y:0", "y:", ":", ",", "a,b,c,d,e,f", "=1+1", "$x", "${seed}",
    "é", "ψ" * 300, "a" * 5000, "a b", "'", '"', "[/y]", "\x1b[31m", "a\nb", "\udcff", "-", "--", "--output",
    ".", "..", "folder", "t.csv", "t.csv/below", "missing.csv", "missing/out.csv", "out.png", "x.npz", "empty.csv",
    "link.csv", "loop.csv", "null.csv", "null", "pipe.csv",
]  # fmt: skip
KEYS = ["hparams.client_lr", "task.path", "regularizer.strength", "algo", "seed", "output_dir", "experiment", "threads"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tables, a record with its model, and files of every kind that is no table."""
    here = tmp_path_factory.mktemp("fuzz") / "inner" / "here"
    here.mkdir(parents=True)
    (here / "t.csv").write_text(TABLE)
    (here / "new.csv").write_text("age,ward,w,time\n40,red,1,3\n50,blue,2,4\n")
    (here / "empty.csv").write_text("")
    (here / "folder").mkdir()
    (here / "link.csv").symlink_to(here / "t.csv")
    (here / "loop.csv").symlink_to(here / "loop.csv")
    for name in ("null.csv", "null"):  # private copies of the null device
        with contextlib.suppress(OSError):
            os.mknod(here / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mkfifo(here / "pipe.csv")
    before = os.getcwd()
    os.chdir(here)
    words = ["task=custom", "task.path=t.csv", "task.loss=logistic", "hparams.rounds=1", "hparams.clients_per_round=2"]
    code, errors, _ = call(run, "fco-run", words)
    assert code == 0, errors
    (made,) = Path("outputs/custom").glob("*/*/result.json")
    os.symlink(made.parent, here / "record")
    os.chdir(before)
    return here


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Replace figures and processes of FLARE by nothing."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr("fco_cli.reporting.make_report", _no_report)
    monkeypatch.setattr("fco_cli.theory.run.draw", lambda *_: {"theory.png": b""})
    monkeypatch.setattr("fco_cli.federation.flare.kits.start", lambda *_: None)
    for module in ("enrollment", "kits"):
        monkeypatch.setattr(f"fco_cli.federation.flare.{module}.nvflare", _no_flare)


def _no_report(results: Any, output: Path, x: str) -> Any:
    raise UserError(f"{output}: no figures in this test")


def _no_flare(*words: object) -> dict[str, Any]:
    raise UserError("no processes of FLARE in this test")


GET_MODE = Hydra.get_mode


def call(command: Any, name: str, words: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, errors and output."""

    def hangs(*_: object) -> None:
        raise AssertionError(f"still at work after {SECONDS} s: {sys.argv}")

    Hydra.get_mode = GET_MODE  # type: ignore[method-assign]
    GlobalHydra.instance().clear()
    here, argv, errors, output = os.getcwd(), sys.argv, io.StringIO(), io.StringIO()
    sys.argv = [name, *words]
    before, code = signal.signal(signal.SIGALRM, hangs), 0
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            command.main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.argv = argv
        os.chdir(here)
    return code, errors.getvalue(), output.getvalue()


def mutations(name: str, cases: int, values: list[str]) -> Iterator[list[str]]:
    """Yield good calls with one or two words replaced, dropped or doubled."""
    random_state = random.Random(name)
    _, calls = CALLS[name]
    for _ in range(cases):
        words = list(random_state.choice(calls))
        for _ in range(random_state.choice([1, 1, 2])):
            place, value = random_state.randrange(len(words)), random_state.choice(values)
            if name in ("fco-advise", "fco-theory"):
                key = random_state.choice([words[place].partition("=")[0], *KEYS])
                words.append(f"{key}={value}")
            elif random_state.random() < 0.1:
                words.insert(place, value)
            else:
                words[place] = value
        yield words


@pytest.mark.parametrize("cases", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(CALLS))
def test_wrong_options_are_one_line(folder, monkeypatch, name, cases):
    monkeypatch.chdir(folder)
    kinds = {path: path.lstat().st_mode for path in folder.iterdir()}
    values = [value for value in VALUES if not value.startswith("null.") or (folder / value).exists()]
    command, _ = CALLS[name]
    reader = os.open("pipe.csv", os.O_RDWR | os.O_NONBLOCK)  # or whoever writes there waits
    for words in mutations(name, cases, values):
        code, errors, _ = call(command, name, words)
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 1 << 16)
        lines = [line for line in errors.splitlines() if line.startswith(f"{name}: ") and "left out" not in line]
        assert "internal error" not in errors, (words, errors)
        assert code in (0, 2), (words, errors)
        assert len(lines) == (code == 2), (words, errors)
        (folder / "t.csv").write_text(TABLE)  # a call may name it as its output
    os.close(reader)
    for path, mode in kinds.items():
        if not stat.S_ISREG(mode):
            assert path.lstat().st_mode == mode, f"{path} has become another kind of file"
