"""Tests of experiments and profiles, which are checked before anything runs."""

import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.simulation.process import Stop
from fco_cli.sweeps.stacks import Stack, run_stack

register()


def run_of(*overrides):
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=["experiment=lasso_i", *overrides]))


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("experiment.select.mode=up", "experiment.select.mode: got 'up', must be max or min"),
        ("experiment.select.last=0", "experiment.select.last: got 0, must be a whole number >= 1"),
        ("experiment.name=../x", "experiment.name: got '../x', must be a file name of letters"),
        ("+experiment.foo=1", "experiment.foo: no such key"),
        ("+experiment.select.foo=1", "experiment.select.foo: no such key"),
        ("profile.scale=-3", "profile.scale: got -3.0, must be a number above 0, at most 100"),
        ("profile.scale=nan", "profile.scale: got nan"),
        ("profile.name=/x", "profile.name: got '/x'"),
        ("+profile.foo=1", "profile.foo: no such key; allowed: name, scale, outputs"),
    ],
)
def test_wrong_keys_are_refused(override, complaint):
    with pytest.raises(UserError) as problem:
        run_of(override)
    assert str(problem.value).startswith(complaint)


SMALL = ["task.dimension=12", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]


@pytest.mark.parametrize("override", ["experiment.select.metric=rank", "experiment.panels=[objective,rank]"])
def test_a_metric_that_no_run_has_is_refused_after_the_first_evaluation(override, tmp_path):
    events = []
    run = run_of(*SMALL, "task.ones=4", "hparams.batch_size=3", override, f"output_dir={tmp_path}")
    ended = run_stack(Stack(0, [run]), 512, Stop(), events.append)
    (reason,) = ended.refusals.values()
    assert reason.startswith(f"{override.split('=')[0]}: got 'rank', must be one of objective, train_loss")
    assert not list(tmp_path.rglob("metrics.csv"))
    assert [(event.kind, event.progress) for event in events] == [("round", 0.0), ("refused", 0.0)]
