"""Tests of the identity of runs."""

from __future__ import annotations

import ast
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli import code_digest
from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.code_digest import digests
from fco_cli.config import PathRun, Run, kind_of, register
from fco_cli.config.identity import WITHOUT_NUMBERS, execution_roots, packages_not_used, part_classes
from fco_cli.errors import UserError
from fco_cli.path.record import run_path
from fco_cli.problem.losses import all_losses
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.execute import execute
from fco_cli.simulation.process import Stop

SMALL = ["task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]


@pytest.fixture(scope="module")
def identity():
    register()

    @cache
    def of(*overrides, small=tuple(SMALL)):
        with initialize_config_module("fco_cli.conf", version_base="1.3"):
            return Run.of(compose("config", overrides=[*small, *overrides])).identity

    return of


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("threads=1", set()),
        ("force=true", set()),
        ("output_dir=elsewhere", set()),
        ("task.strength=0.7", {"problem", "family", "run"}),  # the task's strength is the default of the regularizer's
        ("task.radius=3", set()),
        ("hparams.client_lr=0.5", {"run"}),
        ("hparams.server_lr=0.5", {"run"}),
        ("regularizer.strength=0.7", {"problem", "family", "run"}),
        ("hparams.batch_size=7", {"stack", "run"}),
        ("hparams.rounds=7", {"stack", "run"}),
        ("hparams.normalize_steps=false", {"stack", "run"}),
        ("record_clients=true", {"stack", "run"}),
        ("record_path=true", {"stack", "run"}),
        ("algo=fedmid", {"stack", "run", "code"}),
        ("transform=none", set()),
        ("transform=topk", {"stack", "run", "code"}),
        ("hparams.weighting=examples", {"problem", "family", "stack", "run"}),
        ("seed=1", {"data", "problem", "stack", "run"}),
        ("task.samples=16", {"data", "problem", "family", "stack", "run"}),
        ("hparams.dtype=float32", {"data", "problem", "family", "stack", "run"}),
        ("regularizer=l2_ball", {"problem", "family", "stack", "run", "code"}),
    ],
)
def test_overrides_change_the_expected_parts(identity, override, changed):
    usual, other = vars(identity()), vars(identity(override))
    found = {key for key in usual if usual[key] != other[key]}
    assert found - {"trajectory"} == changed
    assert ("trajectory" in found) == ("run" in changed and not override.startswith("hparams.rounds="))


def test_noise_on_evaluations_makes_another_run_and_sites_alone_do_not(identity, monkeypatch):
    from fco_cli.federation.coordinator.task import CustomAtSites

    monkeypatch.setattr(CustomAtSites, "contents", lambda task: {"path": "the rows"})
    where = ["task=custom", "task.loss=logistic", "task.standardize=false", "task.fill=refuse", "federation=flare"]
    usual, noisy, noisier = (
        identity(*where, "federation.sites=[a,b,c]", "hparams.clients_per_round=all", *more, small=())
        for more in ([], ["federation.evaluation_noise=1"], ["federation.evaluation_noise=2"])
    )
    assert usual.problem == noisy.problem
    assert len({one.run for one in (usual, noisy, noisier)}) == 3


def test_strength_by_the_task_or_by_the_regularizer_is_one_run(identity):
    assert identity("task.strength=0.3") == identity("regularizer.strength=0.3")


def test_an_option_varies_within_a_stack(identity):
    usual, other = identity("algo=fedavgm"), identity("algo=fedavgm", "algo.momentum=0.5")
    assert usual.stack == other.stack
    assert usual.run != other.run


def test_a_transforms_numbers_vary_within_a_stack(identity):
    usual, other = identity("transform=quantize"), identity("transform=quantize", "transform.bits=4")
    assert usual.stack == other.stack
    assert usual.run != other.run


def test_a_baseline_sends_no_messages(identity):
    assert identity("algo=centralized") == identity("algo=centralized", "transform=topk")


def test_auto_is_identified_as_text(identity):
    """auto differs from any number but may share a stack with numbers; 1 equals 1.0."""
    auto, other = identity("hparams.client_lr=auto"), identity("hparams.client_lr=0.003")
    assert auto.run != other.run
    assert auto.stack == other.stack
    assert identity("hparams.client_lr=1") == identity("hparams.client_lr=1.0")
    assert identity("algo=optimum") == identity("algo=optimum", "hparams.client_lr=auto")


