"""Any `fco-run -m` command line ends with exit code 0, 1 or 2 and, where it is wrong, in at most three lines."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
from dataclasses import fields

import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fco_cli.algorithms import all_algorithms
from fco_cli.commands import run

BASE = [
    "task=lasso", "task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15",
    "hparams.clients_per_round=3", "hparams.batch_size=3", "hparams.rounds=2",
    "hparams.client_lr=0.001", "hparams.server_lr=1", "hydra.launcher.n_jobs=1",
]  # fmt: skip

# What a sweep is made of. Sizes and numbers of rounds are a single run's affair: a large one takes long, and rightly.
KEYS = [
    "seed", "output_dir", "force", "dry_run", "threads", "record_clients", "hparams.client_lr", "hparams.server_lr",
    "hparams.weighting", "hparams.eval_every", "regularizer.strength", "algo", "task", "mirror", "hparams/grid",
    "experiment", "experiment.name", "experiment.title", "experiment.select", "experiment.select.metric",
    "experiment.select.mode", "experiment.select.last", "experiment.panels", "profile", "profile.name", "profile.scale",
    "profile.outputs", "theory", "theory.seeds", "hydra.launcher", "hydra.launcher.n_jobs", "hydra.launcher.memory_mb",
    "hydra.launcher.backend", "hydra.launcher.address", "hydra.launcher._target_", "hydra/launcher", "hydra/sweeper",
    "hydra.sweeper", "hydra.sweeper.params", "hydra.sweeper.params.seed", "hydra.sweeper.grid_of",
    "hydra.sweeper.grid_of.feddualavg", "hydra.sweeper._target_", "hydra.sweep.dir", "hydra.sweep.subdir",
    "search", "search.metric", "search.direction", "search.budget", "search.batch", "search.seed", "search.sampler",
    "search.pruning", "search.last", "search.until",
    "hydra.run.dir", "hydra.mode", "hydra.job.name", "hydra", "nosuch", "experiment.nosuch", "hydra.launcher.nosuch",
]  # fmt: skip

EXTREMES = [
    "0", "-1", "1", "2", "1.5", "-0.0", "1e-320", "1e308", "nan", "inf", "-inf", "9223372036854775807", "1" + "0" * 30,
    "true", "false", "null", "", "''", "[]", "{}", "[1,2]", "[a,[b]]", "{a:1}", "{seed:1}", "{seed:'1,2'}", "{a:{b:2}}",
    "{feddualavg:{seed:1}}", "{feddualavg:5}", "???", "${seed}", "${nosuch}", "${hydra:job.num}", "${oc.env:HOME}",
    "max", "f1", "rank", "[f1]", "lasso", "feddualavg", "scaffold", "fedfw", "auto", "0.3/L", "0/L", "nan/L", "/L",
    "lasso_i", "smoke", "paper", "basic", "fused", "grid", "dask", "search", "halving", "[f1,density]",
    "tcp://127.0.0.1:1", "tls://127.0.0.1:1", "ucx://x:1", "tcp://[::1", "examples", "MULTIRUN",
    "/dev/null", "/proc/x", "../x", "a/b", "'a[/b]'", "'[red]x'", "a" * 300, "'a b'", "ü", "'名前'", "'\\u202e'", "é,ü",
]  # fmt: skip

small = st.sampled_from(["0", "1", "2", "-1", "0.001", "a", "null", "1e300", "lasso", "auto", "0.3/L"])
SWEEPS = st.one_of(
    st.lists(small, min_size=2, max_size=3).map(",".join),
    st.lists(small, max_size=3).map(lambda values: f"choice({','.join(values)})"),
    st.lists(small, max_size=2).map(lambda values: f"shuffle({','.join(values)})"),
    st.lists(small, max_size=2).map(lambda values: f"sort({','.join(values)})"),
    st.sampled_from([
        "range(1,1)", "range(0,2)", "range(2)", "range(1,0)", "range(0,1,0)", "range(3,1,-1)", "range(0,1e9)",
        "range(0,1e300)", "range(0,1,1e-300)", "range(a,b)", "range()", "glob(*)", "glob(zz*)", "glob(lasso_i)",
        "glob([fed*,x],exclude=*)", "glob()", "interval(0,1)", "interval(1,0)", "choice(choice(1,2),3)",
        "shuffle(range(1,1))", "tag(a,1,2)", "int(1.5)", "str(1),2", "float(a)", "choice([1],{a:2})", ",", "1,,2", "1,",
    ]),
)  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
WORDS = st.one_of(
    st.builds(
        lambda sign, key, value: f"{sign}{key}={value}",
        st.sampled_from(["", "", "", "", "+", "++", "~"]),
        st.sampled_from(KEYS),
        st.one_of(st.sampled_from(EXTREMES), SWEEPS, TEXT),
    ),
    st.sampled_from(KEYS).map("~{}".format),
    TEXT.filter(lambda text: not text.startswith("-")),
)
LINES = st.lists(WORDS, min_size=1, max_size=3)
OPTIONS = {  # of algorithms that have some
    name: [f"algo.{option.name}" for option in fields(kind)] for name, kind in all_algorithms().items()
    if kind.federated and not kind.full_participation and len(fields(kind)) > 1
}  # fmt: skip


@st.composite
def of_an_algorithm(draw: st.DrawFn) -> list[str]:
    """Often the paper's, else one of those with options, and then a value for one of them."""
    name = draw(st.sampled_from(["feddualavg", *OPTIONS]))
    keys = OPTIONS.get(name, ["algo.nosuch"])
    value = draw(st.one_of(st.sampled_from(EXTREMES), SWEEPS))
    return [f"algo={name}", *[f"{draw(st.sampled_from(keys))}={value}"] * draw(st.booleans())]


EXPERIMENT = ["experiment=lasso_i"]


@contextlib.contextmanager
def elsewhere():
    """A new folder; arguments and logging are as before afterwards."""
    before, folder, handlers = sys.argv, os.getcwd(), logging.root.handlers[:]
    with tempfile.TemporaryDirectory() as new:
        os.chdir(new)
        try:
            yield
        finally:
            os.chdir(folder)
            sys.argv, logging.root.handlers[:] = before, handlers


def call(words):
    """The real command, in this process: its exit code and what it said on standard error."""
    errors, code = io.StringIO(), 0
    with elsewhere(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        GlobalHydra.instance().clear()
        sys.argv = ["fco-run", "-m", *BASE, *words]
        try:
            run.main()
        except SystemExit as end:
            code = end.code
    return code, errors.getvalue()


def check(words):
    code, errors = call(words)
    assert code in (0, 1, 2), errors
    assert "Traceback" not in errors
    if code:
        assert 1 <= len(errors.splitlines()) <= 3, errors
        assert errors.splitlines()[-1].strip()
    else:
        assert "Error" not in errors


quiet = {"suppress_health_check": list(HealthCheck), "deadline": None, "print_blob": False}


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=8, derandomize=True, **quiet)
@given(of_an_algorithm(), LINES)
def test_a_few_command_lines(algorithm, words):
    check([*algorithm, *words])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=1500, **quiet)
@given(of_an_algorithm(), LINES, st.booleans())
def test_thousands_of_command_lines(algorithm, words, experiment):
    check([*EXPERIMENT * experiment, *algorithm, *words])
