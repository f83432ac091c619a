"""Which studies decide a claim: those that are all of a shipped experiment; here records of one, made by hand."""

from __future__ import annotations

from fco_cli.reporting.design import design_of, why_undecided
from fco_cli.reporting.studies import collect


def add_design(records, experiment="curse", **changed):
    """All runs of an experiment without a grid, as it is configured."""
    design = design_of(experiment)
    for algo, client_lr, server_lr in sorted(design.pairs):
        for seed in sorted(design.seeds):
            records.add(algo, client_lr, server_lr, seed, experiment=experiment, **settings(design) | changed)


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
    return why_undecided(study)


def test_a_complete_unaltered_study_decides(records):
    add_design(records)
    assert reason(records) == ""
    records.add("fedmid", 0.005, 1.0, 5, experiment="curse", **settings_of_curse())
    assert reason(records) == "incomplete: 1 of 12 runs are missing"  # the sixth seed of the other algorithm


def settings_of_curse():
    return settings(design_of("curse"))


def test_a_part_of_the_design_does_not_decide(records):
    own = settings_of_curse()
    records.add("fedmid", 0.005, 1.0, experiment="curse", **own)
    assert reason(records) == "incomplete: 9 of 10 runs are missing"


def test_other_settings_or_rates_do_not_decide(records):
    add_design(records, psi={"name": "l1", "strength": 3})
    assert reason(records) == "altered: regularizer.strength is 3, the experiment's 0.5"


def test_runs_beyond_the_design_do_not_decide(records):
    add_design(records)
    records.add("fedmid", 0.001, 1.0, experiment="curse", **settings_of_curse())
    assert reason(records) == "altered: 1 runs are not of the experiment"


def test_a_smaller_profile_and_an_experiment_of_ones_own_do_not_decide(records):
    records.add(profile="quick")
    assert reason(records) == "only at profile quick"
    mine = type(records)(records.root.parent / "mine")
    mine.add(experiment="my_own")
    assert reason(mine) == "no experiment that is shipped"
    alone = type(records)(records.root.parent / "alone")
    alone.add(experiment=None, task={"name": "digits"})  # outside of the experiment of that name
    assert reason(alone) == "no experiment that is shipped"
