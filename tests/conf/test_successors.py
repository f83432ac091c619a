"""The leaderboard is fair: equally many runs of every method, its untuned defaults among them, and five seeds."""

from __future__ import annotations

import math

import pytest
import yaml
from omegaconf import OmegaConf

from fco_cli.algorithms import all_algorithms
from fco_cli.help import options_of
from fco_cli.studies.leaderboard.tables import FAMILIES

EXPERIMENTS = [name for name in options_of("experiment") if name.startswith("successors")]
RUNS = 6
TOGETHER = ("successors", "successors_digits", "few_rounds")  # experiments with all methods


def grids(composed, experiment):
    """The grid of every federated method that takes part."""
    sweeper = composed(f"experiment={experiment}", "profile=paper").hydra.sweeper
    for algo in sweeper.params.algo.split(","):
        own = sweeper.grid_of.get(algo, {})
        if own is not None and algo != "optimum":
            grid = {**sweeper.params, **own}
            yield algo, {key: str(grid[key]).split(",") for key in grid if key.startswith(("hparams.", "algo."))}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_method_has_as_many_runs(composed, experiment):
    sizes = {algo: math.prod(map(len, grid.values())) for algo, grid in grids(composed, experiment)}
    assert set(sizes.values()) == {RUNS}
    assert composed(f"experiment={experiment}", "profile=paper").seeds == 5


@pytest.mark.parametrize("experiment", ["successors", "successors_digits"])
def test_what_nobody_tuned_is_in_the_grid(composed, experiment):
    """client_lr=auto with the method's own server step and options."""
    for algo, grid in grids(composed, experiment):
        untuned, uses = composed(f"algo={algo}"), {f"hparams.{name}" for name in all_algorithms()[algo].uses}
        for key, words in grid.items():
            values = [yaml.safe_load(word) for word in words]
            if key == "hparams.client_lr" and key in uses:
                assert "auto" in values, algo
            elif key.startswith("algo.") or key in uses:
                assert OmegaConf.select(untuned, key) in values, (algo, key)


def test_every_method_of_a_family_takes_part(composed):
    """Every method is in at least one experiment; those for constraints only are in that of the digits."""
    members = {algo for experiment in TOGETHER for algo, _ in grids(composed, experiment)}
    families = {name: vars(kind)["style"].family for name, kind in all_algorithms().items() if "style" in vars(kind)}
    assert {name for name, family in families.items() if family in FAMILIES} <= members
    assert set(families.values()) == {*FAMILIES, "others"}
