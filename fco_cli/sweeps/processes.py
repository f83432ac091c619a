"""Stacks in processes of their own on this machine; one that dies takes nothing with it but its last seconds.

A worker is a process with a pipe. Down the pipe come stacks, or the number of a signal that asks to stop; up come
events and how a stack ended. When the other end closes, because the sweep's process has ended in whatever way, the
worker ends too.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

from fco_cli.simulation.stop import SIGNALS, Stop
from fco_cli.sweeps.stacks import Ended, Event, Post, Stack, Working, given_up, run_stack

RETRIES = 2  # of a stack whose process has died, each from its last checkpoint
ANSWER_SECONDS = 0.2  # after which a request to stop is passed on


def run_in_processes(stacks: list[Stack], workers: int, memory_mb: int, stop: Stop, post: Post) -> Working:
    """Run all stacks, `workers` at a time."""
    waiting, deaths = deque(stacks), Counter[int]()
    team = [_Worker() for _ in range(workers)]
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
            worker.process.kill()
            worker.process.join()


class _Worker:
    """The sweep's side of a process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        with _signals_wait(), _without_main():
            self.process.start()
        theirs.close()
        self.stack: Stack | None = None

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


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals are held back, also in a process that starts in here, until it is ready for them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """A process that starts in here does not import the script that called for the sweep, which would call again."""
    theirs = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = theirs


def work(pipe: Connection) -> None:
    """What a worker does until the pipe is closed."""
    for number in SIGNALS:  # a terminal sends them to all of us; the sweep's process says what they mean
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    stop, stacks = Stop(), queue.SimpleQueue[tuple[Stack, int]]()
    threading.Thread(target=_listen, args=(pipe, stacks, stop), daemon=True).start()

    def say(message: Event | Ended) -> None:
        try:
            pipe.send(message)
        except OSError:
            os._exit(1)

    while True:
        stack, memory_mb = stacks.get()
        say(run_stack(stack, memory_mb, stop, say))


def _listen(pipe: Connection, stacks: queue.SimpleQueue[tuple[Stack, int]], stop: Stop) -> None:
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # nobody is left to work for, and the checkpoints are on disk
        if isinstance(message, int):
            stop.signal_number = message
        else:
            stacks.put(message)
