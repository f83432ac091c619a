"""Tests of the check that a study is complete and unaltered."""

from __future__ import annotations

import re
from dataclasses import replace

from fco_cli.reporting.claims.evidence import Needs
from fco_cli.reporting.claims.ledger import NOT_RUN, as_markdown, headline
from fco_cli.reporting.page.render import claims_of
from fco_cli.reporting.records.design import design_of, reason_undecided
from fco_cli.reporting.records.studies import collect
from fco_cli.studies.yuan2021 import Yuan2021


def add_design(records, experiment="curse", profile="paper", **changed):
    """Add all runs of an experiment's design."""
    design = design_of(experiment, profile)
    for algo, client_lr, server_lr in sorted(design.pairs, key=str):
        for seed in sorted(design.seeds):
            rates = client_lr or 0.001, server_lr or 1.0
            records.add(algo, *rates, seed, experiment=experiment, profile=profile, **settings(design) | changed)


def settings(design):
    def part(name):
        return {key.removeprefix(f"{name}."): v for key, v in design.settings.items() if key.startswith(f"{name}.")}

    return {
        "task": part("task"),
        "hparams": part("hparams"),
        "psi": part("regularizer"),
        "select": part("experiment.select"),
    }


def reason(records):
    (study,) = collect([records.root]).studies
    return reason_undecided(study)


def test_a_complete_unaltered_study_decides(records):
    add_design(records)
    assert reason(records) == ""
    records.add("fedmid", 0.005, 1.0, 5, experiment="curse", **settings_of_curse())
    assert reason(records) == "incomplete: 1 of 12 runs are missing"  # seed 5 of the other algorithm


def settings_of_curse():
    return settings(design_of("curse"))


def test_incomplete_design_does_not_decide(records):
    own = settings_of_curse()
    records.add("fedmid", 0.005, 1.0, experiment="curse", **own)
    assert reason(records) == "incomplete: 9 of 10 runs are missing"


def test_other_settings_or_rates_do_not_decide(records):
    add_design(records, psi={"name": "l1", "strength": 3})
    assert reason(records) == "altered: regularizer.strength is 3, the experiment's 0.5"


def test_additional_runs_do_not_decide(records):
    add_design(records)
    records.add("fedmid", 0.001, 1.0, experiment="curse", **settings_of_curse())
    assert reason(records) == "altered: 1 runs are not part of the experiment"


def test_smaller_profiles_and_own_experiments_do_not_decide(records):
    records.add(profile="laptop")
    assert reason(records) == "only at profile laptop"
    mine = type(records)(records.root.parent / "mine")
    mine.add(experiment="my_own")
    assert reason(mine) == "not a shipped experiment"
    alone = type(records)(records.root.parent / "alone")
    alone.add(experiment=None, task={"name": "digits"})  # not of the experiment of that name
    assert reason(alone) == "not a shipped experiment"


def test_profile_quick_decides_claims_not_about_learning_rates(records):
    """Test with one seed; the optimum of another seed at profile=paper does not join the study."""
    curves = {"f1": (0, 0.5, 1, 1), "recovery_error": (9, 2, 1, 1), "density": (1, 0.6, 0.5, 0.5)}
    add_design(records, "lasso_i", "quick", **curves)
    records.add("optimum", seed=1, experiment="lasso_i", **settings(design_of("lasso_i")) | curves)
    (quick,) = [study for study in collect([records.root]).studies if study.profile == "quick"]
    assert reason_undecided(quick) == ""
    entries = [entry for entry in Yuan2021().ledger(collect([records.root])) if entry.has_records]
    kinds = {kind: entry for entry in entries for kind in entry.claim.test}
    assert kinds["reaches"].label == "preview: holds (1 of 1, profile quick)"
    assert kinds["best_learning_rate"].needs == kinds["rules_agree"].needs == Needs.PROFILE
    judged = [entry for entry in entries if entry.verdict != NOT_RUN]
    assert 0 < len(judged) < len(entries)
    line = headline(entries)
    assert re.match(rf"preview at profile=quick: \d+ of {len(judged)} claims hold", line)
    assert line.endswith(f"; {len(entries) - len(judged)} need profile=paper")
    assert "lasso, profile=quick" in as_markdown(entries)
    held = sum(entry.held == entry.seeds for entry in judged)
    assert claims_of(quick, entries) == f"{held} of {len(judged)} claims hold (preview)"
    whole = [replace(entry, profile="paper") for entry in entries]
    assert claims_of(replace(quick, profile="paper"), whole) == f"{held} of {len(judged)} claims reproduced"


def test_a_profile_with_fewer_rounds_decides_nothing(records):
    records.add(profile="laptop")
    entries = Yuan2021().ledger(collect([records.root]))
    assert headline(entries) == (
        "0 claims can be judged at profile=laptop; 13 need profile=paper; 123 need experiments not run here"
    )
