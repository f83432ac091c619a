from __future__ import annotations

import numpy as np

from fco_cli.problem.data import ClientData


def test_a_client_alone_has_its_rows(make_problem):
    data = make_problem(sizes=(7, 4, 9)).data
    alone = data.client(1)
    np.testing.assert_array_equal(alone.x, data.x[7:11])
    np.testing.assert_array_equal(alone.y, data.y[7:11])
    assert (alone.clients, alone.sizes.tolist()) == (1, [4])
    assert np.shares_memory(alone.x, data.x)


def test_equal_clients_are_laid_out_one_after_another():
    x, y = np.arange(24.0).reshape(3, 4, 2), np.arange(12.0).reshape(3, 4)
    data = ClientData.of_equal_clients(x, y)
    np.testing.assert_array_equal(data.offsets, [0, 4, 8, 12])
    np.testing.assert_array_equal(data.client(2).x, x[2])
    np.testing.assert_array_equal(data.client(2).y, y[2])
