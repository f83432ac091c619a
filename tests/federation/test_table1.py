"""Table 1 between sites: the numbers of the simulation, as the sites' policies allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Table1Run
from fco_cli.config.schemas import register
from fco_cli.errors import UserError
from fco_cli.federation import settings
from fco_cli.federation.policy import preset
from fco_cli.simulation.process import Stop
from fco_cli.table1.record import run_table1
from tests.federation.conftest import NAMES

ROWS = (70, 90, 60)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    """Three sites with numbers, a binary code, missing values and a column of zeros and decimals, and pooled.npz.

    The quartiles of the last column are 0, or end at the last digit that a table shows.
    """
    folder, random, parts = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(5), []
    for name, rows in zip(NAMES, ROWS, strict=True):
        x = random.normal(random.normal(0, 0.3, 4), 1 + random.random(), (rows, 4))
        x[:, 3] = np.where(x[:, 3] > 0.1, 104.25 + np.round(x[:, 3]), 0)
        x[:, 1] = x[:, 1] > 0
        x[random.random(rows) < 0.3, 2] = np.nan
        parts.append((x, (random.random(rows) < 0.4).astype(float), np.full(rows, name)))
        np.savez(folder / f"{name}.npz", x=x, y=parts[-1][1], client=parts[-1][2])
    x, y, client = (np.concatenate(column) for column in zip(*parts, strict=True))
    np.savez(folder / "pooled.npz", x=x, y=y, client=client)
    return folder


@pytest.fixture(scope="module")
def composed() -> Iterator[Callable[..., Table1Run]]:
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        yield lambda *overrides: Table1Run.of(compose("config", overrides=["experiment=table1", *overrides]))


@pytest.fixture
def at_sites(composed, hospitals, make_sites, monkeypatch, tmp_path) -> Callable[..., dict]:
    """Return a function that makes table 1 between sites in this process."""

    def make(*overrides: str, loss: str = "logistic", **options: object) -> dict:
        sites = make_sites(hospitals, **options)
        monkeypatch.setattr(settings, "_connection", lambda *_: sites)
        where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]", f"output_dir={tmp_path}/sites")
        return result(composed(f"task.loss={loss}", *where, *overrides))

    return make


def result(run: Table1Run) -> dict:
    run_table1(run, Stop())
    return json.loads((run.folder / "result.json").read_text())


def cells(made: dict) -> dict[tuple[str, str], list[str]]:
    return {(line["column"], line["statistic"]): line["cells"] for line in made["lines"]}


def test_sites_have_the_numbers_of_the_simulation(composed, hospitals, at_sites, tmp_path):
    pooled = composed(f"task.path={hospitals / 'pooled.npz'}", f"output_dir={tmp_path}/simulated")
    ours, theirs = result(pooled), at_sites()
    assert ours["heads"] == theirs["heads"]
    assert cells(ours) == cells(theirs)
    numbers = [line["smd"] for line in ours["lines"]]
    others = [line["smd"] for line in theirs["lines"]]
    np.testing.assert_allclose(np.array(numbers, float), np.array(others, float), rtol=1e-9)


def test_what_a_site_does_not_share_is_named(at_sites):
    made = at_sites(policy=preset("research", share_histograms=False))
    assert any("no medians" in note and "share_histograms" in note for note in made["notes"])
    assert ("x0", "median [quartiles]") not in cells(made)
    assert ("x0", "mean (SD)") in cells(made)


def test_strict_sites(at_sites):
    """A strict site answers summaries and the null model."""
    made = at_sites("table1.quartiles=false", policy=preset("strict", max_subsets=None, max_subsets_per_row=None))
    assert cells(made)[("y", "1, n (%)")][0].endswith(")")


def test_counts_and_times(at_sites):
    poisson = at_sites("table1.quartiles=false", loss="poisson")
    assert "(" not in cells(poisson)[("y", "mean (SD)")][0]  # the null model determines no deviation
    squared = at_sites("table1.quartiles=false", loss="squared")
    assert "(" in cells(squared)[("y", "mean (SD)")][0]


def test_masked_sites_have_one_column(at_sites, signed):
    credentials = {name: signed(name) for name in NAMES}
    own = ("federation.masks=true", "hparams.fraction_bits=40")
    made = at_sites(*own, all_credentials=credentials, mask_bits=40)
    assert made["heads"] == ["all clients"]
    assert cells(made)[("rows", "n")] == ["220"]
    assert any("federation.masks" in note for note in made["notes"])


def test_refusals(at_sites):
    with pytest.raises(UserError, match="min_rows"):
        at_sites(policy=preset("strict", min_rows=80))
