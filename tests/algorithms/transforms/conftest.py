from __future__ import annotations

import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import NoTransform
from fco_cli.algorithms.transforms.clip_noise import ClipNoise
from fco_cli.algorithms.transforms.compression import Quantize, TopK
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise


@pytest.fixture(scope="session")
def examples():
    """Return two examples of each transform, which may share a stack and change messages of seven entries."""
    return {
        "none": (NoTransform(), NoTransform()),
        "topk": (TopK(share=0.4), TopK(share=0.15)),
        "quantize": (Quantize(bits=3), Quantize(bits=1)),
        "clip_noise": (ClipNoise(clip_norm=0.05, noise_multiplier=0.1), ClipNoise(clip_norm=0.2, noise_multiplier=0.5)),
        "row_clip_noise": (
            RowClipNoise(clip_norm=0.5, noise_multiplier=0.1),
            RowClipNoise(clip_norm=2.0, noise_multiplier=0.5),
        ),
    }


@pytest.fixture
def suited(make_problem, psi_for):
    """Return a problem that the algorithm supports."""
    return lambda name: make_problem(psi_for(name))


@pytest.fixture
def cohorts_for(make_hparams, cohorts_of):
    """Return cohorts of two of three clients, or of all if the algorithm requires full participation."""

    def draw(name, problem, rounds=4):
        kind = all_algorithms()[name]
        hparams = make_hparams(clients_per_round=3 if kind.full_participation else 2)
        return cohorts_of(problem, hparams, rounds, kind().local_step_rule)

    return draw
