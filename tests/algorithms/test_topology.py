"""Tests of communication graphs and mixing matrices."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms import topology
from fco_cli.errors import UserError

SIZES = (1, 2, 3, 4, 6, 7, 12)


def graphs(clients):
    named = (topology.ring, topology.star, topology.grid, topology.complete)
    return [*(graph(clients) for graph in named), topology.random_graph(clients, 3, 0)]


@pytest.mark.parametrize("clients", SIZES)
def test_graphs_are_connected_and_mixing_matrices_doubly_stochastic(clients):
    for edges in graphs(clients):
        assert all(0 <= a < b < clients for a, b in edges)
        assert topology.connected_to(0, edges) == set(range(clients))
        matrix = topology.metropolis(edges, clients)
        np.testing.assert_array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-15)
        assert (matrix >= 0).all()
        off_diagonal = {(int(a), int(b)) for a, b in np.argwhere(np.triu(matrix, 1))}
        assert off_diagonal == edges
        if clients > 1:
            assert np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2] < 1 - 1e-3  # mixes


def test_numbers_of_edges():
    assert len(topology.ring(6)) == 6
    assert len(topology.ring(2)) == 1
    assert len(topology.star(6)) == 5
    assert topology.grid(6) == {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}
    assert topology.grid(5) == {(0, 1), (1, 2), (2, 3), (3, 4)}
    assert len(topology.complete(6)) == 15
    assert len(topology.random_graph(12, 4, 0)) == 24
    assert len(topology.random_graph(4, 9, 0)) == 6


def test_random_graphs_are_a_function_of_the_seed():
    assert topology.random_graph(12, 4, 1) == topology.random_graph(12, 4, 1) != topology.random_graph(12, 4, 2)


def test_the_mixing_matrix_of_the_complete_graph_is_uniform():
    np.testing.assert_allclose(topology.metropolis(topology.complete(5), 5), 0.2, rtol=1e-15)


@pytest.fixture
def read(tmp_path):
    def parse(text, clients=4, names=None):
        path = tmp_path / "edges.csv"
        path.write_text(text)
        return topology.read_edges(str(path), clients, names)

    return parse


def test_a_file_has_two_clients_per_line(read):
    assert read("# ring\n0,1\n1, 2\n\n2 3\n3,0\n0,3\n") == topology.ring(4)
    assert read("north,south\nsouth,2\n", 3, ["north", "south", "east"]) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0,1\n1,2,3\n", r"line 2: got '1,2,3', must be two clients, such as 0,1$"),
        ("0,1\n1,9\n", r"line 2: client '9' not found; clients are 0, 1, 2, 3$"),
        ("0,1\n2,2\n", r"line 2: an edge from '2' to itself; remove the line$"),
        ("0,1\n2,3\n", r"the graph is not connected: no path from 0 to 2, 3; add edges$"),
        ("", r"the graph is not connected: no path from 0 to 1, 2, 3; add edges$"),
    ],
)
def test_invalid_files_are_errors_of_one_line(text, line, read):
    with pytest.raises(UserError, match=rf"^algo\.edges: [^\n]*edges\.csv:? {line}"):
        read(text)


def test_a_file_that_cannot_be_read_is_an_error_of_one_line(tmp_path):
    with pytest.raises(
        UserError, match=r"^algo\.edges: [^\n]*missing\.csv: No such file or directory; required: [^\n]*$"
    ):
        topology.read_edges(str(tmp_path / "missing.csv"), 3, None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"^algo\.edges: [^\n]*binary: is not UTF-8 text; required: [^\n]*$"):
        topology.read_edges(str(tmp_path / "binary"), 3, None)
