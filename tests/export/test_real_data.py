"""Published tables: exported models and fco-predict agree on the rows as they were published."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from fco_cli.api import glm, run
from fco_cli.data.published import PUBLICATIONS

FOLDERS = {"heart": "heart_disease", "crime": "communities_crime", "eicu": "eicu_demo"}


def published_rows(task: str, folder: Path) -> pd.DataFrame:
    """Return the rows of a published table, with its markers of missing values as they are."""
    if task == "eicu":
        return pd.read_csv(folder / "eicu_apache.csv").drop(columns=["hospital", "died"])
    if task == "heart":
        names = PUBLICATIONS["heart"].columns.names
        parts = [pd.read_csv(path, names=names, na_values="?") for path in sorted(folder.glob("processed.*.data"))]
        return pd.concat(parts, ignore_index=True).drop(columns="num")
    names = re.findall(r"@attribute (\S+)", (folder / "communities.names").read_text())
    rows = pd.read_csv(folder / "communities.data", names=names, na_values="?")
    return rows.drop(columns=["state", "ViolentCrimesPerPop", "county", "community", "communityname", "fold"])


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("task", FOLDERS)
def test_a_sparse_model_of_a_published_table(task, real_data, tmp_path, check_exports):
    folder = real_data(FOLDERS[task])
    words = [f"task={task}", f"task.data_dir={folder}", f"output_dir={tmp_path / 'outputs'}", "algo=optimum"]
    record = run(*words, "regularizer.strength=0.01", "hparams.dtype=float64")
    rows = published_rows(task, folder)
    rows.to_csv(tmp_path / "new.csv", index=False)
    check_exports(record.folder, tmp_path / "new.csv", rows)


@pytest.mark.ci
@pytest.mark.machine_code
def test_maximum_likelihood_on_heart(real_data, tmp_path, check_exports):
    folder = real_data(FOLDERS["heart"])
    record = glm("task=heart", f"task.data_dir={folder}", f"output_dir={tmp_path / 'outputs'}", "glm.meta=false")
    rows = published_rows("heart", folder)
    rows.to_csv(tmp_path / "new.csv", index=False)
    check_exports(record.folder, tmp_path / "new.csv", rows)
