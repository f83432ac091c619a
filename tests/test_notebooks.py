"""The notebooks in docs run as they stand, and show what came out."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
LARGEST = 400_000  # bytes


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def quickly(monkeypatch, tmp_path):
    """Small settings, made-up data, and nothing left behind."""
    monkeypatch.setenv("FCO_QUICK", "1")
    monkeypatch.setenv("FCO_HEART", "nowhere")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@NOTEBOOKS
@pytest.mark.usefixtures("quickly")
def test_every_cell_runs(path):
    from matplotlib import pyplot

    names = {"__name__": "notebook"}
    try:
        with pyplot.rc_context():
            for number, cell in enumerate(code_cells(path)):
                lines = [line for line in cell["source"] if not line.startswith("%")]
                exec(compile("".join(lines), f"{path.name}, code cell {number}", "exec"), names)
    finally:
        pyplot.close("all")


@NOTEBOOKS
def test_what_came_out_is_in_it_and_small(path):
    outputs = [output for cell in code_cells(path) for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in code_cells(path))
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < LARGEST


@pytest.mark.ci
@NOTEBOOKS
@pytest.mark.usefixtures("quickly")
def test_it_runs_in_jupyter(path, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute(env=environment)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
