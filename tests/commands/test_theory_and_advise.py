"""Tests of fco-theory, fco-advise and fco-run -m experiment=theory."""

import sys

import pytest

from fco_cli.commands import advise, run, theory

SMALL = ["theory.rounds=[4,8]", "theory.steps=[1,2]", "theory.clients=[2]", "theory.rates=[0.0625]",
         "theory.seeds=2", "theory.dimension=4"]  # fmt: skip
TINY = ["task.dimension=20", "task.ones=5", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Call a command in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(command, *words):
        monkeypatch.setattr(sys, "argv", ["command", *words])
        code = 0
        try:
            command.main()
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    return call


def test_theory_writes_its_table_and_fco_run_reuses_it(call, tmp_path, monkeypatch):
    monkeypatch.setattr("fco_cli.theory.run.draw", lambda *_: {"theory.png": b"drawn elsewhere, and slowly"})
    code, out, _ = call(theory, *SMALL)
    assert code == 0
    assert "bound violated in none" in " ".join(out.split())
    assert {"theory.png", "theory.md", "cells.csv", "result.json"} <= {
        path.name for path in (tmp_path / "outputs" / "theory").iterdir()
    }
    for words in (["-m", "experiment=theory"], ["experiment=theory"]):
        code, again, err = call(run, *words, *SMALL)
        assert (code, again) == (0, out)
        assert "already done" in err


def test_advice_accepts_overrides_of_a_run_and_writes_nothing(call, tmp_path):
    code, out, _ = call(advise, *TINY, "hparams.client_lr=0.002")
    assert code == 0
    assert "recommended client_lr" in out
    assert "0.002  " in out
    assert "(this run)" in out
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tables(tmp_path):
    """Write a folder of sparse rows and two tables that differ in their weights."""
    (tmp_path / "sparse").mkdir()
    for client in "abc":
        rows = [f"{i % 2} {1 + i % 3}:{1 + i % 5} 4:{i % 4 - 1.5}" for i in range(9)]
        (tmp_path / "sparse" / f"{client}.svm").write_text("\n".join([*rows, ""]))
    for name, weights in (("alike", [1] * 5), ("uneven", [9, 1, 1, 1, 1])):
        lines = [f"{'abc'[i % 3]},{weights[i % 5]},{i % 7},{int(i % 4 == 0)}" for i in range(36)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["client,weight,x,y", *lines, ""]))


def test_advice_on_sparse_rows(call, tables):
    code, out, _ = call(
        advise, "task=custom", "task.path=sparse", "task.standardize=false", "hparams.clients_per_round=3"
    )
    assert code == 0
    assert "recommended client_lr" in out


@pytest.mark.parametrize("weights", [("task.path=uneven.csv",), ("task.class_weight=balanced",)])
def test_advice_depends_on_weights(call, tables, weights):
    words = ["task=custom", "task.path=alike.csv", "task.label=y", "task.weights=weight"]
    zeta = []
    for more in ((), weights):
        code, out, err = call(advise, *words, "hparams.clients_per_round=3", "hparams.batch_size=99", *more)
        assert code == 0, err
        zeta.append(next(line.split()[1] for line in out.splitlines() if line.startswith("zeta")))
    assert zeta[0] != zeta[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("hparams.clients_per_round=99",), "hparams.clients_per_round: got 99"),
        (("federation=flare", "federation.sites=[north]"), "federation: got 'flare', must be none"),
    ],
)
def test_advice_refuses_unsupported_problems(call, words, line):
    code, out, err = call(advise, *TINY, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"fco-advise: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("command", "name"), [(theory, "fco-theory"), (advise, "fco-advise")])
def test_a_mistake_gives_one_line_with_the_name_of_the_command(call, command, name):
    code, out, err = call(command, "hparams.rounds=0" if command is advise else "theory.rouds=[1]")
    assert (code, out) == (2, "")
    assert err.startswith(f"{name}: {'hparams.rounds: got 0' if command is advise else 'theory.rouds: no such key'}")
    assert err.count("\n") == 1


def test_advise_is_not_a_key_of_fco_run(call):
    code, _, err = call(run, "advise=true")
    assert code == 2
    assert err.startswith("fco-run: advise: no such key")


@pytest.mark.parametrize("command", [theory, advise])
def test_help_names_the_command(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert out.startswith(command.__doc__)


@pytest.mark.parametrize("word", ["theory={}", "theory.seeds=99999999999", "theory.rounds=[99999999999]"])
def test_theory_refuses_grids_that_are_too_large(call, word):
    code, out, err = call(theory, word)
    assert (code, out) == (2, "")
    assert err.startswith("fco-theory: theory")
    assert err.count("\n") == 1
