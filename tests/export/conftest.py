"""Fixtures: exported models applied to tables, to compare them with fco-predict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fco_cli.commands.export import main
from fco_cli.data.fitted import FittedModel

FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b, "power": lambda a, b: a**b, "negative": lambda a: -a, "abs": abs,
    "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10, "sqrt": math.sqrt,
}  # fmt: skip


def value_of(e: dict[str, Any], row: dict[str, Any], columns: dict[str, Any]) -> float:
    """Return the value of an expression of a JSON model, by its documentation alone."""
    if e["type"] == "number":
        return e["value"]
    if e["type"] == "call":
        return FUNCTIONS[e["function"]](*(value_of(one, row, columns) for one in e["arguments"]))
    if e["type"] == "piecewise":
        x = value_of(e["argument"], row, columns)
        k = sum(one <= x for one in e["breaks"])
        distance = x - e["breaks"][max(k - 1, 0)]
        return sum(c * distance**power for power, c in enumerate(e["coefficients"][k]))
    column, cell = columns[e["column"]], row[e["column"]]
    is_missing = cell != cell or cell is None or cell in column["missing"]
    if e["type"] == "missing":
        return float(is_missing)
    if e["type"] == "column":
        return column["fill"] if is_missing else cell
    known = dict(zip(column["cells"], column["categories"], strict=True))
    category = None if is_missing else known.get(cell, column["unknown"])
    return column["fill"][e["category"]] if category is None else float(category == e["category"])


def json_predictions(path: Path, frame: pd.DataFrame) -> np.ndarray:
    """Return the predictions [N, C] of a JSON model."""
    model = json.loads(path.read_text())
    columns = {column["column"]: column for column in model["columns"]}
    scores = []
    for row in frame.to_dict("records"):
        score = np.array(model["intercept"])
        if model["offset"] is not None:
            score = score + value_of(model["offset"], row, columns)
        for term in model["terms"]:
            product = math.prod(value_of(factor, row, columns) for factor in term["factors"])
            score = score + product * np.array(term["coefficients"])
        scores.append(score)
    total = np.array(scores)
    if model["link"] == "softmax":
        shares = np.exp(total - total.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)
    return {"logit": lambda s: 1 / (1 + np.exp(-s)), "log": np.exp}.get(model["link"], lambda s: s)(total)


def onnx_predictions(path: Path, frame: pd.DataFrame) -> tuple[np.ndarray, Any]:
    """Return the predictions [N, C] of an ONNX model and its first output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed: dict[str, np.ndarray] = {}
    for own in session.get_inputs():
        if own.name == "x" and "x" not in frame:
            feed["x"] = frame.to_numpy(dtype=float)
        elif own.type == "tensor(string)":
            feed[own.name] = (
                frame[[own.name]].astype(object).where(frame[[own.name]].notna(), "").to_numpy(dtype=object)
            )
        else:
            feed[own.name] = frame[[own.name]].to_numpy(dtype=float)
    first, *rest = session.run(None, feed)
    return (rest[0] if rest else first[:, None]), first


def skops_predictions(path: Path, frame: pd.DataFrame) -> tuple[np.ndarray, Any, list[str]]:
    """Return the predictions [N, C] of a pipeline, those of its method `predict`, and the types to trust."""
    import skops.io

    types = skops.io.get_untrusted_types(file=path)
    pipeline = skops.io.load(path, trusted=types)
    rows: Any = frame if pipeline.steps[0][0] != "model" else frame.to_numpy(dtype=float)
    first = pipeline.predict(rows)
    return (pipeline.predict_proba(rows) if hasattr(pipeline, "predict_proba") else first[:, None]), first, types


@pytest.fixture
def predictors() -> dict[str, Callable[..., Any]]:
    """Functions that apply an exported file to a data frame, by format."""
    return {"onnx": onnx_predictions, "skops": skops_predictions}


@pytest.fixture
def check_exports(tmp_path) -> Callable[..., list[str]]:
    """Return a function that compares all exports of a record with fco-predict and returns skops' untrusted types."""

    def check(record: Path, table: Path, frame: pd.DataFrame) -> list[str]:
        model = FittedModel.read(record)
        scores = model.scores_of(table)
        expected, columns = model.predict(scores), model.columns(scores)
        is_binary = model.link == "logit"
        both = np.hstack([1 - expected, expected]) if is_binary else expected
        files = {name: tmp_path / f"model.{name}" for name in ("skops", "onnx", "json")}
        for file in files.values():
            main([str(record), "-o", str(file)])
        np.testing.assert_allclose(json_predictions(files["json"], frame), expected, rtol=1e-12, atol=1e-12)
        values, first = onnx_predictions(files["onnx"], frame)
        np.testing.assert_allclose(values, both, rtol=1e-12, atol=1e-12)
        if "prediction" in columns and model.link in ("logit", "softmax"):
            assert first.tolist() == columns["prediction"].tolist()
        values, first, types = skops_predictions(files["skops"], frame)
        np.testing.assert_allclose(values, both, rtol=1e-12, atol=1e-12)
        if "prediction" in columns and model.link in ("logit", "softmax"):
            assert first.tolist() == columns["prediction"].tolist()
        return types

    return check