def test_a_solver_has_no_rates(identity):
    rates = ["hparams.client_lr=0.5", "hparams.server_lr=0.5", "hparams.rounds=3", "hparams.normalize_steps=false"]
    assert identity("algo=optimum") == identity("algo=optimum", *rates)


# The identity must cover the code that a run executes; a profiler records that code.


class Silent:
    """Observer that does nothing."""

    def on_start(self, runs, rounds): ...

    def on_round(self, simulation): ...

    def on_outcome(self, outcome): ...


def covered(run):
    """Return the definitions that the identity of a run depends on."""
    parts = (run.task, run.algo, run.regularizer, run.mirror, run.method.transform)
    classes = [code_digest.definition_of(kind) for part in parts for kind in part_classes(part)]
    return set(code_digest.reachable([*execution_roots(run), *classes], (*WITHOUT_NUMBERS, *packages_not_used(run))))


def executed(work):
    """Return the executed definitions of the package, as (module, top-level name)."""
    seen = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(digests.PACKAGE)):
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname.split(".")[0]))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    base = digests.PACKAGE
    names = ((".".join(("fco_cli", *Path(file).relative_to(base).with_suffix("").parts)), name) for file, name in seen)
    return {(module.removesuffix(".__init__"), name) for module, name in names if not name.startswith("<")}


EXEMPT = tuple(f"fco_cli.{name}" for name in (*digests.WITHOUT_NUMBERS, *WITHOUT_NUMBERS, "federation.settings"))


