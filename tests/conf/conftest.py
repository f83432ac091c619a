"""The configuration as it ships, composed in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from fco_cli import theory
from fco_cli.config import register

Compose = Callable[..., DictConfig]


@pytest.fixture(scope="module")
def composed() -> Iterator[Compose]:
    """The configuration that these overrides give, Hydra's own part included; each is composed once."""

    @cache
    def composed(*overrides: str) -> DictConfig:
        return compose("config", overrides=list(overrides), return_hydra_config=True)

    register()
    theory.register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        yield composed
