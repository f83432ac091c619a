"""Partitions: every row is assigned once, every client has rows, and the skew is as configured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.data.format import FederatedData
from fco_cli.data.splits import METHODS, Holdout, Partition, split
from fco_cli.errors import UserError


def table(rows: int = 300) -> FederatedData:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 3)) + 20 * random.integers(4, size=(rows, 1))
    return FederatedData("here", x, random.integers(3, size=rows).astype(float), np.full(rows, "all"))


def dealt(way: str, clients: int = 4, concentration: float = 0.5, seed: int = 0) -> FederatedData:
    data = table()
    return Partition(way, clients, concentration).assign(data, data.x, seed)


@pytest.mark.parametrize("way", METHODS)
def test_every_client_has_rows_and_rows_are_unchanged(way):
    data = dealt(way)
    names, sizes = np.unique(data.client, return_counts=True)
    assert names.tolist() == [f"{way}-{k}" for k in range(4)]
    assert sizes.min() >= 2
    assert (data.x == table().x).all()
    assert (dealt(way).client == data.client).all()


@pytest.mark.parametrize("way", ["labels", "quantity"])
def test_seeds_differ(way):
    assert (dealt(way, seed=1).client != dealt(way).client).any()


def test_labels_are_skewed_by_a_small_concentration():
    def skew(concentration: float) -> float:
        data = dealt("labels", concentration=concentration)
        shares = [np.bincount(data.y[data.client == name].astype(int), minlength=3) for name in data.clients]
        return np.mean([own.max() / own.sum() for own in shares])

    assert skew(0.1) > skew(100) + 0.2


def test_quantity_is_skewed_and_labels_are_not():
    data = dealt("quantity", concentration=0.3)
    sizes = np.unique(data.client, return_counts=True)[1]
    assert sizes.max() > 3 * sizes.min()
    large = data.y[data.client == data.clients[np.argmax(sizes)]]
    assert abs((large == 0).mean() - (data.y == 0).mean()) < 0.15


def test_clusters_contain_similar_rows():
    data = dealt("features")
    spread = [np.ptp(data.x[data.client == name, 0]) for name in data.clients]
    assert max(spread) < 15  # the groups are 20 apart


def test_quantiles_are_sorted_and_equal_in_size():
    data = dealt("quantiles", clients=3)
    means = [data.y[data.client == name].mean() for name in data.clients]
    assert means == sorted(means)
    assert np.unique(data.client, return_counts=True)[1].tolist() == [100, 100, 100]


def test_too_many_clients_are_refused():
    with pytest.raises(
        UserError, match=r"task.partition_clients: got 200; here has 300 rows, and every client needs at least 2"
    ):
        dealt("quantity", clients=200)
    data = table()
    numbers = FederatedData("here", data.x, data.x[:, 0], data.client)
    with pytest.raises(UserError, match=r"task.partition: got 'labels', must be quantiles: 300 different labels"):
        Partition("labels", 4, 1).assign(numbers, data.x, 0)
    with pytest.raises(UserError, match=r"task.partition_concentration: got 0.0001, which leaves some of "):
        dealt("labels", clients=100, concentration=1e-4)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_rows_of_one_patient_are_never_divided(fraction):
    """Held-out rows are about the requested share, whole patients, and not all patients of a client."""
    random = np.random.default_rng(1)
    rows = 400
    data = replace(
        table(rows), client=random.choice(["a", "b", "c"], rows), patient=random.integers(0, 40, rows).astype(str)
    )
    parts = split(
        data, Holdout("holdout", "val", "rows", fraction, "none"), Holdout("test", "test", "none", 0.2, "none"), 0
    )
    assert (parts.training ^ parts.validation).all()
    for client in "abc":
        own = data.client == client
        held_out, kept = (set(data.patient[own & part]) for part in (parts.validation, parts.training))
        assert held_out
        assert kept
        assert not held_out & kept
        assert (
            abs((own & parts.validation).sum() - fraction * own.sum())
            <= np.unique(data.patient[own], return_counts=True)[1].max()
        )


def test_a_client_with_one_patient_keeps_its_rows():
    data = replace(table(6), client=np.array(list("aaabbb")), patient=np.array(list("111234")))
    parts = split(data, Holdout("holdout", "val", "rows", 0.5, "none"), Holdout("test", "test", "none", 0.2, "none"), 0)
    assert parts.validation[:3].sum() == 0
    assert 1 <= parts.validation[3:].sum() <= 2
