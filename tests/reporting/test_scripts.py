"""Tests of the data of the page's player."""

from __future__ import annotations

import gzip

import nibabel
import numpy as np
import pytest

from fco_cli.reporting.page.scripts import LEVELS, MAX_FRAMES, player_of
from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import collect

ROUNDS = [0, 1, 3]


def played(records, damaged=None):
    (study,) = collect([records.root]).studies
    return player_of(study, choose(study), [] if damaged is None else damaged)


def add_path(records, algo, weights, kept=ROUNDS, **options):
    folder = records.add(algo, **options)
    np.savez(folder / "path.npz", round=kept, weights=np.array(weights, dtype=np.float16), bias=np.zeros(len(kept)))
    return folder


def test_weights_are_quantized_and_only_zeros_become_zero(records):
    task = {"ones": 2}
    add_path(records, "feddualavg", [[0, 0, 0], [0.5, 0.011, 0.009], [1, 1, 0]], task=task)
    add_path(records, "fedmid", [[0, 0, 0], [0.1, 0, -99], [1, 2, 0]], task=task)
    player = played(records)
    assert (player["kind"], player["rounds"], player["ones"]) == ("weights", ROUNDS, 2)
    dual, mid = player["panels"]
    assert (dual["algo"], dual["rates"]) == ("feddualavg", "(0.001, 1)")
    assert dual["frames"][1][1:] == [1, 0]  # 0.011 and 0.009
    assert mid["frames"][1][2] == -LEVELS  # clipped to the panel
    assert mid["frames"][2][0] == round(LEVELS / player["limit"])
    assert dual["texts"] == ["F1 0, density 0.5", "F1 0.5, density 0.5", "F1 0.7, density 0.5"]


def test_matrices_are_shown_by_their_singular_values(records):
    add_path(records, "fedmid", [np.zeros((2, 2)), np.eye(2), [[0, 3], [0, 0]]], task={"rank": 1})
    player = played(records)
    assert (player["kind"], player["ones"]) == ("singular values", 1)
    last = player["panels"][0]["frames"][2]
    assert last == [round(3 / player["limit"] * LEVELS), 0]


def test_brains_are_shown_in_the_slices_with_most_weight(records):
    inside = np.zeros((3, 4, 6), np.uint8)
    inside[1:, 1:3, :] = 1
    weights = np.zeros((3, inside.sum()))
    volume = np.zeros(inside.shape)
    volume[2, 1, 4] = -2
    weights[2] = volume[inside > 0]
    folder = add_path(records, "fedmid", weights)
    affine = np.diag([8.0, 8, 8, 1])
    (folder / "mask.nii.gz").write_bytes(gzip.compress(nibabel.Nifti1Image(inside, affine).to_bytes()))
    player = played(records)
    assert (player["kind"], player["width"], player["height"]) == ("slices", 2, 2)
    assert player["heights"] == [0, 8, 32]
    shown = np.reshape(player["panels"][0]["frames"][2], (3, 2, 2))
    assert shown[2].tolist() == [[0, 0], [0, -LEVELS]]  # at the back, on the right
    assert np.count_nonzero(shown) == 1


def test_frames_are_shared_rounds_up_to_a_limit(records):
    rounds = list(range(100))
    curves = {"rounds": rounds, "f1": np.linspace(0, 1, 100), "density": np.ones(100)}
    add_path(records, "fedmid", np.ones((100, 2)), rounds, **curves)
    add_path(records, "feddualavg", np.ones((50, 2)), rounds[::2], **curves)
    player = played(records)
    assert len(player["rounds"]) == MAX_FRAMES
    assert set(player["rounds"]) <= set(rounds[::2])


def test_without_snapshots_there_is_no_player(records):
    records.add()
    assert played(records) is None


DAMAGED = {
    "nonsense": b"nonsense",
    "no weights": {"round": ROUNDS},
    "other rounds": {"round": [0, 1], "weights": np.zeros((3, 2))},
    "rounds that fall": {"round": [3, 1, 0], "weights": np.zeros((3, 2))},
    "text": {"round": ROUNDS, "weights": np.array([["a"], ["b"], ["c"]])},
    "a number": {"round": 3, "weights": 4},
    "too many": {"round": [0, 1], "weights": np.zeros((2, 9999))},
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_snapshots_are_listed(records, content):
    folder = records.add()
    if isinstance(content, bytes):
        (folder / "path.npz").write_bytes(content)
    else:
        np.savez(folder / "path.npz", **content)
    damaged: list = []
    assert played(records, damaged) is None
    ((place, reason),) = damaged
    assert place == folder
    assert reason.startswith("path.npz: ")
