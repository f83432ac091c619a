"""Stacks in processes of their own on this machine; one that dies takes nothing with it but its last seconds.

A worker is a process with a pipe. Down the pipe come stacks, a run to prepare for, or the number of a signal that asks
to stop; up come events and how a stack ended. When the other end closes, because the sweep's process has ended in
whatever way, the worker ends too.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import Counter, deque
from contextlib import suppress
from multiprocessing import set_start_method
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from fco_cli.config import Run
from fco_cli.simulation.stop import SIGNALS, Stop
from fco_cli.sweeps.stacks import Ended, Event, Post, Stack, Working, given_up, prepare, run_stack
from fco_cli.sweeps.starting import end, started

RETRIES = 2  # of a stack whose process has died, each from its last checkpoint
ANSWER_SECONDS = 0.2  # after which a request to stop is passed on


def prepare_early(run: Run) -> None:
    """Have a worker draw the data of a run that a sweep will ask for when all of it is composed."""
    _prepared.append(_Worker())
    _prepared[-1].send(run)


def prepared_early() -> int:
    """How many workers are there already."""
    return len(_prepared)


def run_in_processes(stacks: list[Stack], workers: int, memory_mb: int, stop: Stop, post: Post) -> Working:
    """Run all stacks, `workers` at a time."""
    waiting, deaths = deque(stacks), Counter[int]()
    team = [_prepared.pop(0) if _prepared else _Worker() for _ in range(workers)]
    ended: list[Ended] = []
    try:
        while True:
            if stop.requested:
                waiting.clear()
                for worker in team:
                    worker.send(stop.signal_number)
            for worker in team:
                if waiting and worker.stack is None:
                    worker.stack = waiting.popleft()
                    worker.send((worker.stack, memory_mb))
            yield from ended  # what our caller does with it takes time: workers have their next stack by now
            ended.clear()
            busy = {worker.pipe: worker for worker in team if worker.stack is not None}
            if not busy:
                return
            for pipe in wait(list(busy), ANSWER_SECONDS):
                worker = busy[pipe]  # type: ignore[index]
                message = worker.receive()
                if isinstance(message, Event):
                    post(message)
                    continue
                stack, worker.stack = worker.stack, None
                assert stack is not None
                if isinstance(message, Ended):
                    ended.append(message)
                    continue
                team[team.index(worker)] = _Worker()
                deaths[stack.number] += 1
                if deaths[stack.number] <= RETRIES:
                    waiting.append(stack)
                else:
                    ended.append(given_up(stack, f"its process died {RETRIES + 1} times, {worker.last_words()}", post))
    finally:
        for worker in team:
            end(worker.process)


_Orders = queue.SimpleQueue[tuple[Stack, int] | Run]


class _Worker:
    """The sweep's side of a process."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        self.process = started(work, theirs)
        theirs.close()
        self.stack: Stack | None = None  # that it works on

    def send(self, message: Any) -> None:
        with suppress(OSError):  # it has died: we shall hear of it when we listen
            self.pipe.send(message)

    def receive(self) -> Event | Ended | None:
        """What the worker says; None if it has died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def last_words(self) -> str:
        self.process.join()
        code = self.process.exitcode or 0
        killed = code == -getattr(signal, "SIGKILL", 9)
        return "killed: was the memory too small?" if killed else f"with exit code {code}"


_prepared: list[_Worker] = []  # they wait for their first stack


def work(pipe: Connection) -> None:
    """What a worker does until the pipe is closed."""
    for number in SIGNALS:  # a terminal sends them to all of us; the sweep's process says what they mean
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    set_start_method("spawn", force=True)  # or Numba makes a semaphore for our own copies, which a kill leaves behind
    stop, orders = Stop(), _Orders()
    threading.Thread(target=_listen, args=(pipe, orders, stop), daemon=True).start()

    def say(message: Event | Ended) -> None:
        try:
            pipe.send(message)
        except OSError:
            os._exit(1)

    before = Ended()
    while True:
        order = orders.get()
        if isinstance(order, Run):
            before = prepare(order)
        else:
            stack, memory_mb = order
            ended = run_stack(stack, memory_mb, stop, say)
            ended.add(before)
            before = Ended()
            say(ended)


def _listen(pipe: Connection, orders: _Orders, stop: Stop) -> None:
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # nobody is left to work for, and the checkpoints are on disk
        if isinstance(message, int):
            stop.signal_number = message
        else:
            orders.put(message)
