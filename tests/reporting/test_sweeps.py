"""Tests of the figure of a sweep over one number."""

from __future__ import annotations

import pytest

from fco_cli.reporting.figures.sweeps import draw_sweep, sweep_table, swept_keys
from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import collect


def found(records):
    studies = collect([records.root]).studies
    return studies, {study.slug: choose(study) for study in studies}


def test_three_values_of_a_key_give_a_figure(records):
    for clients in (8, 16, 32):
        for algo, share in (("feddualavg", 1.0), ("fedmid", 0.5)):
            records.add(algo, task={"clients": clients}, f1=(0, 0, share * clients / 32), experiment=None,
                        validation_loss=(1, 1, 1), kkt_residual=(1, 1, 1))  # fmt: skip
    studies, choices = found(records)
    (swept,) = swept_keys(studies)
    assert (swept.key, list(swept.studies), swept.slug) == ("task.clients", [8, 16, 32], "lasso_by_task_clients")
    table = sweep_table(swept, choices)
    mine = table[(table["algorithm"] == "fedmid") & (table["metric"] == "f1")]
    assert mine["median"].tolist() == pytest.approx([0.125, 0.25, 0.5])
    figure = draw_sweep(swept, table)
    f1 = next(axis for axis in figure.axes if axis.get_title("left") == "F1")
    assert {line.get_label(): line.get_ydata().tolist() for line in f1.get_lines()} == {
        "FedDualAvg": [0.25, 0.5, 1.0],
        "FedMiD": [0.125, 0.25, 0.5],
    }
    assert f1.get_xlabel() == "" or f1.get_xlabel() == "task.clients"
    assert "MB to target" in [axis.get_title("left") for axis in figure.axes]


def test_strength_of_task_and_regularizer_is_one_key(records):
    for strength in (0.1, 1, 10):
        records.add(task={"strength": strength}, psi={"name": "l1", "strength": strength})
    (swept,) = swept_keys(found(records)[0])
    assert swept.key == "regularizer.strength"
    _, choices = found(records)
    axes = draw_sweep(swept, sweep_table(swept, choices)).axes
    assert {axis.get_xscale() for axis in axes if axis.get_lines()} == {"log"}  # from 0.1 to 10


def test_two_values_or_two_keys_give_no_figure(records):
    for clients in (8, 16):
        records.add(task={"clients": clients})
    assert swept_keys(found(records)[0]) == []
    records.add(task={"clients": 32, "samples": 5})
    assert swept_keys(found(records)[0]) == []
