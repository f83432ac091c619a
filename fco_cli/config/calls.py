"""Configurations of calls from Python (api.py): the overrides are checked, then composed."""

from __future__ import annotations

from omegaconf import DictConfig

from fco_cli.config.compose import attribute_errors_to_overrides, check_overrides, compose, quote_texts
from fco_cli.config.kinds import kind_of
from fco_cli.errors import UserError, require
from fco_cli.plugins import load_plugins


def checked_overrides(overrides: tuple[str, ...]) -> list[str]:
    """Return the overrides, quoted for Hydra; raise UserError for invalid ones."""
    for override in overrides:
        require(isinstance(override, str), "overrides", override, "strings, such as 'task=lasso'")
    texts = load_plugins([quote_texts(override) for override in overrides])
    check_overrides(texts)
    return texts


def compose_call(overrides: tuple[str, ...]) -> DictConfig:
    """Return the configuration of one experiment; raise UserError for invalid overrides."""
    with attribute_errors_to_overrides([], "overrides"):
        return compose(checked_overrides(overrides))


def compose_experiment(name: str, overrides: tuple[str, ...]) -> DictConfig:
    """Return the configuration of an experiment that replaces the run."""
    for override in overrides:
        parts = override.partition("=") if isinstance(override, str) else ("", "", "")
        require(parts[0] != "experiment" or parts[2] == name, "experiment", parts[2], f"{name} or omitted")
    others = tuple(override for override in overrides if override != f"experiment={name}")
    config = compose_call((f"experiment={name}", *others))
    refuse_dry_run(config)
    return config


def refuse_dry_run(config: DictConfig) -> None:
    """Raise UserError for dry_run=true."""
    require(not config.dry_run, "dry_run", True, "false in Python; use fco-run -m to estimate the work of a sweep")


def require_single_run(config: DictConfig) -> None:
    """Raise UserError if the configuration describes several runs, another kind of experiment or a dry run."""
    if (kind := kind_of(config)) != "run":
        raise UserError(f"experiment: {kind} is not a run; call {kind}(...)")
    if config.experiment is not None:
        name = config.experiment.name
        raise UserError(f'experiment: {name} is a sweep; call sweep("experiment={name}")')
    if config.seeds is not None:
        raise UserError(
            f"seeds: got {config.seeds}, which is several runs; call sweep(...), or set seed=... for one run"
        )
    refuse_dry_run(config)
