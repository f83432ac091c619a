from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.reporting.claims.evidence import scale_margins
from fco_cli.reporting.claims.ledger import (
    MIXED,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    as_markdown,
    evaluate,
    headline,
    read_claims,
    table_markdown,
)  # fmt: skip
from fco_cli.reporting.records.studies import collect
from fco_cli.studies.yuan2021 import Yuan2021

PAPER = Yuan2021()
PERFECT = {"reaches": {"algo": "feddualavg", "metric": "f1", "at_least": 1, "before_round": 3}}


def claim(test, experiments=("lasso_i",), **fields):
    entry = {"id": "it", "source": "here", "text": "It is so", "experiments": list(experiments), "test": test, **fields}
    return read_claims(yaml.safe_dump([entry]), tests=PAPER.all_tests)


def judged(records, claims):
    """Treat every study as complete, unless its profile is smaller."""
    decides = {"paper": ""}
    results = collect([records.root])
    return evaluate(claims, results, lambda study: decides.get(study.profile, "only a part"), PAPER.all_tests)


def verdict(records, test, experiment="lasso_i"):
    (entry,) = judged(records, claim(test, [experiment]))
    return entry


def test_verdicts_of_one_seed(records):
    records.add(experiment="lasso_i", f1=(0, 0.5, 1, 1))
    records.add(experiment="lasso_ii", f1=(0, 0.5, 0.9, 1))
    entries = judged(records, claim(PERFECT, ["lasso_i", "lasso_ii", "lasso_iii"]))
    assert [entry.label for entry in entries] == ["reproduced (1 of 1)", "not reproduced (0 of 1)", "not run"]
    assert [entry.measured for entry in entries] == [
        "FedDualAvg round 2", "FedDualAvg round 3", "no records of lasso_iii",
    ]  # fmt: skip
    assert entries[0].claimed == "F1 >= 1 before round 3, in 0.95 of the rounds from then on"
    assert headline(entries) == (
        "1 of 2 claims judged from these records are reproduced (1 not reproduced); 1 need experiments not run here"
    )


def test_verdict_counts_seeds_and_reports_the_measured_range(records):
    for seed, f1 in enumerate([(0, 0.5, 1, 1), (0, 1, 1, 1), (0, 0.5, 0.9, 1)]):
        records.add(seed=seed, f1=f1)
    entry = verdict(records, PERFECT)
    assert (entry.verdict, entry.label) == (MIXED, "mixed (2 of 3)")
    assert entry.measured == "FedDualAvg round 2 (1–3)"
    assert headline([entry]) == "0 of 1 claims judged from these records are reproduced (1 mixed)"
    records.add(seed=3, f1=(0, 0, 0, 0.9))
    assert verdict(records, PERFECT).measured == "FedDualAvg round 2 (1–3), never on 1 of 4 seeds"


def test_a_level_reached_only_briefly_does_not_count(records):
    records.add(f1=(0, 1, 0.9, 0.9))
    assert verdict(records, PERFECT).measured == "FedDualAvg never"


def test_incomplete_study_shows_numbers_without_a_verdict(records):
    records.add(profile="quick", f1=(0, 1, 1, 1))
    entry = verdict(records, PERFECT)
    assert (entry.verdict, entry.measured) == (NOT_RUN, "only a part: FedDualAvg round 1")


def test_claim_about_a_diverged_algorithm_is_not_reproduced(records):
    records.add(diverged=1)
    entry = verdict(records, PERFECT)
    assert entry.label == "not reproduced (0 of 1)"
    assert entry.measured == "all 1 learning-rate pairs of FedDualAvg diverged"


def test_a_missing_algorithm_or_metric_is_not_run(records):
    records.add("fedmid")
    assert verdict(records, PERFECT).verdict == NOT_RUN
    assert verdict(records, {"final": {"algo": "fedmid", "metric": "rank", "equals": 1}}).verdict == NOT_RUN


def add_two(records, mine=(0, 0.5, 0.9, 0.9), other=(0, 0.2, 0.5, 0.6)):
    records.add("feddualavg", f1=mine)
    records.add("fedmid", f1=other)


