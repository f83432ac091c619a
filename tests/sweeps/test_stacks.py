"""Tests of stacks: grouping, results that do not depend on the stack, failures of single runs."""

import csv
import logging

import pytest
from hydra import compose, initialize_config_module

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.servers import Adaptive
from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation import execute as execution
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record
from fco_cli.sweeps import stacks as stacks_module
from fco_cli.sweeps.stacks import Stack, StackResult, group_into_stacks, prepare, run_stack

register()

TINY = {
    "lasso": ["task=lasso", "task.dimension=12", "task.ones=4"],
    "nuclear": ["task=nuclear", "task.dimension=4", "task.rank=1"],
}
SMALL = [
    "task.clients=6",
    "task.samples=15",
    "hparams.clients_per_round=3",
    "hparams.batch_size=3",
    "hparams.rounds=80",
]
RATES = [(a, b) for a in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1) for b in (0.01, 0.03, 0.1, 0.3, 1, 3, 10)]


def make_runs(folder, *overrides, rates=((0.01, 1),)):
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        config = compose("config", overrides=[*SMALL, *overrides, f"output_dir={folder}"])
    runs = []
    for client_lr, server_lr in rates:
        config.hparams.client_lr, config.hparams.server_lr = client_lr, server_lr
        runs.append(Run.of(config))
    return runs


def execute(runs, events=None):
    return run_stack(Stack(0, runs), 512, Stop(), (events if events is not None else []).append)


def metrics(run):
    with (run.folder / "metrics.csv").open() as file:
        return list(csv.reader(file))


@pytest.mark.machine_code
def test_stacks_of_different_algorithms_alternate(tmp_path):
    algos = ("feddualavg", "feddualavg", "feddualavg", "fedmid", "fedmid", "zhj")
    jobs = [(f"algo={algo}", f"seed={number}") for number, algo in enumerate(algos)]
    stacks = group_into_stacks([run for job in jobs for run in make_runs(tmp_path, *TINY["lasso"], *job)])
    assert [stack.runs[0].seed for stack in stacks] == [0, 3, 5, 1, 4, 2]
    assert [stack.number for stack in stacks] == list(range(6))


def test_runs_are_grouped_by_the_settings_that_may_vary(tmp_path):
    lasso = make_runs(tmp_path, *TINY["lasso"], rates=RATES)
    other_strength = make_runs(tmp_path, *TINY["lasso"], "regularizer.strength=0.1")
    other_seed = make_runs(tmp_path, *TINY["lasso"], "seed=1")
    other_algorithm = make_runs(tmp_path, *TINY["lasso"], "algo=fedmid")
    other_batch = make_runs(tmp_path, *TINY["lasso"], "hparams.batch_size=5")
    stacks = group_into_stacks([*lasso, *other_strength, *other_seed, *other_algorithm, *other_batch])
    assert [len(stack.runs) for stack in stacks] == [50, 1, 1, 1]
    assert len({run.run_id for stack in stacks for run in stack.runs}) == 53


def test_a_stack_needs_no_more_files_than_a_process_may_open(tmp_path):
    """Every running job holds a lock file open, and some systems allow 256; the order is kept."""
    runs = make_runs(tmp_path, *TINY["lasso"], rates=[(0.001 * i, 1) for i in range(1, 501)])
    stacks = group_into_stacks(runs)
    assert [len(stack.runs) for stack in stacks] == [200, 200, 100]
    assert [stack.number for stack in stacks] == [0, 1, 2]
    assert [run for stack in stacks for run in stack.runs] == runs


def test_settings_without_influence_on_the_result_are_not_in_the_run_id(tmp_path):
    (run,) = make_runs(tmp_path, *TINY["lasso"])
    (other,) = make_runs(tmp_path / "b", *TINY["lasso"], "threads=1", "force=true")
    assert run.run_id == other.run_id
    optima = make_runs(tmp_path, *TINY["lasso"], "algo=optimum", rates=RATES)
    assert len({run.run_id for run in optima}) == 1  # a solver has no learning rates
    longer = make_runs(tmp_path, *TINY["lasso"], "hparams.rounds=81")[0]
    assert longer.run_id != run.run_id


FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
OFTEN = ("feddualavg", "feddr")  # one without and one with client memory; the others take long to compile
BOUNDED = ("mc_fedda", "fedfw")  # never diverge: bounded by their sets, as adaptive servers are by eta_s


def suited(task, algo):
    """Return True if the algorithm supports the task's regularizer."""
    try:
        all_algorithms()[algo]().check_pair(
            all_regularizers()[{"lasso": "l1"}.get(task, task)](strength=1.0), Euclidean()
        )
    except UserError:
        return algo == "scaffold"  # runs without a regularizer
    return True


