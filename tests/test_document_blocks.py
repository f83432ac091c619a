"""Every block of shell, Python and R in README and docs is run by a test, or a reason stands here why not.

A new block fails `test_every_block_is_listed` until it has an entry in BLOCKS: `RUN` (run here, in the order of the
document, in one folder), DRY (its sweeps are composed and estimated), the test that runs it, or a reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.test_worked_example import write_small_tables

ROOT = Path(__file__).parents[1]
GENERATED = {"_build", "auto_gallery", "generated", "gallery"}
LANGUAGES = {"", "sh", "bash", "python", "r"}  # of blocks that a reader runs; unlabeled ones are commands or listings
BLOCK = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)

RUN = "run"
LISTING = "not run: a listing or an output"
SITES = "not run: needs several machines, or is for a site's administrator"
DRY = "runs for minutes to hours; its sweeps run with dry_run=true"
EXCERPT = "not run: an excerpt with parts left out"
OTHER_COLUMNS = "not run: for the columns of another table; tests/export/test_export.py reads other files so"
TUTORIAL = "tests/test_documents.py::test_a_tutorial_from_start_to_end"
README = "tests/test_documents.py"
EXAMPLE = "tests/e2e/test_worked_example.py"
TORCH = "tests/e2e/test_torch.py::test_the_commands_and_python_of_the_documentation_run"
SEARCH = "tests/test_documents.py::test_the_commands_of_the_page_about_searches"
BOARD = "tests/e2e/test_leaderboard.py::test_a_method_of_a_file_joins_every_table_and_figure"
SURVIVAL = "tests/inference/test_survival_example.py::test_the_worked_example"
THEORY = "tests/commands/test_theory_and_advise.py::test_theory_writes_its_table_and_fco_run_reuses_it"
READERS = "tests/export/test_documented_readers.py"

# The blocks of every document in order: the start of the block, and what runs it.
BLOCKS: dict[str, list[tuple[str, str]]] = {
    "README.md": [
        ("make run", f"{README}::test_the_sixty_seconds_of_the_readme"),
        ("f1 ", f"{README}::test_the_sixty_seconds_of_the_readme"),
        ("from fco_cli.api import plot", f"{README}::test_the_python_of_the_readme"),
        ("fco-data example", f"{README}::test_the_table_of_the_readme"),
        ("fco-federate serve", f"{README}::test_the_options_of_the_sites_of_the_readme"),
    ],
    "docs/data.md": [
        ("fco-run task=custom task.path=heart.csv", RUN),
        ("from pathlib import Path", RUN),
        ("x = x.tocsr()", RUN),
        ("fco-run task=custom task.path=rows.npz", RUN),
        ("fco-run task=heart", "tests/test_docs.py::test_the_optimum_of_the_published_tables"),
    ],
    "docs/export.md": [
        ("fco-export RECORD", RUN),
        ("import pandas as pd", RUN),
        ("import numpy as np", OTHER_COLUMNS),
        ("import json", f"{READERS}::test_python"),
        ("model <- jsonlite", f"{READERS}::test_r"),
    ],
    "docs/federation.md": [("coordinator ", SITES), ("useradd", SITES), ("docker build", SITES)],
    "docs/geometry.md": [
        ("fco-run task=lasso regularizer=blockwise", RUN),
        ("fco-run task=mixture", RUN),
        ("fco-run -m experiment=theory", THEORY),
        ("fco-advise task=lasso", RUN),
    ],
    "docs/index.md": [("make run", f"{README}::test_the_sixty_seconds_of_the_readme")],
    "docs/inference.md": [
        ("fco-run experiment=glm task.path=heart.csv", RUN),
        ("from fco_cli.api import glm", RUN),
        ("fco-run experiment=glm task.path=lung.csv", SURVIVAL),
        ("fco-run experiment=glm task=heart regularizer=l1", RUN),
        ("fco-run experiment=glm task.loss=logistic federation", f"{EXAMPLE}::test_commands_between_sites"),
        ("fco-run experiment=table1 task.path", RUN),
        ("fco-run experiment=table1 task=heart", f"{EXAMPLE}::test_commands"),
        ("from pathlib import Path", f"{EXAMPLE}::test_python"),
        ("fco-run experiment=table1 task.loss", f"{EXAMPLE}::test_commands_between_sites"),
        ("Rscript", SURVIVAL),
    ],
    "docs/paper.md": [("feddualavg (Algorithm 3)", LISTING)],
    "docs/methods.md": [
        ("fco-run -m task=heart task.data_dir=DIR algo=zhj", DRY),
        ("fco-run -m task=heart task.data_dir=DIR algo=fista", DRY),
        ("fco-run -m task=heart task.data_dir=DIR algo=prox_newton", DRY),
        ("fco-run -m task=lasso task.clients=8", DRY),
        ("fco-run -m task=lasso task.clients=16", DRY),
        ("make leaderboard", BOARD),
    ],
    "docs/path.md": [("fco-run -m experiment=path", RUN)],
    "docs/privacy.md": [
        ("fco-run task=heart algo=fedavg", RUN),
        ("fco-run task=heart algo=moments", RUN),
        ("fco-run task=custom task.path=patients.csv", EXCERPT),
        ("fco-run task=custom task.loss=logistic", SITES),
    ],
    "docs/python.md": [
        ("from fco_cli.api import glm", RUN),
        ("from fco_cli.estimators import", "tests/tasks/test_tabular.py::test_the_documented_estimator"),
        ("model = FederatedCox", RUN),
    ],
    "docs/regularizers.md": [("@dataclass(kw_only=True)", RUN)],
    "docs/reporting.md": [
        ("fco-run -m experiment=lasso_i", DRY),
        ("fco-run -m task=lasso", DRY),
        ("fco-run -m experiment=successors", BOARD),
        ("from matplotlib.figure", "tests/studies/test_user_studies.py::test_documented_example"),
        ("fco-run -m experiment=hidden_settings", DRY),
    ],
    "docs/runs.md": [("fco-run task=lasso", RUN), ("fco-run -m task=lasso", DRY)],
    "docs/search.md": [("fco-run -m hydra/sweeper=search", SEARCH), ("fco-run -m hydra/sweeper=search", SEARCH)],
    "docs/systems.md": [("fco-run task=lasso participation", RUN)],
    "docs/torch.md": [("fco-run task=digits", TORCH), ("from torch import nn", TORCH)],
    "docs/tracking.md": [("fco-run -m experiment=lasso_i", DRY)],
    "docs/tutorials/hospitals.md": [
        ("fco-data example", TUTORIAL),
        ("fco-data describe", TUTORIAL),
        ("fco-run -m experiment=path", TUTORIAL),
        ("cat outputs", TUTORIAL),
        ("fco-report", TUTORIAL),
        ("fco-run experiment=glm", TUTORIAL),
        ("head -n 4", TUTORIAL),
    ],
    "docs/tutorials/own_method.md": [
        ("from dataclasses", TUTORIAL),
        ("fco-run plugins", TUTORIAL),
        ("from pull import", TUTORIAL),
        ("python -m pytest", TUTORIAL),
        ("fco-run -m plugins", TUTORIAL),
        ("fco-run -m plugins", TUTORIAL),
        ("from fco_cli.api import load", TUTORIAL),
        ("python best.py", TUTORIAL),
        ("from dataclasses", TUTORIAL),
        ("from track import", TUTORIAL),
        ("python -m pytest", TUTORIAL),
        ("fco-reproduce", TUTORIAL),
        ("from torch import nn", "tests/e2e/test_torch.py::test_the_module_of_the_tutorial_has_a_certified_optimum"),
    ],
    "docs/tutorials/paper/curse.md": [("fco-run -m experiment=curse", DRY)],
    "docs/tutorials/paper/dual_averaging.md": [("every round", LISTING), ("fco-run task=lasso", RUN)],
    "docs/tutorials/paper/exact.md": [("every round", LISTING), ("fco-run -m task=lasso", RUN)],
    "docs/tutorials/paper/learning_rates.md": [("fco-advise", RUN)],
    "docs/tutorials/paper/local_steps.md": [("every round", LISTING), ("fco-run -m task=lasso", RUN)],
    "docs/tutorials/paper/problem.md": [("fco-run task=lasso", RUN), ("from fco_cli.api import run", RUN)],
    "docs/tutorials/paper/proximal_gradient.md": [("fco-run task=lasso", RUN)],
}  # fmt: skip

# What precedes an excerpt in the text or in the reader's session.
SESSION = {
    ("docs/export.md", "fco-export RECORD"): (
        "fco-run task=custom task.path=heart.csv task.client=hospital task.label='num>0' regularizer.strength=0.05\n"
    ),
    ("docs/data.md", "x = x.tocsr()"): (
        "import numpy as np, scipy.sparse\n"
        "x = scipy.sparse.random(60, 30, density=0.2, random_state=0)\n"
        "y, client = np.arange(60) % 7 / 7, np.arange(60) % 3\n"
    ),
    ("docs/inference.md", "from fco_cli.api import glm"): (  # the published table codes sex as 0 and 1
        "import pandas as pd\nrows = pd.read_csv('heart.csv')\nrows['sex'] = (rows['sex'] == 'm').astype(int)\n"
        "rows.to_csv('heart.csv', index=False)\n"
    ),
    ("docs/python.md", "model = FederatedCox"): (
        "import numpy as np\nfrom fco_cli.estimators import FederatedCox\n"
        "random = np.random.default_rng(0)\n"
        "X, hospital = random.standard_normal((80, 3)), np.arange(80) % 2\n"
        "days, died = random.exponential(np.exp(-X[:, 0])), random.random(80) < 0.7\n"
    ),
    ("docs/regularizers.md", "@dataclass(kw_only=True)"): (
        "from dataclasses import dataclass\nfrom fco_cli.kernels.compiled import kernel\n"
        "from fco_cli.problem.regularizers.base import Constraint\n"
    ),
}


@dataclass(frozen=True)
class Block:
    """Block of a document."""

    language: str
    text: str


def documents() -> list[str]:
    """Return README and all written pages of docs."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [path.relative_to(ROOT) for path in pages]
    return [name.as_posix() for name in names if not GENERATED & set(name.parts)]


