"""The summary of a run: five rows, sentences that agree with the verdict, and a picture."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from fco_cli.commands.run_summary import WIDTH, picture, summary_sentences, summary_table

FINAL = {
    "objective": 1.25, "validation_loss": 2.0, "precision": 0.75, "recall": 1.0, "f1": 0.857, "density": 0.5,
    "bytes_up": 41e6, "bytes_down": 1e6, "prox_calls": 10,
}  # fmt: skip
RESULT = {"main_metric": "f1", "final": FINAL, "test": {}, "rounds": 5, "seconds": 2, "weighting": "examples"}
STALLED = {
    "converged": False,
    "kkt": 25.4,
    "relative_to": "lambda",
    "advice": "use another method",
    "more_rounds": None,
}


def lines_of(result: dict) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=100).print(summary_table(result))
    return [" ".join(line.split()) for line in output.getvalue().splitlines()]


def test_the_table_has_five_rows_with_units():
    assert lines_of(RESULT) == [
        "f1 0.857 precision 0.75, recall 1",
        "density 0.5 share of non-zero weights",
        "objective 1.25 every row has the same weight",
        "validation loss 2 on held-out rows",
        "sent 42 MB 41 MB up and 1 MB down in 5 rounds, 2.00 s",
    ]


def test_test_metrics_and_values_that_are_not_finite_are_shown():
    result = RESULT | {"test": {"accuracy": 0.9}, "final": FINAL | {"f1": None}, "rounds": 1}
    assert lines_of(result)[:2] == ["f1 not finite precision 0.75, recall 1", "test accuracy 0.9 on test rows"]
    assert lines_of(result)[-1].endswith("in 1 round, 2.00 s")


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (STALLED, "It is not the exact minimizer of the objective (KKT residual 25 x lambda): use another method."),
        (
            STALLED | {"more_rounds": 40, "advice": "about 40 more rounds"},
            "The objective is not minimized yet (KKT residual 25 x lambda): about 40 more rounds.",
        ),
        (STALLED | {"converged": True}, "It minimizes the objective."),
        (STALLED | {"converged": True, "distance": 2e-9}, "It minimizes the objective, to 2e-09 (an estimate)."),
    ],
)
def test_the_sentence_agrees_with_the_verdict(verdict, expected):
    support, sentence = summary_sentences(RESULT | {"convergence": verdict})
    assert support == "The model has all true weights; 25 % of its weights are others."
    (support, *_) = summary_sentences(RESULT | {"final": FINAL | {"precision": 0.0, "recall": 0.0}})
    assert support == "The model has none of the true weights."  # it may have no other weights either
    assert sentence == expected


def test_there_is_no_sentence_without_truth_and_verdict():
    assert summary_sentences({"final": {"objective": 1.0}, "convergence": None}) == []
    exact = {"final": {"precision": 1.0, "recall": 0.5}}
    assert summary_sentences(exact) == ["The model has 50 % of the true weights and no other."]


@pytest.mark.parametrize("is_ascii", [False, True])
def test_the_picture_shows_the_metric_and_the_weights(tmp_path, is_ascii):
    (tmp_path / "metrics.csv").write_text("round,f1\n0,0\n1,0.5\n2,1\n")
    np.savez(tmp_path / "model.npz", weights=np.repeat([-1.0, 0.0], WIDTH))
    first, second = picture(tmp_path, "f1", is_ascii)
    full, half = ("@", "=") if is_ascii else ("█", "▄")
    assert first == f"f1 by round       | {half}{full}|  0 to 1"
    assert second.split("|")[1] == full * (WIDTH // 2) + " " * (WIDTH // 2)
    assert second.endswith("48 of 96 are not 0")
    assert all(line.isascii() for line in (first, second)) == is_ascii


def test_a_matrix_and_an_infinite_metric_have_no_picture(tmp_path):
    (tmp_path / "metrics.csv").write_text("round,f1\n0,0\n1,inf\n")
    np.savez(tmp_path / "model.npz", weights=np.eye(3))
    assert picture(tmp_path, "f1", False) == []
