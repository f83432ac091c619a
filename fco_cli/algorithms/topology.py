"""Communication graphs of gossip methods, and their mixing matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import GRAPHS, generator

TOPOLOGIES = ("ring", "star", "grid", "complete", "random", "file")
MOST_LISTED = 8  # clients in a message
Edge = tuple[int, int]  # clients a < b


def ring(clients: int) -> set[Edge]:
    """Return a cycle through all clients in order."""
    return _edges((m, (m + 1) % clients) for m in range(clients))


def star(clients: int) -> set[Edge]:
    """Return the edges between client 0 and all others."""
    return _edges((0, m) for m in range(1, clients))


def grid(clients: int) -> set[Edge]:
    """Return a grid with as many rows as the largest divisor up to the square root; a path if it is prime."""
    columns = clients // max(d for d in range(1, math.isqrt(clients) + 1) if clients % d == 0)
    right = ((m, m + 1) for m in range(clients) if (m + 1) % columns)
    return _edges([*right, *((m, m + columns) for m in range(clients - columns))])


def complete(clients: int) -> set[Edge]:
    """Return all edges."""
    return _edges((a, b) for a in range(clients) for b in range(a))


def random_graph(clients: int, degree: int, seed: int) -> set[Edge]:
    """Return a cycle in random order and random edges, `degree` per client on average; connected by construction."""
    random = generator(seed, GRAPHS)
    order = random.permutation(clients)
    edges = _edges((int(order[m - 1]), int(order[m])) for m in range(clients))
    others = sorted(complete(clients) - edges)
    count = min(max(clients * degree // 2 - len(edges), 0), len(others))
    return edges | {others[i] for i in random.choice(len(others), count, replace=False)} if count else edges


def read_edges(path: str, clients: int, names: list[str] | None) -> set[Edge]:
    """Return the edges in a file: two clients per line, by name or number, separated by a comma or spaces.

    Empty lines and lines that start with # are ignored. Raise UserError if the file or the graph is invalid.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "is not UTF-8 text"
        raise UserError(f"algo.edges: {path}: {reason}; required: a text file with two clients per line") from problem
    numbers = {str(m): m for m in range(clients)} | {name: m for m, name in enumerate(names or [])}
    edges = set()
    for number, line in enumerate(lines, start=1):
        place = f"algo.edges: {path} line {number}"
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        ends = [end.strip() for end in line.split(",")] if "," in line else line.split()
        if len(ends) != 2:
            raise UserError(f"{place}: got {line.strip()!r}, must be two clients, such as 0,1")
        for end in ends:
            if end not in numbers:
                listed = ", ".join((names or [str(m) for m in range(clients)])[:MOST_LISTED])
                more = ", ..." if clients > MOST_LISTED else ""
                raise UserError(f"{place}: client {end!r} not found; clients are {listed}{more}")
        a, b = numbers[ends[0]], numbers[ends[1]]
        if a == b:
            raise UserError(f"{place}: an edge from {ends[0]!r} to itself; remove the line")
        edges |= _edges([(a, b)])
    missing = sorted(set(range(clients)) - connected_to(0, edges))
    if missing:
        named = ", ".join(str((names or range(clients))[m]) for m in missing[:MOST_LISTED])
        more = ", ..." if len(missing) > MOST_LISTED else ""
        first = (names or range(clients))[0]
        raise UserError(
            f"algo.edges: {path}: the graph is not connected: no path from {first} to {named}{more}; add edges"
        )
    return edges


def _edges(pairs: Iterable[Edge]) -> set[Edge]:
    return {(min(a, b), max(a, b)) for a, b in pairs if a != b}


def connected_to(client: int, edges: set[Edge]) -> set[int]:
    """Return the clients with a path to a client, and itself."""
    neighbors: dict[int, list[int]] = {}
    for a, b in edges:
        neighbors.setdefault(a, []).append(b)
        neighbors.setdefault(b, []).append(a)
    reached, pending = {client}, [client]
    while pending:
        new = [m for m in neighbors.get(pending.pop(), []) if m not in reached]
        reached.update(new)
        pending += new
    return reached


def metropolis(edges: set[Edge], clients: int) -> Array:
    """Return the mixing matrix [M, M] with Metropolis weights: symmetric, with rows that sum to 1.

    An edge between clients with d_a and d_b neighbors has the weight 1 / (1 + max(d_a, d_b)).
    """
    degrees, matrix = np.zeros(clients, dtype=int), np.zeros((clients, clients))
    for a, b in edges:
        degrees[[a, b]] += 1
    for a, b in sorted(edges):
        matrix[a, b] = matrix[b, a] = 1 / (1 + max(degrees[a], degrees[b]))
    matrix[np.diag_indices(clients)] = [1 - math.fsum(row) for row in matrix]
    return matrix