# Kind of test, its arguments, and whether it holds for the two curves above.
KINDS = [
    ("final", {"algo": "feddualavg", "at_least": 0.9}, True),
    ("final", {"algo": "feddualavg", "at_most": 0.8}, False),
    ("final", {"algo": "fedmid", "equals": 0.55}, True),
    ("reaches", {"algo": "feddualavg", "at_least": 0.5, "before_round": 2}, True),
    ("reaches", {"algo": "feddualavg", "at_least": 0.5, "before_round": 1}, False),
    ("reaches", {"algo": "feddualavg", "equals": 0.5, "before_round": 9, "stays": 0.1}, True),
    ("reaches", {"algo": "feddualavg", "equals": 0.5, "before_round": 9}, False),  # the level must be kept
    ("reaches", {"algo": "feddualavg", "at_most": 0.5, "before_round": 1}, False),  # the start is not included
    ("always", {"algos": ["feddualavg", "fedmid"], "at_most": 0.9}, True),
    ("always", {"algos": ["feddualavg", "fedmid"], "at_most": 0.6}, False),
    ("never_reaches", {"algos": ["fedmid"], "at_least": 0.7, "before_round": 500}, True),
    ("never_reaches", {"algos": ["fedmid", "feddualavg"], "at_least": 0.7, "before_round": 500}, False),
    ("highest", {"algo": "feddualavg", "than": ["fedmid"]}, True),
    ("highest", {"algo": "fedmid", "than": ["feddualavg"]}, False),
    ("highest", {"algo": "feddualavg", "than": ["fedmid"], "margin": 0.3}, True),
    ("highest", {"algo": "feddualavg", "than": ["fedmid"], "margin": 0.4}, False),
    ("highest", {"algo": "feddualavg", "than": ["fedmid"], "factor": 2, "at_round": 1}, True),
    ("highest", {"algo": "feddualavg", "than": ["fedmid"], "factor": 2}, False),
    ("lowest", {"algo": "fedmid", "than": ["feddualavg"], "factor": 1.5}, True),
    ("lowest", {"algo": "fedmid", "than": ["feddualavg"], "factor": 2}, False),
    ("lowest", {"algo": "feddualavg", "than": ["fedmid"]}, False),
    ("closest_to", {"algo": "fedmid", "reference": "feddualavg", "within": 0.4}, True),
    ("closest_to", {"algo": "fedmid", "reference": "feddualavg", "within": 0.3}, False),
    ("same_trajectory", {"algo": "fedmid", "reference": "feddualavg", "within": 0.4}, True),
    ("same_trajectory", {"algo": "fedmid", "reference": "feddualavg", "within": 0.35}, False),
    ("final", {"algo": "feddualavg", "at_most": 0.6, "at_round": 1}, True),
    ("fastest", {"algo": "feddualavg", "than": ["fedmid"], "at_least": 0.5}, True),
    ("fastest", {"algo": "fedmid", "than": ["feddualavg"], "at_least": 0.5}, False),
    ("fastest", {"algo": "feddualavg", "than": ["fedmid"], "at_least": 0.95}, False),  # no algorithm reaches the level
]


@pytest.mark.parametrize(("kind", "arguments", "holds"), KINDS)
def test_every_kind_of_test(records, kind, arguments, holds):
    add_two(records)
    entry = verdict(records, {kind: {"metric": "f1", **arguments}})
    assert entry.verdict == (REPRODUCED if holds else NOT_REPRODUCED)
    assert entry.claimed
    assert entry.measured


def test_near_optimum_is_a_relative_distance(records):
    records.add("feddualavg", objective=(10, 5, 4, 3.3))
    records.add("optimum", f1=(0, 1), objective=(10, 3))
    reaches = {"algo": "feddualavg", "metric": "objective", "before_round": 4}
    assert verdict(records, {"reaches": {**reaches, "near_optimum": 0.1}}).verdict == REPRODUCED
    assert verdict(records, {"reaches": {**reaches, "near_optimum": 0.05}}).verdict == NOT_REPRODUCED


def test_rounds_are_compared_between_experiments(records):
    records.add(experiment="lasso_i", f1=(0, 0.5, 1, 1))
    records.add(experiment="lasso_iv", f1=(0, 0.2, 0.5, 1), density=(0.5, 0.6, 0.7, 0.7))
    f1 = {"algos": ["feddualavg"], "metric": "f1", "reference": "lasso_i"}
    later = verdict(records, {"later_than_in": {**f1, "of_its_way": 0.9}}, "lasso_iv")
    assert (later.verdict, later.measured) == (REPRODUCED, "FedDualAvg round 3; FedDualAvg in lasso_i round 2")
    assert verdict(records, {"later_than_in": {**f1, "of_its_way": 0.9, "factor": 2}}, "lasso_iv").held == 0
    assert verdict(records, {"sooner_than_in": {**f1, "at_least": 1}}, "lasso_iv").verdict == NOT_REPRODUCED
    denser = {"higher_than_in": {**f1, "metric": "density", "margin": 0.1}}
    assert verdict(records, denser, "lasso_iv").verdict == REPRODUCED
    alone = {"later_than_in": {**f1, "of_its_way": 0.9, "reference": "lasso_iii"}}
    assert verdict(records, alone, "lasso_iv").verdict == NOT_RUN
    records.add(experiment="lasso_iii", profile="quick", f1=(0, 1, 1, 1))
    entry = verdict(records, alone, "lasso_iv")
    assert (entry.verdict, entry.measured) == (NOT_RUN, "lasso_iii: only a part")


