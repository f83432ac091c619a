"""Fixtures that call regularizers as algorithms do: through the templates over jobs and blocks, with a bias."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fco_cli.testing.regularizers import lmo, prox, psi, subgradient


@pytest.fixture(
    scope="module", params=["text", pytest.param("machine code", marks=[pytest.mark.ci, pytest.mark.machine_code])]
)
def both_ways() -> None:
    """Run every test of the module twice: with kernels as Python and, in CI, compiled."""


@pytest.fixture(scope="session")
def stacked() -> SimpleNamespace:
    """Return prox(regularizer, z [J, n], t), psi(regularizer, w), subgradient(regularizer, w), lmo(regularizer, g)."""
    return SimpleNamespace(prox=prox, psi=psi, subgradient=subgradient, lmo=lmo)
