"""Tests of stacks in worker processes, including killed workers."""

import csv
import multiprocessing
import os
import signal

import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.simulation.process import Stop
from fco_cli.sweeps.backends import count_prepared_workers, prepare_worker, run_in_processes
from fco_cli.sweeps.stacks import Stack, run_stack

register()

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills processes")

TINY = [
    "task=lasso", "task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15",
    "hparams.clients_per_round=3", "hparams.batch_size=3", "hparams.rounds=600", "threads=1",
]  # fmt: skip


def make_stack(folder, number=0):
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        config = compose("config", overrides=[*TINY, f"seed={number}", f"output_dir={folder}"])
    return Stack(number, [Run.of(config)])


def metrics(stack):
    with (stack.runs[0].folder / "metrics.csv").open() as file:
        return list(csv.reader(file))


def kill_children():
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.ci
def test_a_killed_process_is_replaced_and_nothing_is_lost(tmp_path):
    stack, straight = make_stack(tmp_path / "killed"), make_stack(tmp_path / "straight")
    kills, others = [], multiprocessing.active_children()  # others: of other tests in this process

    def kill_once(event):
        if event.progress > 0 and not kills:
            kills.append(event)
            kill_children()

    (result,) = run_in_processes([stack], 1, 512, Stop(), kill_once)
    assert kills
    assert list(result.results) == [stack.runs[0].run_id]
    run_stack(straight, 512, Stop(), lambda event: None)
    assert metrics(stack) == metrics(straight)
    assert set(multiprocessing.active_children()) <= set(others)


def test_a_prepared_worker_gets_the_first_stack(tmp_path):
    stack = make_stack(tmp_path)
    stack.runs[0].hparams.rounds = 5
    prepare_worker(stack.runs[0])
    assert count_prepared_workers() == 1
    workers, seen = multiprocessing.active_children(), []
    (result,) = run_in_processes([stack], 1, 512, Stop(), lambda event: seen.append(multiprocessing.active_children()))
    assert list(result.results) == [stack.runs[0].run_id]
    assert seen
    assert all(processes == workers for processes in seen)
    assert count_prepared_workers() == 0


@pytest.mark.slow
def test_a_stack_whose_process_always_dies_fails_with_one_line(tmp_path):
    stack, events = make_stack(tmp_path), []

    def kill_always(event):
        events.append(event)
        kill_children()

    (result,) = run_in_processes([stack], 1, 512, Stop(), kill_always)
    assert result.failures == {stack.runs[0].run_id: "its process died 3 times, killed: it may need more memory"}
    assert [event.kind for event in events].count("failed") == 1


class Unknown:
    """A class that no other process can load."""

    def __reduce__(self):
        return __import__, ("absent_module",)


def test_a_stack_that_a_process_cannot_load_fails_with_the_reason(tmp_path):
    stack = make_stack(tmp_path)
    stack.runs[0].resolved["unknown"] = Unknown()
    others = multiprocessing.active_children()  # of other tests in this process
    (result,) = run_in_processes([stack], 1, 512, Stop(), lambda event: None)
    (reason,) = result.failures.values()
    assert reason.endswith("because it cannot load the runs: ModuleNotFoundError: No module named 'absent_module'")
    assert set(multiprocessing.active_children()) <= set(others)


@pytest.mark.slow
def test_a_request_to_stop_reaches_every_process(tmp_path):
    stop = Stop()

    def request_stop(event):
        stop.signal_number = signal.SIGTERM

    parts = list(run_in_processes([make_stack(tmp_path, number) for number in range(3)], 2, 512, stop, request_stop))
    assert not any(part.results or part.failures for part in parts)
    assert len(list(tmp_path.rglob("checkpoint.npz"))) >= 1
