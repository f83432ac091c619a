"""A profile says how much of an experiment is run; where there is none, one line."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["task=lasso", "profile=quick"], "profile: got quick, which sets the scale of an experiment"),
        (["task=lasso", "profile=laptop"], "profile: got laptop, which sets the scale of an experiment"),
        (["-m", "task=lasso", "profile=quick"], "which needs experiment.near_best, and this sweep has none"),
        (["-m", "experiment=path", "profile=quick", "task.path=t.csv"], "and this sweep has none; choose another"),
        (["experiment=path", "profile=quick", "task.path=t.csv"], "must be paper for experiment=path"),
        (["-m", "experiment=path", "profile=smoke", "task.path=t.csv"], "must be paper for experiment=path"),
    ],
)
def test_a_profile_of_nothing(here, tmp_path, words, says):
    said = here(*words, cwd=tmp_path, code=2).err
    assert said.startswith("fco-run: profile: got ")
    assert says in said
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("*.json"))
