"""Composition of configurations from overrides with Hydra, called from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fco_cli.errors import UserError, is_expected, one_line

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from omegaconf import DictConfig


@contextmanager
def initialized_hydra() -> Iterator[Hydra]:
    """Initialize Hydra with the package's configuration; restore the application's global Hydra afterwards."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    from fco_cli.config.schemas import register

    register()
    original = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("fco_cli.conf", job_name="fco", version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            yield hydra
    finally:
        GlobalHydra.instance().hydra = original


def compose(overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of one run."""
    import hydra

    with initialized_hydra():
        return hydra.compose("config", list(overrides))


@contextmanager
def attribute_errors_to_overrides(started: list[bool], where: str) -> Iterator[None]:
    """Convert any exception into a UserError about the overrides, unless `started` is nonempty.

    Until our own code has started, only Hydra has run, and its exceptions are caused by the overrides.
    """
    try:
        yield
    except Exception as problem:
        if started or is_expected(problem):
            raise
        raise UserError(f"{where}: {type(problem).__name__}: {one_line(problem)}") from problem
