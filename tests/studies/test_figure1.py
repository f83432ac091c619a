"""Tests of figure 1."""

from __future__ import annotations

import pytest

from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import collect
from fco_cli.studies.yuan2021.figures import accuracy_note, draw_side_by_side, side_by_side

ENDS = {"validation_accuracy": 0.9, "density": 0.1, "validation_objective": 0.3}


def curves(**changes):
    return {name: (0.5, value) for name, value in (ENDS | changes).items()} | {"f1": (0, 0)}


@pytest.fixture
def study(records):
    quartiles = {f"{name}_{q}": value for name in ENDS for q, value in (("q25", 0.05), ("q75", 0.95))}
    records.add("local", **curves(**quartiles), task={"name": "fmri_sim"})
    records.add("fedmid", **curves(density=0.4), task={"name": "fmri_sim"})
    records.add("fedmid", **curves(density=0.8), seed=1, task={"name": "fmri_sim"})
    records.add("fedavg_subgrad", **curves(density=1e300), task={"name": "fmri_sim"})
    (study,) = collect([records.root]).studies
    return study


def test_intervals_are_quartiles_over_clients_or_the_range_over_seeds(study):
    table = side_by_side(choose(study)).set_index("algorithm")
    assert list(table.index) == ["local", "fedavg_subgrad", "fedmid"]  # the paper's order
    density = ["density_low", "density_median", "density_high"]
    assert table.loc["local", density].tolist() == pytest.approx([0.05, 0.1, 0.95])
    assert table.loc["fedmid", density].tolist() == pytest.approx([0.4, 0.6, 0.8])
    assert table.loc["fedavg_subgrad", density].isna().all()  # too large to draw


def test_dots_have_values_or_a_note(study):
    figure = draw_side_by_side(study, side_by_side(choose(study)))
    accuracy, density, _ = figure.axes
    assert [label.get_text() for label in accuracy.get_yticklabels()] == ["local", "FedAvg(∂)", "FedMiD"]
    assert [text.get_text() for text in density.texts] == ["0.1", "not finite", "0.6"]
    assert "simulated scans" in figure.get_suptitle()


def test_one_algorithm_is_not_compared(records):
    records.add("fedmid", **curves())
    records.add("feddualavg")  # without the metrics
    (study,) = collect([records.root]).studies
    assert side_by_side(choose(study)) is None


@pytest.mark.parametrize(("other", "alike"), [(0.91, True), (0.8, False)])
def test_caption_notes_equal_accuracy(records, other, alike):
    """Test that only federated algorithms are compared."""
    records.add("local", **curves(validation_accuracy=0.6))
    records.add("fedmid", **curves(density=0.4))
    records.add("feddualavg", **curves(validation_accuracy=other))
    (study,) = collect([records.root]).studies
    has_note = "(0.9 to 0.91); they differ in density (0.1 to 0.4)." in accuracy_note(choose(study))
    assert has_note == alike
