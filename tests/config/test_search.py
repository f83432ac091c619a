"""Settings of a search, and the objectives that follow from them."""

from __future__ import annotations

import pytest

from fco_cli.config.schemas import Experiment, Selection
from fco_cli.config.search import Search, objectives_of
from fco_cli.errors import UserError


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"budget": 0}, "search.budget: got 0, must be a whole number from 1"),
        ({"batch": 0}, "search.batch: got 0"),
        ({"seed": -1}, "search.seed: got -1"),
        ({"sampler": "cmaes"}, "search.sampler: got 'cmaes', must be one of tpe, random, grid"),
        ({"pruning": "median"}, "search.pruning: got 'median', must be one of none, halving"),
        ({"metric": 5}, "search.metric: got 5"),
        ({"metric": []}, "search.metric: got []"),
        ({"metric": ["f1", "f1"]}, "search.metric: got"),
        ({"metric": ["f1", "density"], "direction": "minimize"}, "search.direction: got 'minimize'"),
        ({"direction": "down"}, "search.direction: got 'down'"),
        ({"metric": ["f1", "density"], "pruning": "halving"}, "search.pruning: got 'halving', must be none"),
        ({"last": 0}, "search.last: got 0"),
    ],
)
def test_wrong_settings_are_refused(keys, complaint):
    with pytest.raises(UserError) as problem:
        Search(**keys)
    assert complaint in str(problem.value)


def test_the_default_is_the_rule_of_the_experiment_or_the_objective():
    experiment = Experiment(name="one", select=Selection(metric="f1", mode="max", last=100), panels=[])
    assert list(map(str, objectives_of(Search(), experiment))) == ["maximize f1, mean of the last 100 rounds"]
    assert list(map(str, objectives_of(Search(), None))) == ["minimize objective"]
    assert list(map(str, objectives_of(Search(last=3), None))) == ["minimize objective, mean of the last 3 rounds"]


def test_the_direction_of_common_metrics_is_known():
    names = ["f1", "density", "test_auc", "validation_loss", "recovery_error", "kkt_residual", "rounds"]
    found = [one.direction for one in objectives_of(Search(metric=names), None)]
    assert found == ["maximize", "minimize", "maximize", "minimize", "minimize", "minimize", "minimize"]
    with pytest.raises(
        UserError, match=r"search\.direction: unknown for search\.metric=my_number, must be minimize or maximize"
    ):
        objectives_of(Search(metric="my_number"), None)
    assert objectives_of(Search(metric="my_number", direction="maximize"), None)[0].worst == -float("inf")
