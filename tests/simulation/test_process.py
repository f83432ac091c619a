from __future__ import annotations

import time

import pytest

from fco_cli.kernels.compiled import Kernel
from fco_cli.simulation.process import Stopwatch


def test_stopwatch_counts_run_time():
    watch = Stopwatch()
    time.sleep(0.05)
    assert 0.05 <= watch.lap() < 5
    assert watch.lap() < 0.05


@pytest.mark.machine_code
def test_stopwatch_excludes_compile_time():
    def square(x):
        return x * x

    watch, start = Stopwatch(), time.monotonic()
    assert Kernel(square)(3.0) == 9
    elapsed, counted = time.monotonic() - start, watch.lap()
    assert counted < elapsed / 2
