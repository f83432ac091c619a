from __future__ import annotations

import numpy as np
import pytest
import yaml

from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.reporting.claims import (
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    as_markdown,
    evaluate,
    read_claims,
    summary,
)  # fmt: skip
from fco_cli.reporting.studies import collect

PERFECT = {"reaches": {"algo": "feddualavg", "metric": "f1", "at_least": 1, "before_round": 3}}


def claim(test, experiments=("lasso_i",), **fields):
    entry = {"id": "it", "source": "here", "text": "It is so", "experiments": list(experiments), "test": test, **fields}
    return read_claims(yaml.safe_dump([entry]))


def verdict(records, test, experiment="lasso_i"):
    (entry,) = evaluate(claim(test, [experiment]), collect([records.root]))
    return entry


def test_the_three_verdicts(records):
    records.add(experiment="lasso_i", f1=(0, 0.5, 1, 1))
    records.add(experiment="lasso_ii", f1=(0, 0.5, 0.9, 1))
    entries = evaluate(claim(PERFECT, ["lasso_i", "lasso_ii", "lasso_iii"]), collect([records.root]))
    assert [entry.verdict for entry in entries] == [REPRODUCED, NOT_REPRODUCED, NOT_RUN]
    assert entries[0].measured.startswith("round 2;")
    assert entries[0].claimed == "F1 >= 1 before round 3"
    assert entries[1].measured.startswith("round 3;")
    assert entries[2].measured == "no records of lasso_iii"
    assert summary(entries) == "1 reproduced, 1 not reproduced, 1 not run"


def test_fewer_rounds_than_the_papers_decide_nothing(records):
    records.add(profile="quick", f1=(0, 1, 1, 1))
    entry = verdict(records, PERFECT)
    assert entry.verdict == NOT_RUN
    assert "only at profile quick: round 1" in entry.measured


def test_an_algorithm_that_always_diverged_refutes(records):
    records.add(diverged=1)
    entry = verdict(records, PERFECT)
    assert entry.verdict == NOT_REPRODUCED
    assert entry.measured == "all 1 runs of FedDualAvg diverged"


def test_a_missing_algorithm_or_metric_is_not_run(records):
    records.add("fedmid")
    assert verdict(records, PERFECT).verdict == NOT_RUN
    assert verdict(records, {"final": {"algo": "fedmid", "metric": "rank", "equals": 1}}).verdict == NOT_RUN


def add_two(records, mine=(0, 0.5, 0.9, 0.9), other=(0, 0.2, 0.5, 0.6)):
    records.add("feddualavg", f1=mine)
    records.add("fedmid", f1=other)


# A test of the ledger's vocabulary: the arguments, and whether they hold of the two curves above.
KINDS = [
    ("final", {"algo": "feddualavg", "at_least": 0.9}, True),
    ("final", {"algo": "feddualavg", "at_most": 0.8}, False),
    ("final", {"algo": "fedmid", "equals": 0.55}, True),
    ("reaches", {"algo": "feddualavg", "at_least": 0.5, "before_round": 2}, True),
    ("reaches", {"algo": "feddualavg", "at_least": 0.5, "before_round": 1}, False),
    ("reaches", {"algo": "feddualavg", "equals": 0.5, "before_round": 9}, True),
    ("reaches", {"algo": "feddualavg", "equals": 0.5, "before_round": 9, "stays": 0.95}, False),
    ("reaches", {"algo": "feddualavg", "at_most": 0.5, "before_round": 1}, False),  # the start does not count
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
    ("fastest", {"algo": "feddualavg", "than": ["fedmid"], "at_least": 0.5}, True),
    ("fastest", {"algo": "fedmid", "than": ["feddualavg"], "at_least": 0.5}, False),
    ("fastest", {"algo": "feddualavg", "than": ["fedmid"], "at_least": 0.95}, False),  # none gets there
]


@pytest.mark.parametrize(("kind", "arguments", "holds"), KINDS)
def test_the_vocabulary(records, kind, arguments, holds):
    add_two(records)
    entry = verdict(records, {kind: {"metric": "f1", **arguments}})
    assert entry.verdict == (REPRODUCED if holds else NOT_REPRODUCED)
    assert entry.claimed
    assert entry.measured


def test_near_the_optimum_is_relative_to_it(records):
    records.add("feddualavg", objective=(10, 5, 4, 3.3))
    records.add("optimum", f1=(0, 1), objective=(10, 3))
    reaches = {"algo": "feddualavg", "metric": "objective", "before_round": 4}
    assert verdict(records, {"reaches": {**reaches, "near_optimum": 0.1}}).verdict == REPRODUCED
    assert verdict(records, {"reaches": {**reaches, "near_optimum": 0.05}}).verdict == NOT_REPRODUCED


def test_rounds_are_compared_between_experiments(records):
    records.add(experiment="lasso_i", f1=(0, 0.5, 1, 1))
    records.add(experiment="lasso_iv", f1=(0, 0.2, 0.5, 1))
    arguments = {"algos": ["feddualavg"], "metric": "f1", "at_least": 1, "reference": {"lasso_iv": "lasso_i"}}
    later = verdict(records, {"later_than_in": arguments}, "lasso_iv")
    assert (later.verdict, later.measured) == (REPRODUCED, "FedDualAvg round 3, there round 2")
    assert verdict(records, {"sooner_than_in": arguments}, "lasso_iv").verdict == NOT_REPRODUCED
    alone = {**arguments, "reference": {"lasso_iv": "lasso_iii"}}
    assert verdict(records, {"later_than_in": alone}, "lasso_iv").verdict == NOT_RUN
    records.add(experiment="lasso_iii", profile="quick", f1=(0, 1, 1, 1))
    entry = verdict(records, {"later_than_in": alone}, "lasso_iv")
    assert (entry.verdict, entry.measured) == (NOT_RUN, "lasso_iii only at profile quick")


