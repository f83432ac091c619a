"""Export of fitted models with their preparation: scikit-learn pipelines (skops), ONNX and JSON (docs/export.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fco_cli.errors import require
from fco_cli.export.model import PortableModel, model_of_estimator, model_of_record
from fco_cli.files import write_atomically

FORMATS = ("skops", "onnx", "json")

__all__ = ["FORMATS", "PortableModel", "as_bytes", "export", "format_of", "model_of"]


def model_of(model: Any) -> PortableModel:
    """Return the portable model of a record, its folder, or a fitted estimator."""
    folder = getattr(model, "folder", model)
    if isinstance(folder, str | os.PathLike):
        return model_of_record(Path(folder))
    return model_of_estimator(model)


def format_of(file: Path, name: str | None) -> str:
    """Return the format, given or by the suffix of the file."""
    chosen = file.suffix.removeprefix(".") if name is None else name
    if name is None:
        allowed = "a file that ends in " + " or ".join(f".{one}" for one in FORMATS) + ", or give the format"
        require(chosen in FORMATS, "file", str(file), allowed)
    require(chosen in FORMATS, "format", chosen, "one of " + ", ".join(FORMATS))
    return chosen


def as_bytes(model: PortableModel, name: str) -> bytes:
    """Return the content of a file of a format."""
    if name == "json":
        return model.as_json().encode()
    if name == "onnx":
        from fco_cli.export.onnx_graph import as_onnx

        return as_onnx(model)
    from fco_cli.export.pipeline import as_skops

    return as_skops(model)


def export(model: Any, file: str | os.PathLike[str], name: str | None = None) -> Path:
    """Write a model to a file; the suffix determines the format unless `name` is given."""
    path = Path(file)
    chosen = format_of(path, name)
    write_atomically(path, as_bytes(model_of(model), chosen))
    return path
