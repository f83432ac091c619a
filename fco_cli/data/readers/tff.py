"""HDF5 files of TensorFlow Federated: examples/<client>/pixels and examples/<client>/label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.format import Arrays, name_array, shown
from fco_cli.data.readers.source import Format, ReadOptions, sorted_files
from fco_cli.errors import UserError, install_extra


class Tff(Format):
    """One file, or a folder with ..._train.h5 and ..._test.h5; only the selected clients are read."""

    name, suffix, reads_whole_file, selects_clients = "one of TensorFlow Federated's files", ".h5", False, True
    parser_errors = (KeyError, RuntimeError, ValueError, TypeError)  # as raised by h5py

    def files(self, folder: Path) -> list[Path]:
        """Return the files, training files first: they determine the selected clients."""
        return sorted(sorted_files(folder, self.suffix), key=lambda path: self.split_of(path) == "test")

    def split_of(self, path: Path) -> str:
        return "test" if "test" in path.stem else "train"

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        with _clients(path, options) as clients:
            sizes = [math.prod(part.shape) * part.dtype.itemsize for _, *parts in clients for part in parts]
            return 2 * sum(sizes)  # per client, and concatenated

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        x, y, names = [], [], []
        with _clients(path, options) as clients:
            for name, pixels, labels in clients:
                if not pixels.shape or labels.shape != pixels.shape[:1]:
                    shapes = f"pixels have shape {pixels.shape}, label {labels.shape}"
                    raise UserError(f"{path}: client {shown(name)!r}: {shapes}; both must have one row per sample")
                x.append(pixels[()].reshape(len(labels), math.prod(pixels.shape[1:])))
                y.append(labels[()])
                names.append(name)
        if not x:
            raise UserError(f"{path}: has no clients")
        return {
            "x": np.concatenate(x),
            "y": np.concatenate(y),
            "client": np.repeat(name_array(path, "client", names), [len(labels) for labels in y]),
        }


@contextmanager
def _clients(path: Path, options: ReadOptions) -> Iterator[Iterator[tuple[str, Any, Any]]]:
    """Open the file and return an iterator over name, pixels and labels of the selected clients, not yet read."""
    try:
        import h5py
    except ImportError:
        raise UserError(f"{path}: HDF5 files need h5py: {install_extra('femnist')}") from None
    with h5py.File(path, "r") as file:
        examples = _member(path, file, "examples", h5py.Group)
        if invalid := [name for name in examples if isinstance(name, bytes)]:
            raise UserError(f"{path}: client {invalid[0]!r}: its name is not text")
        chosen = options.clients(sorted(examples))

        def each() -> Iterator[tuple[str, Any, Any]]:
            for name in chosen:
                if name in examples:
                    client = _member(path, examples, name, h5py.Group)
                    yield name, *(_dataset(path, client, part) for part in ("pixels", "label"))

        yield each()


def _member(path: Path, group: Any, name: str, kind: type) -> Any:
    """Return a member of a group; raise UserError if it is a link, which could lead to another file or form a cycle."""
    import h5py

    where = f"{path}: {shown(group.name)}/{shown(name)}"
    link = group.get(name, getlink=True)
    if link is None:
        raise UserError(f"{where}: not found")
    if not isinstance(link, h5py.HardLink):
        raise UserError(f"{where}: is a link; links are not followed")
    member = group[name]
    if not isinstance(member, kind):
        raise UserError(f"{where}: is not a {kind.__name__.lower()}")
    return member


def _dataset(path: Path, client: Any, name: str) -> Any:
    import h5py

    dataset = _member(path, client, name, h5py.Dataset)
    where = f"{path}: {shown(dataset.name)}"
    if dataset.external or dataset.is_virtual:
        raise UserError(f"{where}: its values are in another file; external files are not read")
    if dataset.shape is None or dataset.dtype.kind not in "biuf":
        raise UserError(f"{where}: must hold numbers, not {shown(dataset.dtype)}")
    return dataset
