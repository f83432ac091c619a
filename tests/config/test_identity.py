"""When two runs are the same."""

from __future__ import annotations

import sys
import textwrap

import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.config.identity import _meaning, source_of

SMALL = ["task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]


@pytest.fixture(scope="module")
def identity():
    register()

    def of(*overrides, small=SMALL):
        with initialize_config_module("fco_cli.conf", version_base="1.3"):
            return Run.of(compose("config", overrides=[*small, *overrides])).identity

    return of


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("threads=1", set()),
        ("force=true", set()),
        ("output_dir=elsewhere", set()),
        ("task.strength=0.7", {"problem", "family", "run"}),  # by way of the regularizer, whose default it is
        ("task.radius=3", set()),
        ("hparams.client_lr=0.5", {"run"}),
        ("hparams.server_lr=0.5", {"run"}),
        ("regularizer.strength=0.7", {"problem", "family", "run"}),
        ("hparams.batch_size=7", {"stack", "run"}),
        ("hparams.normalize_steps=false", {"stack", "run"}),
        ("record_clients=true", {"stack", "run"}),
        ("record_path=true", {"stack", "run"}),
        ("algo=fedmid", {"stack", "run"}),
        ("transform=none", set()),
        ("transform=topk", {"stack", "run"}),
        ("hparams.weighting=examples", {"problem", "family", "stack", "run"}),
        ("seed=1", {"data", "problem", "stack", "run"}),
        ("task.samples=16", {"data", "problem", "family", "stack", "run"}),
        ("hparams.dtype=float32", {"data", "problem", "family", "stack", "run"}),
        ("regularizer=l2_ball", {"problem", "family", "stack", "run"}),
    ],
)
def test_what_changes_what(identity, override, changed):
    usual, other = vars(identity()), vars(identity(override))
    assert {key for key in usual if usual[key] != other[key]} == changed


def test_noise_on_evaluations_makes_another_run_and_sites_alone_do_not(identity, monkeypatch):
    from fco_cli.federation.task import CustomAtSites

    monkeypatch.setattr(CustomAtSites, "contents", lambda task: {"path": "the rows"})
    where = ["task=custom", "task.loss=logistic", "task.standardize=false", "task.fill=refuse", "federation=flare"]
    usual, noisy, noisier = (
        identity(*where, "federation.sites=[a,b,c]", "hparams.clients_per_round=all", *more, small=[])
        for more in ([], ["federation.evaluation_noise=1"], ["federation.evaluation_noise=2"])
    )
    assert usual.problem == noisy.problem
    assert len({one.run for one in (usual, noisy, noisier)}) == 3


def test_strength_by_the_task_or_by_the_regularizer_is_one_run(identity):
    assert identity("task.strength=0.3") == identity("regularizer.strength=0.3")


def test_an_option_varies_within_a_stack(identity):
    usual, other = identity("algo=fedavgm"), identity("algo=fedavgm", "algo.momentum=0.5")
    assert usual.stack == other.stack
    assert usual.run != other.run


def test_a_transforms_numbers_vary_within_a_stack(identity):
    usual, other = identity("transform=quantize"), identity("transform=quantize", "transform.bits=4")
    assert usual.stack == other.stack
    assert usual.run != other.run


def test_a_baseline_sends_no_messages(identity):
    assert identity("algo=centralized") == identity("algo=centralized", "transform=topk")


def test_auto_is_a_word_of_its_own(identity):
    """Whatever number comes of it; a stack may hold it beside numbers, and 1 is 1.0."""
    auto, other = identity("hparams.client_lr=auto"), identity("hparams.client_lr=0.003")
    assert auto.run != other.run
    assert auto.stack == other.stack
    assert identity("hparams.client_lr=1") == identity("hparams.client_lr=1.0")
    assert identity("algo=optimum") == identity("algo=optimum", "hparams.client_lr=auto")


def test_a_solver_has_no_rates(identity):
    rates = ["hparams.client_lr=0.5", "hparams.server_lr=0.5", "hparams.rounds=3", "hparams.normalize_steps=false"]
    assert identity("algo=optimum") == identity("algo=optimum", *rates)


def test_other_code_is_another_run(tmp_path, monkeypatch):
    """A user edits her algorithm and runs it again: comments and layout do not count, a number does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = '''
    class Mine:
        """Says what it does."""
        def step(self):
            return 1  # the step
    '''

    def digest(source):
        (tmp_path / "my_algorithm.py").write_text(textwrap.dedent(source))
        for cached in (_meaning,):
            cached.cache_clear()
        sys.modules.pop("my_algorithm", None)
        import linecache

        linecache.clearcache()
        import my_algorithm

        return source_of(my_algorithm.Mine())

    first = digest(text)
    assert digest(text.replace("Says what it does", "Says more").replace("# the step", "")) == first
    assert digest(text.replace("return 1", "return 2")) != first
