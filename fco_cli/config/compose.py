"""From words, as the command line has them, to the configuration: Hydra, called from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fco_cli.errors import UserError, is_foreseen, one_line

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from omegaconf import DictConfig


@contextmanager
def shipped() -> Iterator[Hydra]:
    """Hydra on the shipped configuration; an application's own Hydra is put aside meanwhile."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    from fco_cli.config.schemas import register

    register()
    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("fco_cli.conf", job_name="fco", version_base="1.3"):
            ours = GlobalHydra.instance().hydra
            assert ours is not None
            yield ours
    finally:
        GlobalHydra.instance().hydra = theirs


def compose(words: Sequence[str]) -> DictConfig:
    """The configuration of one run."""
    import hydra

    with shipped():
        return hydra.compose("config", list(words))


@contextmanager
def blaming_words(begun: list[bool], where: str) -> Iterator[None]:
    """Until our own work has begun, nothing but the words has been at work: what Hydra stumbles over stands there."""
    try:
        yield
    except Exception as problem:
        if begun or is_foreseen(problem):
            raise
        raise UserError(f"{where}: {type(problem).__name__}: {one_line(problem)}") from problem