def test_lag_behind_a_leader_is_compared_between_experiments(records):
    for experiment, behind in (("lasso_i", (0, 0, 0, 1)), ("lasso_ii", (0, 0, 1, 1))):
        records.add("feddualavg", experiment=experiment, f1=(0, 1, 1, 1))
        records.add("feddualavg_osp", experiment=experiment, f1=behind)
    arguments = {
        "algo": "feddualavg_osp",
        "leader": "feddualavg",
        "metric": "f1",
        "at_least": 1,
        "reference": "lasso_i",
    }
    entry = verdict(records, {"closer_behind_than_in": arguments}, "lasso_ii")
    assert (entry.verdict, entry.measured) == (REPRODUCED, "behind round 1; behind in lasso_i round 2")


def test_best_learning_rates(records):
    records.add("feddualavg", 0.01, 1.0, f1=(0, 1, 1, 1))
    records.add("feddualavg", 0.001, 1.0, f1=(0, 0.1, 1, 1))
    records.add("feddualavg", 0.1, 1.0, diverged=1, smoothness=2000.0)
    records.add("fedmid", 0.001, 0.3, f1=(0, 0.1, 0.2, 0.3))

    def best(algo, client_lr, server_lr=1.0):
        arguments = {"algo": algo, "client_lr": client_lr, "server_lr": server_lr}
        return verdict(records, {"best_learning_rate": arguments})

    assert best("feddualavg", 0.01).verdict == NOT_REPRODUCED  # another pair ties with it
    assert "tied with 1 more" in best("feddualavg", 0.01).measured
    assert best("fedmid", 0.001, 0.3).verdict == REPRODUCED
    assert "(0.1, 1) diverged" in best("feddualavg", 0.1).measured
    assert best("feddualavg", 0.003).verdict == NOT_RUN  # not on the grid
    larger = {"larger_best_rate": {"algo": "feddualavg", "than": ["fedmid"]}}
    assert verdict(records, larger).verdict == REPRODUCED
    assert verdict(records, larger).measured == "FedDualAvg 0.001 to 0.01; FedMiD 0.0003"
    smaller = {"algo": "fedmid", "than": ["feddualavg"]}
    assert verdict(records, {"larger_best_rate": smaller}).verdict == NOT_REPRODUCED
    records.add("fedmid", 0.003, 1.0, f1=(0, 0.1, 0.2, 0.3))  # tied, and larger than a tied pair of FedDualAvg
    assert verdict(records, larger).verdict == NOT_REPRODUCED


def test_claims_about_rates_use_the_choice_of_each_seed(records):
    for seed, better in ((0, 0.001), (1, 0.003)):
        for client_lr in (0.001, 0.003):
            score = 0.9 if client_lr == better else 0.8
            records.add(client_lr=client_lr, seed=seed, f1=(0, 0, score, score))
    arguments = {"algo": "feddualavg", "client_lr": 0.001, "server_lr": 1}
    entry = verdict(records, {"best_learning_rate": arguments})
    assert entry.label == "mixed (1 of 2)"
    assert entry.measured == "FedDualAvg (0.001, 1) (1 times), (0.003, 1) (1 times)"


def test_rules_agree(records):
    select = {"second": "density"}
    records.add(client_lr=0.001, select=select, f1=(0, 0, 0.9, 0.9), density=(1, 1, 0.5, 0.5))
    records.add(client_lr=0.003, select=select, f1=(0, 0, 0.8, 0.8), density=(1, 1, 0.4, 0.4))
    agree = verdict(records, {"rules_agree": {"algos": ["feddualavg"]}})
    assert (agree.verdict, agree.measured) == (NOT_REPRODUCED, "FedDualAvg (0.001, 1) and (0.003, 1)")
    good = verdict(records, {"final": {"algo": "feddualavg", "metric": "f1", "at_least": 0.9}})
    assert good.verdict == REPRODUCED
    assert good.sensitivity == "half the margin 0 of 1, twice the margin 1 of 1, rates by the second rule 0 of 1"


