"""A reader of one round needs few files: those whose functions a round of FedDualAvg enters.

Kernels run as Python, so that the files of compiled code count too.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

import fco_cli
from fco_cli.config import Run
from fco_cli.config.compose import compose
from fco_cli.simulation.engine import Job, Simulation
from fco_cli.simulation.problems import problem_of, setup_of, varying_of

PACKAGE = Path(fco_cli.__file__).parent
SMALL = ["task=lasso", "task.clients=8", "task.dimension=16", "task.ones=4", "hparams.clients_per_round=4"]
MAX_FILES = 15


@pytest.fixture(scope="module")
def entered() -> Counter[str]:
    """Return the number of files by package that the second round enters; it is not evaluated."""
    run = Run.of(compose([*SMALL, "hparams.rounds=5", "hparams.eval_every=5"]))
    simulation = Simulation(setup_of(run, problem_of(run)), [Job()], varying_of([run]))
    simulation.advance()
    files: set[Path] = set()

    def note(frame, event, _):
        if event == "call":
            files.add(Path(frame.f_code.co_filename))

    sys.setprofile(note)
    try:
        simulation.advance()
    finally:
        sys.setprofile(None)
    own = [path.relative_to(PACKAGE) for path in files if path.is_relative_to(PACKAGE)]
    return Counter(path.parts[0] for path in own)


def test_a_round_enters_few_files(entered):
    assert entered.total() <= MAX_FILES
    assert entered.keys() == {"kernels", "problem", "algorithms", "simulation"}