def check_coverage(run):
    work = (lambda: run_path(run, Stop())) if isinstance(run, PathRun) else (lambda: execute([run], Silent(), Stop()))
    missing = executed(work) - covered(run)
    assert not {(module, name) for module, name in missing if not module.startswith(EXEMPT)}


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Return a function that creates a run with the given overrides on a small table or a small synthetic problem."""
    register()
    folder = tmp_path_factory.mktemp("table")
    random = np.random.default_rng(0)
    x, client = random.standard_normal((30, 3)), np.repeat([0, 1, 2], 10)
    np.savez(folder / "own.npz", x=x, y=np.tile([0, 1], 15), client=client)
    times = (random.exponential(size=30) + 0.1) * np.tile([1, 1, -1], 10)  # negative: censored
    np.savez(folder / "times.npz", x=x, y=times, client=client)

    def of(*overrides):
        with initialize_config_module("fco_cli.conf", version_base="1.3"):
            config = compose(
                "config", overrides=[*FEW, *overrides, f"output_dir={folder / str(len(os.listdir(folder)))}"]
            )
        return {"run": Run, "path": PathRun}[kind_of(config)].of(config)

    of.table, of.times = f"task.path={folder}/own.npz", f"task.path={folder}/times.npz"
    return of


FEW = ["hparams.rounds=1", "hparams.local_epochs=1", "hparams.client_lr=0.001", "hparams.clients_per_round=3"]
SMALL_MATRIX = ["task=nuclear", "task.dimension=3", "task.rank=1", "task.clients=3", "task.samples=6"]
TINY = ["task=lasso", "task.dimension=6", "task.ones=2", "task.clients=3", "task.samples=9"]


@pytest.fixture(scope="module")
def tiny(make):
    """The runs of TINY with a penalty, a constraint and nothing; composing takes longer than running."""
    return [make(*TINY, f"regularizer={psi}") for psi in ("l1", "l1_ball", "none")]


@pytest.mark.parametrize("name", all_algorithms())
def test_the_identity_covers_the_code_of_every_algorithm(tiny, name):
    for run in tiny:
        with suppress(UserError):
            own = replace(run, algo=all_algorithms()[name]())
            own.algo.check_pair(own.regularizer, own.mirror)
            return check_coverage(own)
    raise AssertionError(name)


@pytest.mark.parametrize("name", all_transforms())
def test_the_identity_covers_the_code_of_every_transform(make, name):
    check_coverage(make(*TINY, f"transform={name}"))


@pytest.mark.parametrize("name", all_losses())
def test_the_identity_covers_the_code_of_every_loss(make, name):
    table = make.times if name == "cox" else make.table
    check_coverage(make("task=custom", f"task.loss={name}", table, "hparams.batch_size=100"))


NUMBERS = {"l0_ball": ["regularizer.nonzeros=2"], "group_lasso": ["regularizer.group_size=2"]}
BLOCKS = "{weights: {name: elastic_net, strength: 0.1, l2_strength: 0.1}}"


@pytest.mark.parametrize("name", all_regularizers())
def test_the_identity_covers_the_code_of_every_regularizer(make, name):
    chosen = [f"regularizer={name}", *NUMBERS.get(name, [])]
    if name == "blockwise":
        chosen.append(f"++regularizer.blocks={BLOCKS}")
    task = SMALL_MATRIX if name.startswith("nuclear") else TINY
    check_coverage(make(*task, *chosen))


@pytest.mark.parametrize("name", ["mixture", "piecewise", "monotone", "group_sparse"])
def test_the_identity_covers_the_code_of_tasks(make, name):
    check_coverage(make(f"task={name}"))


@pytest.mark.ci
@pytest.mark.parametrize("name", ["digits", "fmri_sim"])
def test_the_identity_covers_the_code_of_larger_tasks(make, name):
    check_coverage(make(f"task={name}"))


@pytest.mark.ci
def test_the_identity_covers_the_code_of_a_path(make):
    check_coverage(
        make("experiment=path", "task=custom", "task.loss=logistic", make.table, "path.strengths=2", "path.folds=2")
    )


# One statement is added to a definition of each kind of module.
EDITS = {
    "loss": ("problem/losses/classification.py", "Logistic", {"logistic", "path"}),
    "another loss": ("problem/losses/regression.py", "Poisson", set()),
    "model": ("problem/models/linear.py", "Linear", {"logistic", "path", "lasso"}),
    "aggregation": ("algorithms/rounds.py", "aggregate", {"logistic", "path", "lasso"}),
    "local steps": ("problem/descent.py", None, {"logistic", "path", "lasso"}),
    "objective": ("problem/risk.py", None, {"logistic", "path", "lasso"}),
    "preparation": ("data/preparation.py", "Preparation", {"logistic", "path"}),
    "decomposition": ("kernels/singular.py", None, {"path"}),
    "engine": ("simulation/engine.py", "Simulation", {"logistic", "path", "lasso"}),
    "record": ("simulation/record.py", "_means_of_last_rounds", {"logistic", "path", "lasso"}),
    "cross-validation": ("path/select.py", None, {"path"}),
    "algorithm": ("algorithms/feddualavg.py", "FedDualAvg", {"logistic", "lasso"}),
    "another algorithm": ("algorithms/fedfw.py", "FedFw", set()),
    "report": ("reporting/page/tables.py", None, set()),
    "sites": ("federation/coordinator/sites.py", None, set()),
}


def edited(source, name):
    """Return the source with a statement added to the first function of a definition, or to every function (None)."""
    tree = ast.parse(source)
    tops = [node for node in tree.body if name is None or getattr(node, "name", None) == name]
    functions = [node for top in tops for node in ast.walk(top) if isinstance(node, ast.FunctionDef)]
    assert functions
    for function in functions[: None if name is None else 1]:
        function.body.append(ast.parse("edited = 1").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


@pytest.fixture(scope="module")
def three_runs(make):
    logistic = ["task=custom", "task.loss=logistic", make.table]
    return {"logistic": make(*logistic), "path": make("experiment=path", *logistic), "lasso": make(*TINY)}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_changes_the_identity_of_the_runs_that_execute_it(three_runs, monkeypatch, kind):
    file, name, noticed_by = EDITS[kind]
    runs = {key: replace(run) for key, run in three_runs.items()}
    before = {key: run.identity.run for key, run in runs.items()}
    original = digests._read
    assert edited(original(digests.PACKAGE / file), name)

    def read(path):
        return edited(original(path), name) if path == digests.PACKAGE / file else original(path)

    monkeypatch.setattr(digests, "_read", read)
    monkeypatch.setattr(digests, "_check_loaded", lambda *_: None)
    try:
        forget()
        after = {key: replace(run).identity.run for key, run in runs.items()}
    finally:
        monkeypatch.undo()
        forget()
    assert {key for key in runs if before[key] != after[key]} == noticed_by
    assert {key: replace(run).identity.run for key, run in runs.items()} == before


def test_a_worker_with_other_code_refuses_a_run(make, monkeypatch):
    """As if a file were edited while a sweep starts its processes."""
    run = make(*TINY)
    run.identity  # noqa: B018 - computed where the sweep starts
    monkeypatch.setattr("fco_cli.config.identity.executed_code", lambda run: "other")
    with pytest.raises(UserError, match=r"the code was edited after this command started; run the command again$"):
        execute([run], Silent(), Stop())
    assert not run.folder.exists()


def forget():
    """Clear the caches, as in a new process."""
    digests.parsed_module.cache_clear()
    digests.digest_of.cache_clear()