def test_twin_is_judged_and_compared_with_twins(records):
    for name, fedmid in (("lasso_i", 0.5), ("lasso_iv", 0.4)):
        records.add("fedmid", 0.001, experiment=name, f1=(0, 0, fedmid, fedmid))
        twin = {"experiment": f"{name}_extended", "twin_of": name}
        records.add("fedmid", 0.001, f1=(0, 0, fedmid, fedmid), **twin)
        records.add("fedmid", 0.0003, f1=(0, 0, 0.9, 1), **twin)
    poor = claim({"final": {"algo": "fedmid", "metric": "f1", "at_most": 0.5}})
    assert [(entry.experiment, entry.verdict) for entry in judged(records, poor)] == [
        ("lasso_i", REPRODUCED), ("lasso_i_extended", NOT_REPRODUCED),
    ]  # fmt: skip
    inside = verdict(records, {"inside_the_grid": {"algos": ["fedmid"]}}, "lasso_i_extended")
    assert (inside.verdict, inside.measured) == (NOT_REPRODUCED, "FedMiD (0.0003, 1)")
    later = {"algos": ["fedmid"], "metric": "f1", "reference": "lasso_i", "of_its_way": 0.9}
    _, twin = judged(records, claim({"later_than_in": later}, ["lasso_iv"]))
    assert twin.measured == "FedMiD round 2; FedMiD in lasso_i_extended round 2"
    assert table_markdown(judged(records, poor))[2:] == [
        "| other | 1 |  |  |  |",
        "| other, two smaller client rates |  |  | 1 |  |",
    ]


def test_most_pairs_and_most_robust(records):
    """Test with two sparse pairs of three in the paper's range; pairs outside it are ignored."""
    for client_lr, density in ((0.003, 0.1), (0.01, 0.2), (0.3, 0.9)):
        records.add("feddualavg", client_lr, 1.0, density=(1, 1, density, density))
    records.add("feddualavg", 0.001, 1.0, density=(1, 1, 0.9, 0.9))
    records.add("feddualavg", 1.0, 1.0, density=(1, 1, 0.9, 0.9))

    def most(algos=("feddualavg",), **levels):
        return verdict(records, {"most_pairs": {"algos": list(algos), "levels": levels}})

    entry = most(density={"at_most": 0.5}, f1={"at_least": 0.6})
    assert (entry.verdict, entry.measured) == (REPRODUCED, "FedDualAvg 0.6667")
    assert entry.claimed == "most pairs end with density <= 0.5 and F1 >= 0.6"
    assert most(density={"at_most": 0.15}).verdict == NOT_REPRODUCED
    assert most(density={"at_least": 0.15, "at_most": 0.5}).verdict == NOT_REPRODUCED
    assert most(density={"at_most": 0.5}, f1={"at_least": 0.8}).verdict == NOT_REPRODUCED
    assert most(["feddualavg", "fedmid"], density={"at_most": 0.5}).verdict == NOT_RUN
    for client_lr in (0.03, 0.1):  # no level holds for a diverged pair
        records.add("feddualavg", client_lr, 1.0, diverged=1, density=(1, 1, 0.1, 0.1))
    assert most(density={"at_most": 0.5}).measured == "FedDualAvg 0.4"
    assert most(density={"at_most": 0.5}).verdict == NOT_REPRODUCED
    records.add("fedmid", 0.01, 1.0, density=(1, 1, 0.9, 0.9))
    robust = {"algo": "feddualavg", "than": ["fedmid"], "levels": {"density": {"at_most": 0.5}}}
    assert verdict(records, {"most_robust": robust}).verdict == REPRODUCED
    assert verdict(records, {"most_robust": {**robust, "levels": {"density": {"at_least": 0.9}}}}).held == 0


def test_sparsity_of_the_average(records):
    folder = records.add("fedmid")
    densifies = {"averaging_densifies": {"algo": "fedmid", "factor": 2}}
    assert verdict(records, densifies).verdict == NOT_RUN
    clients = np.eye(4)
    np.savez(folder / "clients.npz", weights=np.vstack([clients, clients.mean(axis=0)]))
    entry = verdict(records, densifies)
    assert (entry.verdict, entry.measured) == (REPRODUCED, "a client 0.25; the average 1; times 4")
    kept = {"averaging_keeps_sparsity": {"algo": "fedmid", "within": 0.1}}
    assert verdict(records, kept).verdict == NOT_REPRODUCED


THEORY = {"status": "finished", "cells": 4, "violated": {}, "identity_error": {}, "seconds": 1.0}