@pytest.mark.machine_code
@pytest.mark.parametrize(
    ("task", "algo"),
    [
        pytest.param(task, algo, marks=pytest.mark.ci if algo in OFTEN else pytest.mark.slow)
        for task in TINY
        for algo in FEDERATED
        if suited(task, algo)
    ],
)
def test_a_job_gives_the_same_bits_alone_and_in_any_stack(algo, task, tmp_path):
    needed = ["hparams.clients_per_round=6"] if all_algorithms()[algo].full_participation else []
    needed += ["regularizer=none"] if algo == "scaffold" else []

    def runs(name, rates):
        return make_runs(tmp_path / name, *TINY[task], f"algo={algo}", *needed, rates=rates)

    several = RATES[::4]  # every client rate, with some server rates
    grid = runs("grid", several)
    grid_result = execute(grid)
    statuses = {result["status"] for result in grid_result.results.values()}
    bounded = algo in BOUNDED or issubclass(all_algorithms()[algo], Adaptive)
    assert statuses == ({"finished"} if bounded else {"finished", "diverged"})  # both kinds must be compared
    for i in (0, 5, 12):
        (alone,) = runs("alone", several[i : i + 1])
        pair = runs("pair", [several[i], several[3]])
        execute([alone])
        execute(pair)
        for run in (alone, pair[0]):
            assert metrics(run) == metrics(grid[i])
            assert Record(run.folder).result()["diverged_round"] == Record(grid[i].folder).result()["diverged_round"]


def test_a_stack_is_bounded_by_its_memory_budget(tmp_path, monkeypatch):
    sizes = []

    class Spy(execution.Simulation):
        def __init__(self, setup, jobs, varying, folders):
            sizes.append(len(jobs))
            super().__init__(setup, jobs, varying, folders)

    monkeypatch.setattr(execution, "Simulation", Spy)
    monkeypatch.setattr(execution, "bytes_per_job", lambda run, problem: 2**20)
    result = run_stack(Stack(0, make_runs(tmp_path, *TINY["lasso"], rates=RATES[:10])), 4, Stop(), lambda event: None)
    assert sizes == [4, 4, 2]
    assert len(result.results) == 10


def test_one_failing_run_fails_alone(tmp_path, monkeypatch):
    runs = make_runs(tmp_path, *TINY["lasso"], rates=RATES[:4])
    execute_stack = stacks_module.execute

    def execute_or_fail(stack, *rest):
        if runs[2] in stack:
            raise MemoryError("out of memory")
        return execute_stack(stack, *rest)

    monkeypatch.setattr(stacks_module, "execute", execute_or_fail)
    events = []
    result = execute(runs, events)
    assert set(result.failures) == {runs[2].run_id}
    assert set(result.results) == {run.run_id for run in runs} - {runs[2].run_id}
    assert [event.kind for event in events].count("failed") == 1
    assert "MemoryError" in (runs[2].folder / "run.log").read_text()
    assert Record(runs[2].folder).result() is None


def test_a_warning_of_a_retried_run_is_counted_once(tmp_path, monkeypatch):
    runs = make_runs(tmp_path, *TINY["lasso"], rates=RATES[:3])

    def warn_or_fail(stack, *rest):
        if len(stack) > 1:
            raise MemoryError("too many")
        logging.getLogger("fco_cli.tasks").warning("few rows")
        return []

    monkeypatch.setattr(stacks_module, "execute", warn_or_fail)
    result = run_stack(Stack(0, runs), 512, Stop(), lambda event: None)
    assert list(result.warnings.values()) == [("few rows", 3)]


def test_results_are_merged():
    result = StackResult({"a": {}}, {"b": "no"})
    result.add(StackResult({"c": {}}, {"d": "neither"}))
    assert result == StackResult({"a": {}, "c": {}}, {"b": "no", "d": "neither"})


def test_prepare_returns_warnings_and_ignores_errors(tmp_path, monkeypatch):
    (run,) = make_runs(tmp_path, *TINY["lasso"])

    def warn(run):
        logging.getLogger("fco_cli.tasks").warning("few rows")

    monkeypatch.setattr(stacks_module, "problem_and_smoothness", warn)
    assert [text for text, _ in prepare(run).warnings.values()] == ["few rows"]

    def warn_and_fail(run):
        warn(run)
        raise UserError("no rows")

    monkeypatch.setattr(stacks_module, "problem_and_smoothness", warn_and_fail)
    assert prepare(run) == StackResult()


def test_prepared_data_are_not_built_again(tmp_path, monkeypatch):
    (run,) = make_runs(tmp_path, *TINY["lasso"], "hparams.rounds=2")
    prepare(run)
    monkeypatch.setattr(type(run.task), "data", None)
    assert list(execute([run]).results) == [run.run_id]
