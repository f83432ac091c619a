from __future__ import annotations

import math

import pytest

from fco_cli.errors import UserError


def test_valid_hparams_are_accepted(make_hparams):
    hparams = make_hparams()
    assert (hparams.eval_every, hparams.weighting, hparams.dtype) == (1, "uniform", "float64")


@pytest.mark.parametrize("key", ["client_lr", "server_lr"])
@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
def test_rates_are_positive_and_finite(make_hparams, key, bad):
    with pytest.raises(
        UserError, match=rf"^hparams\.{key}: got .*, must be a number > 0(, auto or a multiple of 1/L .*)?$"
    ):
        make_hparams(**{key: bad})


def test_a_client_rate_may_be_auto(make_hparams):
    assert make_hparams(client_lr="auto").client_lr == "auto"
    assert repr(make_hparams(client_lr=1).client_lr) == "1.0"


@pytest.mark.parametrize(
    ("key", "allowed"),
    [("client_lr", "a number > 0, auto or a multiple of 1/L such as 0.3/L"), ("server_lr", "a number > 0")],
)
def test_other_texts_are_not_rates(make_hparams, key, allowed):
    with pytest.raises(UserError) as caught:
        make_hparams(**{key: "fast"})
    assert str(caught.value) == f"hparams.{key}: got 'fast', must be {allowed}"


@pytest.mark.parametrize(
    "key", ["rounds", "clients_per_round", "batch_size", "local_epochs", "eval_every", "most_rounds"]
)
@pytest.mark.parametrize("bad", [0, -3])
def test_counts_are_at_least_one(make_hparams, key, bad):
    with pytest.raises(UserError, match=rf"^hparams\.{key}: got {bad}, must be a whole number >= 1( or (auto|all))?$"):
        make_hparams(**{key: bad})


@pytest.mark.parametrize(("key", "bad"), [("weighting", "equal"), ("last_batch", "shrink"), ("dtype", "float16")])
def test_choices(make_hparams, key, bad):
    with pytest.raises(UserError, match=rf"^hparams\.{key}: got '{bad}'"):
        make_hparams(**{key: bad})


def test_rounds_may_be_auto_and_clients_all(make_hparams):
    hparams = make_hparams(rounds="auto", clients_per_round="all", most_rounds=70)
    assert (hparams.until_converged, hparams.last_round, hparams.sampled(9)) == (True, 70, 9)
    hparams = make_hparams()
    assert (hparams.until_converged, hparams.last_round, hparams.sampled(9)) == (False, 4, 2)


@pytest.mark.parametrize(
    ("key", "bad"), [("rounds", "all"), ("clients_per_round", "auto"), ("tolerance", 0.0), ("tolerance", math.nan)]
)
def test_other_texts_and_tolerances_are_refused(make_hparams, key, bad):
    with pytest.raises(UserError, match=rf"^hparams\.{key}: got '?{bad}'?, must be "):
        make_hparams(**{key: bad})
