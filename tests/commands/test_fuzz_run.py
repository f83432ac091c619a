"""Random arguments of fco-run: no traceback, no endless run, and one line that names the error."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_module
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fco_cli.commands import run
from fco_cli.config import register
from fco_cli.help import GROUPS, options_of

TINY = ["task.clients=6", "task.samples=15", "hparams.rounds=2", "hparams.clients_per_round=3", "output_dir=out"]
TASKS = {"lasso": ["task.dimension=20", "task.ones=5"], "mixture": ["task.dimension=12", "task.active=3"]}
SECONDS = 600  # whoever is at work longer does not end; the machine may be busy

EXTREMES = [
    "", "null", "-1", "0", "1", "1e23", str(2**63 - 1), str(2**63), "1" + 400 * "0", "1e308", "-1e308", "1e-320",
    "nan", "inf", "-inf", "true", "[]", "{}", "[1,2]", "{a: 1}", "[[1]]", "../../x", "a[/b]", "${x}", "${seed}",
    "${oc.env:HOME}", "???", "'a b'", "'\"'", "0x10", "1_000", "x,y", "\\", "/dev/null",
    "/proc/x", "range(3)", "glob(*)", "auto", "0.3/L", "0/L", "-1/L", "nan/L", "1e400/L", "1e-320/L", "1/L/L", "/L",
]  # fmt: skip
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
# A hundred thousand rounds or epochs are no mistake but work: numbers are small, or more than any machine can hold.
numbers = st.integers(-100, 100) | st.integers(min_value=10**12) | st.integers(max_value=-(10**12))
values = st.sampled_from(EXTREMES) | texts | numbers.map(str) | st.floats().map(str)


def leaves(node: object, key: str = "") -> Iterator[str]:
    if isinstance(node, dict) and node:
        for name, inner in node.items():
            yield from leaves(inner, f"{key}.{name}" if key else name)
    else:
        yield key


@functools.cache
def keys_of(*chosen: str) -> list[str]:
    """Return the keys of a run with these groups, options of the algorithm and of the regularizer included."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        config = OmegaConf.to_container(compose("config", overrides=list(chosen)))
    hydra = ["hydra.run.dir", "hydra.output_subdir", "hydra.verbose", "hydra.job.name"]
    return [*leaves(config), *GROUPS, "theory", *hydra]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    task = draw(st.sampled_from(sorted(TASKS)))
    group = draw(st.sampled_from(["algo", "regularizer", None]))
    chosen = [f"task={task}"]
    if group:
        chosen.append(f"{group}={draw(st.sampled_from(options_of(group)))}")
    everybody = ["hparams.clients_per_round=6"] if draw(st.booleans()) else []  # which some algorithms ask for
    keys = keys_of(*chosen)
    own = [key for key in keys if group and key.startswith(f"{group}.")]
    key = draw(st.sampled_from(own if own and draw(st.booleans()) else keys))
    options = st.sampled_from([option for group in GROUPS for option in options_of(group) if option != "theory"])
    value = draw(options if key in GROUPS and draw(st.booleans()) else values)
    word = draw(
        st.sampled_from(
            [f"{key}={value}"] * 6 + [f"+{key}={value}", f"++{key}={value}", f"~{key}", f"{key}.foo={value}"]
        )
        | texts
    )
    return [*chosen, *TASKS[task], *TINY, *everybody, word]


@pytest.fixture
def fco_run(tmp_path, monkeypatch):
    """The command in this process: its exit code and what it said to stderr.

    Kernels run as Python: an index beyond an array or a number that cannot be divided by is then an exception.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    get_mode = Hydra.get_mode

    def hangs(*_: object) -> None:
        raise AssertionError(f"still at work after {SECONDS} s: {sys.argv}")

    def call(words: list[str]) -> tuple[int, str]:
        monkeypatch.setattr(Hydra, "get_mode", get_mode)
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["fco-run", *words])
        before, errors, code = signal.signal(signal.SIGALRM, hangs), io.StringIO(), 0
        signal.alarm(SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                run.main()
        except SystemExit as end:
            code = end.code
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            os.chdir(tmp_path)
        return code, errors.getvalue()

    return call


def check(fco_run, words):
    code, errors = fco_run(words)
    ours = [line for line in errors.splitlines() if line.startswith("fco-run: ")]
    assert "Traceback" not in errors
    assert code in (0, 1, 2), (words, errors)
    if code == 2:
        assert len(ours) == 1, (words, errors)
        assert len(errors.splitlines()) <= 3, (words, errors)


FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(words=command_lines())
def test_a_wrong_word(fco_run, words):
    check(fco_run, words)


@pytest.mark.slow
@MANY
@given(words=command_lines())
def test_thousands_of_wrong_words(fco_run, words):
    check(fco_run, words)
