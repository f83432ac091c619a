"""Tiny problems that the tests share: small enough to compute by other routes, uneven enough to show mistakes."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from hypothesis import settings

from fco_cli.algorithms import Algorithm, Cohort, Varying, all_algorithms
from fco_cli.algorithms.rounds import LocalSteps
from fco_cli.algorithms.transforms import NoTransform, Transform
from fco_cli.commands.run import main
from fco_cli.config import PathRun
from fco_cli.config.schemas import register
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams

# Two test processes fill two cores, and kernels for one thread compile in a third of the time. Threads have their own
# tests (e2e/test_fco_run.py), whose commands do not inherit this.
os.environ["NUMBA_NUM_THREADS"] = "1"

# Kernels compile on their first call, and the machine may be busy: time says nothing about correctness.
settings.register_profile("fco", deadline=None, max_examples=50)
settings.load_profile("fco")
logging.getLogger("fontTools").setLevel(logging.WARNING)  # its dozens of lines about a font would bury a failure's own

BESIDE = Path(__file__).parents[2] / "shared" / "data"  # real data, on the machines of those who develop


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """The path of a file of real data; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        if not (BESIDE / name).exists():
            pytest.skip(f"{BESIDE / name} is not here")
        return BESIDE / name

    return find


def pytest_configure() -> None:
    """Kernels run as the Python they are written in, here and in processes that tests start: it takes milliseconds."""
    import numba  # compiles its own parts as it is imported, so the switch comes after

    numba.config.DISABLE_JIT = 1
    os.environ["NUMBA_DISABLE_JIT"] = "1"


@pytest.fixture(autouse=True)
def machine_code(no_internal_error: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels for the tests that are marked so: for bits, threads, caches and sizes.

    Once for every algorithm, regularizer, mirror map and loss, machine code must say the same as its text.
    """
    if request.node.get_closest_marker("machine_code"):
        monkeypatch.setattr("numba.config.DISABLE_JIT", 0)
        monkeypatch.delenv("NUMBA_DISABLE_JIT")


@pytest.fixture(autouse=True)
def no_internal_error(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the test if a command that it calls, in this process or another one, ends in an internal error."""
    folder = tmp_path_factory.getbasetemp() / "state"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        yield
    if traces := [path.read_text(encoding="utf-8") for path in folder.rglob("errors.log")]:
        shutil.rmtree(folder)
        pytest.fail("a command ended in an internal error:\n" + "\n".join(traces))


@pytest.fixture(scope="module")
def path_run() -> Iterator[Callable[..., PathRun]]:
    """The run of experiment=path with these overrides."""
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        yield lambda *overrides: PathRun.of(compose("config", overrides=["experiment=path", *overrides]))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """fco-run in this process: what it says and leaves is the same, in a fifth of the time."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def run(*words: object, cwd: object = None, code: int = 0) -> Any:
        if cwd is not None:
            monkeypatch.chdir(str(cwd))
        monkeypatch.setattr(sys, "argv", ["fco-run", *map(str, words)])
        if code:
            with pytest.raises(SystemExit) as end:
                main()
            assert end.value.code == code
        else:
            main()
        return capfd.readouterr()

    return run


SIZES = (7, 4, 9)  # rows of the clients: unequal, so that a weighting or a partial batch gone wrong shows


@pytest.fixture(scope="session")
def make_problem() -> Callable[..., Problem]:
    """A random problem with unequal clients."""

    def make(
        regularizer: Regularizer | None = None,
        loss: str = "squared",
        sizes: tuple[int, ...] = SIZES,
        features: int = 6,
        outputs: int = 1,
        weights_shape: tuple[int, ...] | None = None,
        weighting: str = "uniform",
        dtype: str = "float64",
        seed: int = 0,
    ) -> Problem:
        random = np.random.default_rng(seed)
        x = random.standard_normal((sum(sizes), features)).astype(dtype)
        labels = {
            "squared": random.standard_normal,
            "huber": random.standard_normal,
            "poisson": lambda n: random.poisson(2, n),
            "logistic": lambda n: random.integers(2, size=n),
        }
        y = labels.get(loss, lambda n: random.integers(outputs, size=n))(sum(sizes)).astype(dtype)
        data = ClientData(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        model = Linear(features, outputs, weights_shape)
        return Problem(
            data, model, all_losses()[loss](), regularizer=regularizer or make_regularizer("none"), weighting=weighting
        )

    return make


def make_regularizer(name: str, **numbers: float) -> Regularizer:
    """The regularizer `name`, with a moderate value for every number that is not given."""
    kind = all_regularizers()[name]
    moderate = {"strength": 0.7, "l2_strength": 0.4, "radius": 1.5}
    own = [field.name for field in fields(kind) if field.type in ("float", "int")]
    return kind(**{key: numbers.get(key, moderate.get(key, 0.5)) for key in own})


@pytest.fixture(scope="session")
def regularizer() -> Callable[..., Regularizer]:
    return make_regularizer


@pytest.fixture(scope="session")
def psi_for() -> Callable[[str], Regularizer]:
    """The first of a penalty, a constraint and nothing that an algorithm takes."""

    def choose(name: str) -> Regularizer:
        for psi in (make_regularizer("l1", strength=0.3), make_regularizer("l1_ball"), make_regularizer("none")):
            try:
                all_algorithms()[name]().check_pair(psi, Euclidean())
            except UserError:
                continue
            return psi
        raise AssertionError(f"{name} takes none of them")

    return choose


@pytest.fixture(scope="session")
def make_algorithm() -> Callable[..., Algorithm]:
    """An algorithm at work on a problem, with one job, or a job per client learning rate."""

    def make(
        name: str,
        problem: Problem,
        client_lr: float | list[float] = 0.05,
        server_lr: float = 1.0,
        transform: Transform | None = None,
        **options: float,
    ) -> Algorithm:
        rates = np.atleast_1d(np.array(client_lr, dtype=float))
        algorithm = all_algorithms()[name](**options).with_transform(transform or NoTransform())
        varying = Varying.from_rates(algorithm, problem.regularizer, rates, np.full(len(rates), server_lr))
        return algorithm.bind(problem, varying)

    return make


@pytest.fixture(scope="session")
def full_cohort() -> Callable[[Problem], Cohort]:
    """Every client, with all its rows in one batch, K = 1."""

    def make(problem: Problem) -> Cohort:
        data = problem.data
        order = np.concatenate([np.arange(size) for size in data.sizes])
        weights = data.weights(problem.weighting)
        return Cohort(
            np.arange(data.clients), order, data.offsets, np.arange(data.clients + 1), weights, weights.sum(), 1.0
        )

    return make


@pytest.fixture(scope="session")
def make_hparams() -> Callable[..., Hparams]:
    def make(**changes: float | str) -> Hparams:
        usual = {
            "client_lr": 0.05, "server_lr": 0.7, "rounds": 4,
            "clients_per_round": 2, "batch_size": 3, "local_epochs": 1,
        }  # fmt: skip
        return Hparams(**{**usual, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def cohorts_of() -> Callable[..., list[Cohort]]:
    """The cohorts of the first rounds."""

    def draw(problem: Problem, hparams: Hparams, rounds: int = 4, pace: LocalSteps = "epochs") -> list[Cohort]:
        sampler = Sampler(problem.data.sizes, hparams, seed=0, pace=pace)
        return [sampler.cohort(r) for r in range(rounds)]

    return draw
