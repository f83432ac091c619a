"""A client that runs in a separate process with only its own rows: `python site.py ROWS.npz`.

Requests are read from standard input and responses written to standard output, each as its length in bytes followed by
an .npz file.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.streams import batches_of, message_keys


def send(stream, arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    stream.write(len(buffer.getvalue()).to_bytes(8, "big") + buffer.getvalue())
    stream.flush()


def receive(stream) -> dict[str, np.ndarray] | None:
    """Return the next arrays, or None at the end of the stream."""
    size = int.from_bytes(stream.read(8), "big")
    return dict(np.load(io.BytesIO(stream.read(size)))) if size else None


def main() -> None:
    own = dict(np.load(Path(sys.argv[1])))
    name, strength, rates, batch_size = str(own["name"]), float(own["strength"]), own["rates"], int(own["batch_size"])
    rows = ClientData(own["x"], own["y"], np.array([0, len(own["y"])]))
    algorithm = all_algorithms()[name]().with_transform(all_transforms()[str(own["transform"])]())
    psi = all_regularizers()["l1"](strength=strength) if strength else all_regularizers()["none"]()
    problem = TaskData(rows, Linear(rows.x.shape[1]), Squared()).to_problem(psi)
    client = algorithm.bind(problem, Varying.from_rates(algorithm, psi, rates[:1], rates[1:]))
    memory = client.initial_client_arrays(np.zeros((1, problem.layout.size)))
    while (received := receive(sys.stdin.buffer)) is not None:
        round_index = int(received.pop("round"))
        order, edges, _ = batches_of(0, round_index, own["number"], np.array([len(rows.y)]), batch_size, 1)
        keys = message_keys(0, round_index, own["number"])
        message, memory = client.client_update(received, memory, rows, order, edges, keys)
        send(sys.stdout.buffer, {"message": message})


if __name__ == "__main__":
    main()
