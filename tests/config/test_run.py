"""Tests of the typed run and its checks before data are built."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fco_cli.config import PathRun, Run, register
from fco_cli.errors import UserError, one_line

SMALL = ["task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]


@pytest.fixture(scope="module")
def run_of():
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        yield lambda *overrides: Run.of(compose("config", overrides=[*SMALL, *overrides]))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ("transform=topk transform.share=0", "transform.share: got 0.0, must be above 0, at most 1"),
        ("transform=topk transform.share=1.01", "transform.share: got 1.01, must be above 0, at most 1"),
        ("transform=topk transform.share=nan", "transform.share: got nan, must be above 0, at most 1"),
        ("transform=quantize transform.bits=0", "transform.bits: got 0, must be a whole number from 1 to 32"),
        ("transform=quantize transform.bits=33", "transform.bits: got 33, must be a whole number from 1 to 32"),
        ("transform=clip_noise transform.clip_norm=0", "transform.clip_norm: got 0.0, must be a number > 0"),
        ("transform=clip_noise transform.clip_norm=nan", "transform.clip_norm: got nan, must be a number > 0"),
        ("transform=clip_noise transform.clip_norm=inf", "transform.clip_norm: got inf, must be finite, because it"),
        ("transform=clip_noise transform.noise_multiplier=-1", "transform.noise_multiplier: got -1.0, must be 0, or"),
        ("transform=clip_noise transform.noise_multiplier=nan", "transform.noise_multiplier: got nan, must be 0, or"),
        ("transform=clip_noise transform.delta=0", "transform.delta: got 0.0, must be above 0, below 1"),
        ("transform=clip_noise transform.delta=1", "transform.delta: got 1.0, must be above 0, below 1"),
        ("transform=clip_noise hparams.weighting=examples", "hparams.weighting: got 'examples', must be uniform"),
        ("transform=clip_noise algo=zhj", "transform: got 'clip_noise', must be one without noise: zhj's server"),
        ("transform=row_clip_noise transform.clip_norm=0", "transform.clip_norm: got 0.0, must be a number > 0"),
        ("transform=row_clip_noise transform.clip_norm=inf", "transform.clip_norm: got inf, must be finite, because"),
        (
            "transform=row_clip_noise algo=ditto",
            "transform: got 'row_clip_noise', must be another: ditto takes several",
        ),
        ("transform=row_clip_noise hparams.client_lr=auto", "hparams.client_lr: got 'auto', must be a number > 0: L"),
        ("transform=row_clip_noise hparams.client_lr=1/L", "hparams.client_lr: got '1/L', must be a number > 0: L"),
        (
            "transform=row_clip_noise hparams.rounds=auto",
            "hparams.rounds: got 'auto', must be a whole number >= 1: the",
        ),
        (
            "transform=quantize algo=feddr",
            "transform: got 'quantize', must be none or topk: feddr's server accumulates",
        ),
        ("transform=topk transform.name=quantize", "transform.name: got 'quantize', must be topk"),
        ("transform=topk +transform.k=3", "transform.k: no such key; allowed: name, share"),
    ],
)
def test_impossible_transforms_are_refused_in_one_line(run_of, overrides, complaint):
    with pytest.raises(UserError) as problem:
        run_of(*overrides.split())
    assert str(problem.value).startswith(complaint)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("task.drop=age", "task.drop: got 'age', must be a list, such as [age]"),
        ("task.drop={a: 1}", "task.drop: got a mapping, must be a list"),
        ("task.drop=[[1]]", "task.drop[0]: got [1], must be a text"),
        ("task.categorical=[a,[1]]", "task.categorical[1]: got [1], must be a text"),
        ("task.map=[{a: b}]", "task.map[0]: got {'a': 'b'}, must be a text"),
        ("task.missing=[null]", "task.missing[0]: got null, must have a value"),
        ("task.loss=[a]", "task.loss: got ['a'], must be a text"),
        ("model.hidden=[[3]]", "model.hidden[0]: got [3], must be a whole number"),
    ],
)
def test_lists_of_texts_have_texts_as_elements(run_of, override, complaint):
    """OmegaConf accepts lists and mappings as elements of a list of texts."""
    with pytest.raises((UserError, OmegaConfBaseException, HydraException)) as problem:
        Run.of(compose("config", overrides=["task=custom", "task.path=t.csv", "model=mlp", override]))
    assert one_line(problem.value) == complaint


def test_a_path_refuses_hidden_rows(run_of):
    overrides = ["experiment=path", "task=lasso", *SMALL, "hparams.client_lr=0.1", "transform=row_clip_noise"]
    with pytest.raises(UserError) as problem:
        PathRun.of(compose("config", overrides=overrides))
    assert str(problem.value).startswith("transform: got 'row_clip_noise', must be none with experiment=path")


def test_the_description_includes_the_transform(run_of):
    assert "transform topk share 0.1, client_lr" in run_of("transform=topk").describe()
    clipped = run_of("transform=clip_noise", "transform.noise_multiplier=0", "transform.clip_norm=inf").describe()
    assert "transform clip_noise clip_norm inf, noise_multiplier 0, delta 1e-05" in clipped
    for overrides in ([], ["algo=optimum", "transform=topk"]):
        assert "transform" not in run_of(*overrides).describe()