def test_only_the_shipped_grid_of_theory_decides(records):
    from fco_cli.reporting.records.design import shipped_theory

    folder = records.root / "theory"
    folder.mkdir(parents=True)
    table = [["statement", "cells", "violated", "smallest slack"], ["theorem 1", "320", "0", "2.5"]]
    holds = claim({"bound_holds": {"statement": "theorem 1"}}, ["theory"])
    (entry,) = judged(records, holds)
    assert (entry.verdict, entry.measured) == (NOT_RUN, "no records of theory")
    (folder / "theory.md").write_text("")
    for grid, label in ((shipped_theory(), "reproduced (1 of 1)"), ({"seeds": 2}, "not run")):
        (folder / "result.json").write_text(json.dumps({"table": table, "config": yaml.safe_dump(grid), **THEORY}))
        (entry,) = judged(records, holds)
        assert entry.label == label
    assert shipped_theory()["seeds"] == 16


def test_page_explains_claims_that_are_not_reproduced(records):
    records.add(f1=(0, 0.5, 0.9, 1))
    page = as_markdown(judged(records, claim(PERFECT, why_not="The data differ.")))
    assert "| lasso_i | **not reproduced (0 of 1)** | F1 >= 1 before round 3" in page
    assert "Why not: The data differ." in page
    page = as_markdown(judged(records, claim(PERFECT, ["lasso_iii"], why_not="The data differ.")))
    assert "The data differ." not in page


@pytest.mark.parametrize(
    ("arguments", "half", "twice"),
    [
        ({"margin": 0.05}, {"margin": 0.025}, {"margin": 0.1}),
        ({"factor": 1.5}, {"factor": 1.25}, {"factor": 2.0}),
        ({"at_least": 0.9}, {"at_least": 0.95}, {"at_least": 0.8}),
        ({"at_least": 1, "before_round": 100}, None, None),  # a perfect score and the rounds are given by the paper
        ({"equals": 16}, None, None),
    ],
)
def test_margins(arguments, half, twice):
    assert scale_margins(arguments, 0.5) == (half and pytest.approx(half))
    assert scale_margins(arguments, 2.0) == (twice and pytest.approx(twice))


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"guess": {}}, "unknown test 'guess', must be one of reaches"),
        ({"final": {"algo": "fedmid"}}, "metric"),
        ({"final": {"algo": "fedmid", "metric": "f1"}}, "give one of at_least"),
        ({"final": {"algo": "fedmid", "metric": "f1", "above": 1}}, "above"),
        ({"closest_to": {"algo": "a", "reference": "b", "metric": "f1", "within": 1, "by": 2}}, "by"),
    ],
)
def test_invalid_entry_raises_user_error_with_its_id(test, message):
    with pytest.raises(UserError, match="claims: it: ") as refused:
        claim(test)
    assert message in str(refused.value)


def test_shipped_claims_name_existing_experiments():
    claims = PAPER.claims
    assert len({claim.id for claim in claims}) == len(claims)
    experiments = set(options_of("experiment"))
    assert {name for claim in claims for name in claim.experiments} <= experiments
    for one in claims:
        (arguments,) = one.test.values()
        assert {arguments.get("reference", "fedmid")} <= experiments | set(options_of("algo"))
        assert one.group != "other"


def test_shipped_claims_use_every_test_and_cover_every_experiment():
    claims = PAPER.claims
    tested = {name for claim in claims for name in claim.experiments}
    ours = (
        "fmri_sim",
        "digits",
        "hidden_settings",
        "successors",
        "few_rounds",
        "path",
        "glm",
        "table1",
    )  # not in the paper
    assert {name for name in options_of("experiment") if not name.startswith(ours)} <= tested
    assert {kind for claim in claims for kind in claim.test} == set(PAPER.all_tests)


ALGORITHMS = ("feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp", "optimum")


@pytest.mark.parametrize("missing", ALGORITHMS)
@pytest.mark.parametrize("experiment", ["lasso_i", "lasso_i_extended", "nuclear_ii"])
def test_unfinished_sweep_without_an_algorithm_is_not_run(records, experiment, missing):
    """Test that every claim of the experiment is "not run" instead of raising an exception."""
    twin = experiment.removesuffix("_extended") if experiment.endswith("_extended") else ""
    for seed in (0, 1):
        for algo in ALGORITHMS:
            if (algo, seed) != (missing, 1):
                records.add(algo, seed=seed, experiment=experiment, twin_of=twin, f1=(0, 0.5, 1, 1), rank=(9, 3, 2, 2))
    entries = [entry for entry in PAPER.ledger(collect([records.root])) if entry.experiment == experiment]
    assert len(entries) > 5
    assert {entry.verdict for entry in entries} == {NOT_RUN}
