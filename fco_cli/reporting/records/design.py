"""Designs of shipped experiments, and the check that a study is complete and unaltered.

Only complete and unaltered studies decide claims.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import yaml

from fco_cli.client_rate import relative
from fco_cli.help import options_of
from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.text import printable
from fco_cli.results import NETWORK

Rate = float | str | None  # a string for rates relative to the data, such as auto and 0.3/L
PAPER = "paper"  # the profile at the paper's scale
JUDGING_PROFILES = (PAPER, "quick")  # profiles with all rounds, which may decide claims
Job = tuple[str, Rate, Rate, int]  # algorithm, client_lr, server_lr, seed


@dataclass(frozen=True)
class Design:
    """Runs of an experiment at a profile."""

    pairs: frozenset[tuple[str, Rate, Rate]]
    seeds: frozenset[int]
    settings: dict[str, Any]  # shared by all of its federated runs, by key

    def jobs(self, seeds: frozenset[int]) -> set[Job]:
        """Return the runs of the design for the given seeds."""
        return {(*pair, seed) for pair in self.pairs for seed in seeds}


def is_shipped(study: RecordedStudy) -> bool:
    """Return True if the study belongs to a shipped experiment, not just to a task of the same name."""
    return study.name in options_of("experiment") and any(run.config.get("experiment") for run in study.runs)


def reason_undecided(study: RecordedStudy) -> str:
    """Return a short reason why a study cannot decide claims; empty if it can."""
    if study.profile not in JUDGING_PROFILES:
        return f"only at profile {study.profile}"
    if not is_shipped(study) or any(run.config.get("experiment") is None for run in study.runs):
        return "not a shipped experiment"
    design = design_of(study.name, study.profile)
    federated = [run for run in study.runs if run.federated]
    for run in federated[:1] or study.runs[:1]:
        for key, value in _settings(run.config).items():
            if key in design.settings and design.settings[key] != value:
                return f"altered: {key} is {printable(value)}, the experiment's {printable(design.settings[key])}"
    recorded: set[Job] = {(run.algo, _client_rate(run), run.server_lr, run.seed) for run in study.runs}
    required = design.jobs(design.seeds | {seed for *_, seed in recorded})  # additional seeds are allowed
    if missing := required - recorded:
        return f"incomplete: {len(missing)} of {len(required)} runs are missing"
    if extra := recorded - required:
        return f"altered: {len(extra)} runs are not part of the experiment"
    return ""


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    parts = {
        part: config[part] for part in ("task", "model", "regularizer", "mirror", "transform", "hparams", *NETWORK)
    }
    parts["experiment.select"] = config["experiment"]["select"]
    flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
    return {key: value for key, value in flat.items() if not key.endswith("_lr")}


@cache
def design_of(experiment: str, profile: str = PAPER) -> Design:
    """Compose an experiment's configuration, as `fco-run -m experiment=... profile=...` does."""
    from omegaconf import OmegaConf

    config = _compose(f"experiment={experiment}", f"profile={profile}")
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
    params = sweeper["params"]
    pairs = set()
    for algo in params["algo"].split(","):
        grid = {**params, **(sweeper["grid_of"] or {}).get(algo, {})}
        pairs |= {(algo, *rates) for rates in _rates(experiment, algo, grid)}
    parts = ("task", "model", "regularizer", "mirror", "transform", "hparams", *NETWORK, "experiment")
    own = {key: OmegaConf.to_container(config[key], resolve=True) for key in parts}
    return Design(frozenset(pairs), frozenset(range(config.seeds or 1)), _settings(own))


def _rates(experiment: str, algo: str, grid: dict[str, Any]) -> set[tuple[Rate, ...]]:
    """Return the pairs of rates: None for a rate that the algorithm does not use, its default if it is not swept."""
    from fco_cli.algorithms import all_algorithms

    uses = all_algorithms()[algo].uses
    values: list[list[Rate]] = []
    for name in ("client_lr", "server_lr"):
        if name not in uses:
            values.append([None])
        elif f"hparams.{name}" in grid:
            values.append([_rate(value) for value in str(grid[f"hparams.{name}"]).split(",")])
        else:
            values.append([_rate(_compose(f"experiment={experiment}", f"algo={algo}").hparams[name])])
    return set(product(*values))


def _rate(given: Any) -> Rate:
    return given if relative(given) is not None else float(given)


def _client_rate(run: RecordedRun) -> Rate:
    return run.client_lr if run.relative_client_lr is None else str(run.config["hparams"]["client_lr"])


@cache
def shipped_theory() -> dict[str, Any]:
    """Return the grid of experiment=theory at the paper's scale."""
    text = files("fco_cli.conf").joinpath("experiment/theory.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\{at_scale:(\d+)\}", r"\1", text))["theory"]


@cache
def defaults_of(algo: str) -> tuple[float, dict[str, Any]]:
    """Return an algorithm's default server_lr and options, from its YAML and schema."""
    config = _compose(f"algo={algo}")
    return float(config.hparams.server_lr), {key: value for key, value in config.algo.items() if key != "name"}


def _compose(*overrides: str) -> Any:
    from hydra import compose

    from fco_cli.config.compose import initialized_hydra

    with initialized_hydra():
        return compose("config", overrides=list(overrides), return_hydra_config=True)
