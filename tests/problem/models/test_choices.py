"""The group `model`: every option on tasks that support it, one line for those that do not."""

from __future__ import annotations

import pytest

from fco_cli.config import PathRun, Run
from fco_cli.config.compose import compose
from fco_cli.errors import UserError
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.models.network import Network

SPARSE = "1 1:1 3:2\n0 2:1\n1 1:2\n0 3:1\n"
TABLE = "client,p,q,r,s,y\n" + "".join(f"{'ab'[k % 2]},{k % 3},{k % 5},{k % 7},{k % 4},{k % 2}\n" for k in range(24))


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Return the model of a run with these overrides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "sparse").mkdir()
    for client in "ab":
        (tmp_path / "sparse" / f"{client}.svm").write_text(SPARSE)

    def build(*overrides: str):
        config = compose(overrides)
        run = (Run if config.path is None else PathRun).of(config)
        return run.task.data(run.seed, run.hparams.dtype).model

    return build


CUSTOM = ["task=custom", "task.path=table.csv", "hparams.clients_per_round=2"]


def test_a_network_on_vectors_has_the_chosen_widths(model):
    assert model("task=digits", "model=mlp", "model.hidden=[8,4]") == Network(64, (8, 4), 10, 0)
    assert model(*CUSTOM, "model=mlp", "seed=3") == Network(4, (32,), 1, 3)
    assert model("task=digits", "task.hidden=[8]", "model=linear") == Linear(64, 10)  # the option takes precedence


def test_a_matrix_of_weights_has_the_chosen_shape(model):
    assert model(*CUSTOM, "model=low_rank").weights_shape == (2, 2)
    assert model(*CUSTOM, "model=low_rank", "model.columns=4").weights_shape == (1, 4)
    few = ["task.clients=5", "hparams.clients_per_round=5", "task.samples=8", "task.dimension=4"]
    matrix, vector = ["task=nuclear", "task.rank=2", *few], ["task=lasso", "task.ones=2", *few]
    assert model(*matrix, "model=low_rank") == model(*matrix)
    assert model(*vector, "model=linear").layout == model(*vector).layout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "task=lasso task.samples=8 model=mlp",
            "model: got 'mlp', must be auto: the metrics of lasso need its own model",
        ),
        ("task=nuclear task.samples=8 model=linear", "model: got 'linear', must be auto: the metrics of nuclear need"),
        ("task=fmri_sim model=mlp", "model: got 'mlp', must be auto: the metrics of fmri_sim need"),
        ("task=digits model=low_rank", "model: got 'low_rank', must be linear: the weights of 10 classes"),
        ("task=digits model=mlp model.hidden=[]", "model.hidden: got .*use model=linear"),
        ("task=digits model=mlp model.hidden=[0]", "model.hidden: got .*whole numbers >= 1"),
        ("task=digits model=mlp task.start=zeros", "task.start: got 'zeros', must be null or glorot"),
        (
            "task=custom task.path=table.csv model=low_rank model.rows=3",
            "model.rows: got '3 x 1', must be .* 4 entries",
        ),
        ("task=custom task.path=table.csv task.site_intercept=true model=mlp", "model: got 'mlp'.*site_intercept"),
        ("task=custom task.path=sparse task.standardize=false model=mlp", "model: got 'mlp'.*rows are sparse"),
        ("task=digits model=mlp model.name=linear", "model.name: got 'linear', must be mlp"),
        ("task=digits +task.model=mlp", "task.model: no such key"),
        ("experiment=path task.path=table.csv model=mlp", "model: got 'mlp', must be convex with experiment=path"),
    ],
)
def test_combinations_without_a_meaning_are_refused(model, overrides, message):
    with pytest.raises(UserError, match=message):
        model(*overrides.split(), *([] if "custom" not in overrides else ["hparams.clients_per_round=2"]))


def test_the_model_is_part_of_the_identity():
    def identities(*overrides: str):
        return Run.of(compose(["task=digits", *overrides])).identity

    own, linear, small, large = (
        identities(*words.split()) for words in ("", "model=linear", "model=mlp model.hidden=[4]", "model=mlp")
    )
    assert len({one.run for one in (own, linear, small, large)}) == 4
    assert len({one.data for one in (own, linear, small, large)}) == 4
