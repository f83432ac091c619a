from __future__ import annotations

import time

import pytest

from fco_cli.kernels.compile_time import Stopwatch
from fco_cli.kernels.compiled import Kernel


def test_seconds_of_work_are_counted():
    watch = Stopwatch()
    time.sleep(0.05)
    assert 0.05 <= watch.lap() < 5
    assert watch.lap() < 0.05


@pytest.mark.machine_code
def test_seconds_of_the_compiler_are_not():
    def square(x):
        return x * x

    watch, start = Stopwatch(), time.monotonic()
    assert Kernel(square)(3.0) == 9
    everything, counted = time.monotonic() - start, watch.lap()
    assert counted < everything / 2