def test_best_learning_rates(records):
    records.add("feddualavg", 0.01, 1.0, f1=(0, 1, 1, 1))
    records.add("feddualavg", 0.001, 1.0, f1=(0, 0.1, 1, 1))
    records.add("feddualavg", 0.1, 1.0, diverged=1, smoothness=2000.0)
    records.add("fedmid", 0.001, 0.3, f1=(0, 0.1, 0.2, 0.3))

    def best(client_lr, server_lr=1):
        arguments = {"algo": "feddualavg", "client_lr": client_lr, "server_lr": server_lr}
        return verdict(records, {"best_learning_rate": arguments})

    assert best(0.01).verdict == REPRODUCED
    assert best(0.001).verdict == REPRODUCED  # as good as the best
    assert "tied with 1 others" in best(0.001).measured
    assert best(0.1).verdict == NOT_REPRODUCED
    assert "(0.1, 1) diverged (2/L = 0.001)" in best(0.1).measured
    assert best(0.003).verdict == NOT_RUN  # it was not tried
    larger = {"algo": "feddualavg", "than": ["fedmid"]}
    assert verdict(records, {"larger_best_rate": larger}).verdict == REPRODUCED
    smaller = {"algo": "fedmid", "than": ["feddualavg"]}
    assert verdict(records, {"larger_best_rate": smaller}).verdict == NOT_REPRODUCED


def test_most_pairs_of_the_robustness_figure(records):
    """Two of three pairs within the paper's range are sparse; those outside it are not asked."""
    for client_lr, density in ((0.003, 0.1), (0.01, 0.2), (0.3, 0.9)):
        records.add("feddualavg", client_lr, 1.0, density=(1, 1, density, density))
    records.add("feddualavg", 0.001, 1.0, density=(1, 1, 0.9, 0.9))
    records.add("feddualavg", 1.0, 1.0, density=(1, 1, 0.9, 0.9))

    def most(algos=("feddualavg",), **levels):
        return verdict(records, {"most_pairs": {"algos": list(algos), "levels": levels}})

    entry = most(density={"at_most": 0.5}, f1={"at_least": 0.6})
    assert (entry.verdict, entry.measured) == (REPRODUCED, "FedDualAvg 2 of 3")
    assert entry.claimed == "most pairs end with density <= 0.5 and F1 >= 0.6"
    assert most(density={"at_most": 0.15}).verdict == NOT_REPRODUCED
    assert most(density={"at_most": 0.5}, f1={"at_least": 0.8}).verdict == NOT_REPRODUCED
    assert most(["feddualavg", "fedmid"], density={"at_most": 0.5}).verdict == NOT_RUN
    for client_lr in (0.03, 0.1):  # a pair that diverged is at no level
        records.add("feddualavg", client_lr, 1.0, diverged=1, density=(1, 1, 0.1, 0.1))
    assert most(density={"at_most": 0.5}).measured == "FedDualAvg 2 of 5"
    assert most(density={"at_most": 0.5}).verdict == NOT_REPRODUCED


def test_averaging_densifies(records):
    folder = records.add("fedmid")
    densifies = {"averaging_densifies": {"algo": "fedmid", "at_least": 2}}
    assert verdict(records, densifies).verdict == NOT_RUN
    clients = np.eye(4)
    np.savez(folder / "clients.npz", weights=np.vstack([clients, clients.mean(axis=0)]))
    entry = verdict(records, densifies)
    assert entry.verdict == REPRODUCED
    assert entry.measured == "clients 0.250, their average 1.000: 4.00 times"
    assert verdict(records, {"averaging_densifies": {"algo": "fedmid", "at_most": 2}}).verdict == NOT_REPRODUCED


def test_the_page_says_why_where_a_claim_is_not_reproduced(records):
    records.add(f1=(0, 0.5, 0.9, 1))
    page = as_markdown(evaluate(claim(PERFECT, why_not="The data differ."), collect([records.root])))
    assert "| lasso_i | **not reproduced** | F1 >= 1 before round 3 | round 3; F1 0.95 at the end |" in page
    assert "Why not: The data differ." in page
    page = as_markdown(evaluate(claim(PERFECT, ["lasso_iii"], why_not="The data differ."), collect([records.root])))
    assert "The data differ." not in page


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"guess": {}}, "no test 'guess', must be one of reaches"),
        ({"final": {"algo": "fedmid"}}, "metric"),
        ({"final": {"algo": "fedmid", "metric": "f1"}}, "give one of at_least"),
        ({"final": {"algo": "fedmid", "metric": "f1", "above": 1}}, "above"),
        ({"closest_to": {"algo": "a", "reference": "b", "metric": "f1", "within": 1, "by": 2}}, "by"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(test, said):
    with pytest.raises(UserError, match="claims: it: ") as refused:
        claim(test)
    assert said in str(refused.value)


def test_the_shipped_ledger_names_experiments_that_exist():
    claims = read_claims()
    assert len({claim.id for claim in claims}) == len(claims)
    assert {name for claim in claims for name in claim.experiments} <= set(options_of("experiment"))
    for one in claims:
        (arguments,) = one.test.values()
        assert set(arguments.get("reference", {}) if isinstance(arguments.get("reference"), dict) else ()) <= set(
            one.experiments
        )


def test_the_shipped_ledger_covers_every_synthetic_figure():
    tested = {name for claim in read_claims() for name in claim.experiments}
    for family in ("lasso", "nuclear"):
        for number in ("i", "ii", "iii", "iv"):
            assert f"{family}_{number}" in tested
