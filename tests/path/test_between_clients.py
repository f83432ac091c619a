"""Tests of paths whose labels vary mostly between clients."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.commands.tables import path_lines, path_table
from fco_cli.path.between_clients import share_between
from fco_cli.path.record import run_path
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.simulation.process import Stop


def clients_of(y, sizes):
    return ClientData(np.zeros((len(y), 1)), y, np.append(0, np.cumsum(sizes)).astype(np.int64), None)


def test_the_share_of_the_variance_is_that_of_its_definition():
    """Without a difference between clients it is 0 on average, however few rows they have."""
    random = np.random.default_rng(0)
    sizes = np.full(2000, 3)
    owners = np.repeat(np.arange(2000), sizes)
    for between in (0.0, 3.0):
        y = between * random.standard_normal(2000)[owners] + random.standard_normal(6000)
        share = share_between(clients_of(y, sizes), all_losses()["squared"]())
        assert share == pytest.approx(between**2 / (between**2 + 1), abs=0.02)
    classes = (owners % 2).astype(float)
    assert share_between(clients_of(classes, sizes), all_losses()["logistic"]()) == pytest.approx(1)
    assert share_between(clients_of(y[:6], [3, 3]), all_losses()["squared"]()) is None  # two clients
    assert share_between(clients_of(np.ones(9), [3, 3, 3]), all_losses()["squared"]()) is None


@pytest.fixture
def visits(tmp_path):
    """Return a function that writes ten visits of twelve patients; features identify the patient."""

    def write(between: float) -> str:
        random = np.random.default_rng(1)
        own = random.standard_normal((12, 4))
        lines = ["client,y,a,b,c,d"]
        for m in range(12):
            level = between * random.standard_normal()
            for _ in range(10):
                x = own[m] + 0.05 * random.standard_normal(4)
                lines.append(f"p{m},{level + random.standard_normal():.4f}," + ",".join(f"{one:.4f}" for one in x))
        (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
        return f"task.path={tmp_path / 'visits.csv'}"

    return write


def test_both_cross_validated_losses_are_reported(visits, run_of, tmp_path):
    words = [visits(5.0), f"output_dir={tmp_path}/out", "path.ratio=0.01"]
    by_rows = run_path(run_of(*words), Stop())
    by_clients = run_path(run_of(*words, "path.by=clients"), Stop())
    numbers = by_rows["between_clients"]
    assert numbers["share"] > 0.9
    assert numbers["by_rows"] == by_rows["chosen"]["min"]["cv_loss"]
    assert numbers["by_clients"] == pytest.approx(by_clients["chosen"]["min"]["cv_loss"], rel=1e-6)
    assert numbers["by_clients"] > numbers["by_rows"]
    (line,) = [line for line in path_lines(by_rows) if "between clients" in line]
    assert line.startswith("warning: 9")
    assert "use path.by=clients to select a model for new clients" in line
    assert by_clients["between_clients"] is None
    assert run_path(run_of(visits(0.0), f"output_dir={tmp_path}/other"), Stop())["between_clients"] is None


def test_the_table_of_a_path_names_its_numbers(visits, run_of, tmp_path):
    """Rounds are whole numbers, the error is a standard error, and a line states the weights of the rows."""
    result = run_path(run_of(visits(0.0), f"output_dir={tmp_path}/out"), Stop())
    assert "weights: every row has the same weight (hparams.weighting=examples)" in path_lines(result)
    result["chosen"]["min"]["rounds"] = 20_000
    table = path_table(result)
    cells = {column.header: list(column.cells) for column in table.columns}
    assert cells["rounds"][0] == "20000"
    assert "standard error of cv loss" in cells
    assert "cv error" not in cells