def blocks_of(document: str) -> list[Block]:
    """Return the blocks that a reader could run."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = [Block(one["language"].strip(), one["text"]) for one in BLOCK.finditer(text)]
    return [block for block in found if block.language in LANGUAGES]


@pytest.mark.parametrize("document", documents())
def test_every_block_is_listed(document):
    blocks, entries = blocks_of(document), BLOCKS.get(document, [])
    starts = [block.text.splitlines()[0] for block in blocks]
    assert len(blocks) == len(entries), f"{document} has other blocks than BLOCKS: {starts}"
    for start, (known, _) in zip(starts, entries, strict=True):
        assert start.startswith(known), f"{document}: {start!r} is not the block {known!r}"


def test_every_listed_document_and_test_exists():
    assert set(BLOCKS) <= set(documents())
    for entries in BLOCKS.values():
        for start, by in entries:
            if by in (RUN, DRY) or by.startswith("not run: "):
                continue
            file, _, name = by.partition("::")
            assert (ROOT / file).is_file(), f"{start}: {file}"
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{start}: {by}"


def run_block(block: Block, session: str, folder: Path) -> None:
    """Run a block in a folder, as a reader does; fail with its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MPLBACKEND": "Agg"}
    if block.language == "python":
        command = [sys.executable, "-c", session + block.text]
    else:
        text = with_tables(block.text.replace(" RECORD ", " outputs/custom/*/* "))
        command = ["bash", "-euo", "pipefail", "-c", session + text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def with_tables(text: str) -> str:
    """Return commands that read the tables of heart disease from files and not from their publisher."""
    text = text.replace("task.data_dir=DIR", "task.data_dir=data/heart_disease")
    return re.sub(r"task=heart(?! task.data_dir)", "task=heart task.data_dir=data/heart_disease", text)


def sweeps_of(block: Block) -> list[str]:
    """Return the commands of a block that start sweeps."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [re.split(r" && | #", line)[0] for line in lines if line.startswith("fco-run -m ")]


def write_heart(folder: Path) -> None:
    """Write heart.csv with the columns of the documents' commands, and new.csv without the label."""
    random = np.random.default_rng(3)
    lines = []
    hospitals = ("north", "south", "east", "west")
    for i in range(240):
        age, oldpeak, sex = random.normal(54, 9), abs(random.normal(1, 1)), "fm"[random.integers(2)]
        score = 0.06 * (age - 54) + 0.5 * (oldpeak - 1) + 0.8 * (sex == "m") - 0.4
        sick = int(random.random() < 1 / (1 + np.exp(-score)))
        lines.append(f"{hospitals[i % 4]},{age:.1f},{sex},{oldpeak:.2f},{sick}")
    (folder / "heart.csv").write_text("\n".join(["hospital,age,sex,oldpeak,num", *lines]) + "\n")
    new = [line.rpartition(",")[0] for line in lines[:5]]
    (folder / "new.csv").write_text("\n".join(["hospital,age,sex,oldpeak", *new]) + "\n")


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("document", [name for name, entries in BLOCKS.items() if any(by == RUN for _, by in entries)])
def test_the_blocks_of_a_document_run(document, tmp_path):
    write_heart(tmp_path)
    write_small_tables(tmp_path / "data" / "heart_disease")
    for block, (start, by) in zip(blocks_of(document), BLOCKS[document], strict=True):
        if by == RUN:
            run_block(block, SESSION.get((document, start), ""), tmp_path)
            for written in tmp_path.glob("outputs/**/preparation.json"):
                (tmp_path / "preparation.json").write_bytes(written.read_bytes())


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("document", [name for name, entries in BLOCKS.items() if any(by == DRY for _, by in entries)])
def test_the_sweeps_of_a_document_are_valid(document, tmp_path):
    write_small_tables(tmp_path / "data" / "heart_disease")
    for block, (_, by) in zip(blocks_of(document), BLOCKS[document], strict=True):
        if by == DRY:
            commands = sweeps_of(block)
            assert commands, block.text
            for command in commands:
                run_block(Block("sh", f"{command} dry_run=true"), "", tmp_path)
