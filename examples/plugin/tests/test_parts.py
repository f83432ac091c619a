"""The checks that fco applies to its own classes."""

import pytest
from fco_example import InertialFedMid, SmoothL1

from fco_cli.errors import UserError
from fco_cli.testing import check_algorithm, check_regularizer


def test_algorithm():
    check_algorithm(InertialFedMid, limit="bias", inertia=0.3)


def test_penalty():
    check_regularizer(SmoothL1(strength=0.7, width=0.2))


def test_invalid_inertia():
    with pytest.raises(UserError, match=r"algo\.inertia: got 1\.5, must be at least 0, below 1"):
        InertialFedMid(inertia=1.5)
