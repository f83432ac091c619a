"""Every file of conf/ composes, and every experiment's first job is a run.

The folders are walked, so a new file is covered without a line here.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fco_cli.config import Run, kind_of
from fco_cli.help import GROUPS, options_of

PROFILES, EXPERIMENTS = options_of("profile"), options_of("experiment")
CHOSEN_FREELY = [group for group in GROUPS if group not in ("experiment", "profile", "task")]
TOGETHER = [[f"task={name}"] for name in options_of("task")]  # alone, with its own regularizer
TOGETHER += [
    [f"{group}={option}" for group, option in zip(CHOSEN_FREELY, row, strict=True) if option]
    for row in itertools.zip_longest(*map(options_of, CHOSEN_FREELY))
]
PRESETS = {"fed_ht": "fedmid_osp", "fediter_ht": "fedmid"}  # an algorithm with another option of another group
SETS = {"fedfw": "l1_ball", "fed_ht": "l0_ball", "fediter_ht": "l0_ball"}  # what these take in place of a penalty
NEEDED = {  # what no default can be given for
    "task=custom": ["task.path=mine.npz", "task.loss=logistic"],
    "model=torch": ["model.module=net.py:Net"],
    "regularizer=blockwise": ["regularizer.blocks={weights: {name: l1, strength: 0.1}}"],
    "participation=trace": ["participation.path=trace.csv"],
    "time_model=file": ["time_model.path=times.csv"],
}


def own_part(config):
    return OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])


def resolved(config):
    return OmegaConf.to_container(own_part(config), resolve=True, throw_on_missing=True)


@pytest.mark.parametrize("choices", TOGETHER, ids=" ".join)
def test_every_option_of_every_group_composes(composed, choices):
    """One option of every group at a time: a composition takes a fifth of a second."""
    config = resolved(composed(*choices, *(key for choice in choices for key in NEEDED.get(choice, []))))
    for group, option in (choice.split("=") for choice in choices):
        if group != "hparams/grid" and "name" in config[group]:
            # lasso_i and nuclear_i are second names
            assert config[group]["name"] == PRESETS.get(option, option.removesuffix("_i"))


@pytest.mark.parametrize("algo", options_of("algo"))
def test_an_algorithm_leaves_the_regularizer_to_the_task(composed, algo):
    """One that cannot work with it refuses; only methods for sets bring their own."""
    assert composed(f"algo={algo}").regularizer.name == SETS.get(algo, "l1")


RUNS = [  # those of one family differ in a few numbers: the first of each usually stands for all
    pytest.param(name, marks=pytest.mark.slow if re.search("_(ii|iii|iv|l2)$|_extended$|^successors_", name) else ())
    for name in EXPERIMENTS
    if name not in ("theory", "path", "glm", "table1")
]
OFTEN = ("lasso_i", "theory")  # a profile treats them all alike: one experiment usually meets them all


@pytest.mark.parametrize(
    ("experiment", "profile"),
    [
        pytest.param(name, profile, marks=() if profile == "paper" or name in OFTEN else pytest.mark.slow)
        for name in EXPERIMENTS
        for profile in PROFILES
        if name not in ("path", "glm", "table1") or profile == "paper"  # they have one scale
    ],
)
def test_every_experiment_composes_at_every_profile(composed, experiment, profile):
    needed = NEEDED["task=custom"] if experiment in ("path", "glm", "table1") else []
    config = composed(f"experiment={experiment}", f"profile={profile}", *needed)
    resolved(config)
    assert config.output_dir == f"{config.profile.outputs}/{experiment}"
    assert config.hydra.launcher._target_.endswith("FusedLauncher")
    assert kind_of(config) == (experiment if experiment in ("path", "glm", "table1", "theory") else "run")
    if kind_of(config) == "run":
        assert config.experiment.name == experiment
        assert set(config.hydra.sweeper.params.algo.split(",")) <= set(options_of("algo"))
        assert set(config.hydra.sweeper.grid_of or {}) <= set(options_of("algo"))


@pytest.mark.parametrize("experiment", RUNS)
def test_the_first_job_of_every_experiment_is_a_run(composed, experiment):
    sweep = composed(f"experiment={experiment}", "profile=paper").hydra.sweeper.params
    first = [f"{key}={values.split(',')[0]}" for key, values in sweep.items()]
    run = Run.of(own_part(composed(f"experiment={experiment}", *first)))
    assert f"algo={run.algo.name}" in first
    assert run.experiment.select.metric
    assert run.hparams.rounds >= 1


def test_experiments_of_one_family_differ_in_what_they_are_named_for(composed):
    def differences(one, other):
        def flat(config):
            return dict(_leaves(resolved(config)))

        a, b = (flat(composed(f"experiment={name}", "profile=paper")) for name in (one, other))
        return {key for key in a | b if a.get(key) != b.get(key)}

    named = {"experiment.name", "experiment.title", "experiment.paper", "output_dir"}
    assert differences("lasso_i", "lasso_iv") == {*named, "task.name", "task.clients", "task.samples"}
    assert differences("lasso_i", "lasso_ii") == {*named, "task.name", "task.ones", "task.radius"}


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(name, marks=() if name == "lasso_i_extended" else pytest.mark.slow)
        for name in EXPERIMENTS
        if name.endswith("_extended")
    ],
)
def test_an_extended_twin_adds_smaller_client_rates_and_nothing_else(composed, experiment):
    twin, paper = (composed(f"experiment={name}") for name in (experiment, experiment.removesuffix("_extended")))
    assert twin.experiment.twin_of == paper.experiment.name
    assert (twin.seeds, twin.experiment.paper) == (2, "")
    for part in ("task", "regularizer", "hparams"):
        assert twin[part] == paper[part]
    rates, of_paper = (one.hydra.sweeper.params["hparams.client_lr"] for one in (twin, paper))
    assert rates.endswith(of_paper)
    assert len(rates.split(",")) == len(of_paper.split(",")) + 2


@pytest.mark.parametrize("experiment", RUNS)
def test_quick_is_a_small_part_of_the_papers_design_at_full_length(composed, experiment):
    quick, paper = (composed(f"experiment={experiment}", f"profile={name}") for name in ("quick", "paper"))
    assert quick.hparams == paper.hparams
    assert quick.seeds == 1
    for rate in ("hparams.client_lr", "hparams.server_lr"):
        few, all_rates = (one.hydra.sweeper.params.get(rate, "").split(",") for one in (quick, paper))
        assert set(few) <= set(all_rates) or not any(all_rates)


@pytest.mark.parametrize("family", ["lasso", "nuclear"])
def test_a_task_goes_by_its_experiments_name_too(composed, family):
    short, long = (own_part(composed(f"task={name}")) for name in (family, f"{family}_i"))
    assert short == long
    assert Run.of(short).run_id == Run.of(long).run_id


def test_every_algorithm_is_listed_and_explained():
    """In the table of groups of docs/runs.md, and with its formula in docs/."""
    house = Path(__file__).parents[2]
    (row,) = re.findall(r"^\| `algo` \|(.*)$", (house / "docs" / "runs.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(options_of("algo"))
    explained = "".join((house / "docs" / name).read_text() for name in ("paper.md", "methods.md"))
    for name in options_of("algo"):
        assert f"`{name}`" in explained


def _leaves(node, path=""):
    if not isinstance(node, dict):
        return [(path, repr(node))]
    return [leaf for key, value in node.items() for leaf in _leaves(value, f"{path}.{key}".lstrip("."))]
