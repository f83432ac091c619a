"""TensorFlow Federated's HDF5 files: examples/<client>/pixels and examples/<client>/label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays


def _everyone(clients: list[str]) -> list[str]:
    return clients


def read_tff(source: Path, choose: Callable[[list[str]], list[str]] = _everyone) -> Arrays:
    """A file, or a folder with ..._train.h5 and ..._test.h5; only the clients that `choose` picks are read."""
    try:
        import h5py
    except ImportError:
        raise UserError(f"{source}: HDF5 files need h5py: pip install 'fco-cli[femnist]'") from None
    files = [source] if source.is_file() else sorted(source.glob("*.h5"))
    if not files:
        raise UserError(f"{source}: holds no .h5 files")
    x, y, client, split = [], [], [], []
    chosen: list[str] | None = None  # by the first file, so that train and test have the same clients
    for path in sorted(files, key=lambda path: "test" in path.stem):
        part = "test" if "test" in path.stem else "train"
        try:
            with h5py.File(path) as file:
                examples = file["examples"]
                chosen = chosen or choose(sorted(examples))
                for name in chosen:
                    if name not in examples:
                        continue
                    pixels, labels = examples[name]["pixels"][()], examples[name]["label"][()]
                    if len(pixels) != len(labels):
                        raise UserError(f"{path}: client {name!r} has {len(pixels)} images, {len(labels)} labels")
                    x.append(pixels.reshape(len(pixels), -1))
                    y.append(labels)
                    client += [name] * len(labels)
                    split += [part] * len(labels)
        except (OSError, KeyError, ValueError) as problem:
            raise UserError(f"{path}: is not one of TensorFlow Federated's files: {problem}") from problem
    if not x:
        raise UserError(f"{source}: its files hold no clients")
    arrays = {"x": np.concatenate(x), "y": np.concatenate(y), "client": np.array(client)}
    if len(files) > 1:
        arrays["split"] = np.array(split)
    return arrays
