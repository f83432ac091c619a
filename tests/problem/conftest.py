"""Fixtures that call regularizers as algorithms do: through the templates over jobs and blocks, with a bias."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.layout import Block, Layout, Numbers
from fco_cli.problem.mirror import Geometry, linear_minimization_oracle, psi_subgradient, psi_value, to_primal
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import Regularizer


@pytest.fixture(
    scope="module", params=["text", pytest.param("machine code", marks=[pytest.mark.ci, pytest.mark.machine_code])]
)
def both_ways() -> None:
    """Run every test of the module twice: with kernels as Python and, in CI, compiled."""


BIAS = 7.0  # psi must not change it


def _call(
    template: Kernel, regularizer: Regularizer, w: np.ndarray, shape: tuple[int, ...] | None, numbers: Numbers | None
) -> Callable[..., np.ndarray]:
    """Return a function that calls the template with w [J, n] and a bias, and checks the bias in the output."""
    layout = Layout((Block("weights", shape or w.shape[1:]), Block("bias", (1,), regularized=False)))
    numbers = np.repeat(regularizer.numbers, len(w)) if numbers is None else numbers
    geometry = Geometry(
        numbers, Euclidean().numbers, regularizer.table(layout), regularizer.coordinate_numbers(layout).astype(w.dtype)
    )
    padded = np.hstack([w, np.full((len(w), 1), BIAS, w.dtype)])

    def call(*between: np.ndarray, out: np.ndarray | None = None, bias: float = BIAS) -> np.ndarray:
        if out is not None:
            template(padded, *between, geometry, out)
            return out
        result = np.zeros_like(padded)
        template(padded, *between, geometry, result)
        assert (result[:, -1] == bias).all()
        return result[:, :-1]

    return call


def _prox(regularizer, z, t, shape=None, numbers=None):
    template = specialize(to_primal, on_block={"primal": Euclidean().primal(regularizer)})
    return _call(template, regularizer, z, shape, numbers)(np.broadcast_to(np.asarray(t, float), len(z)).copy())


def _psi(regularizer, w, shape=None, numbers=None):
    template = specialize(psi_value, on_block={"value": regularizer.value})
    return _call(template, regularizer, w, shape, numbers)(out=np.zeros(len(w)))


def _subgradient(regularizer, w, shape=None, numbers=None):
    template = specialize(psi_subgradient, on_block={"subgradient": regularizer.subgradient})
    return _call(template, regularizer, w, shape, numbers)(bias=0.0)


def _lmo(regularizer, g, shape=None, numbers=None):
    template = specialize(linear_minimization_oracle, on_block={"lmo": regularizer.lmo})
    return _call(template, regularizer, g, shape, numbers)(bias=0.0)


@pytest.fixture(scope="session")
def stacked() -> SimpleNamespace:
    """Return prox(regularizer, z [J, n], t), psi(regularizer, w), subgradient(regularizer, w), lmo(regularizer, g)."""
    return SimpleNamespace(prox=_prox, psi=_psi, subgradient=_subgradient, lmo=_lmo)
