"""All installed commands have a version and help, and print both quickly."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_every_command_tells_the_version_of_the_distribution(command):
    """The version is that of this package, not of the package fco on PyPI."""
    assert PROJECT["name"] == "fco-cli"
    done = subprocess.run([BIN / command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fco-cli {version('fco-cli')}\n"


def test_no_hint_names_the_other_package():
    """pip install 'fco[...]' would fetch a file copier, and fco-cli on PyPI is not ours either."""
    root = Path(__file__).parents[2]
    texts = [path for folder in ("fco_cli", "docs", "conf") for path in (root / folder).rglob("*.[mpy]*")]
    for path in [*texts, *root.glob("*.md"), root / "pyproject.toml"]:
        if path.suffix in (".py", ".md", ".yaml", ".toml"):
            text = path.read_text()
            assert "fco[" not in text, path
            assert not re.search(r"pip install '?fco-cli", text), path


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_a_quick_answer_loads_nothing_heavy(command):
    """fco-run --help has to come in 0.15 s; what takes longer is imported when it is used."""
    module = PROJECT["scripts"][command].partition(":")[0]
    flag = "--help" if command in ("fco-advise", "fco-run", "fco-theory") else "--version"
    script = f"import sys; sys.argv = ['{command}', '{flag}']; from {module} import main; main()\n"
    script += "print(*{'hydra', 'omegaconf', 'numpy', 'numba', 'pandas', 'rich', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.ci
def test_a_run_loads_nothing_that_it_does_not_use(tmp_path):
    """From the second call on: machine code from the cache needs none of Numba's compiler."""
    words = [
        "task=lasso",
        "task.dimension=20",
        "task.ones=5",
        "hparams.rounds=2",
        "force=true",
        f"output_dir={tmp_path}",
    ]
    heavy = "{'scipy.sparse', 'scipy.linalg', 'numba.np.arraymath', 'pandas', 'sklearn', 'matplotlib', 'distributed'}"
    script = f"import sys; sys.argv = ['fco-run', *{words}]; from fco_cli.commands.run import main; main()\n"
    script += f"print(*{heavy} & set(sys.modules))"
    for _ in range(2):
        command = [sys.executable, "-c", script]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"NUMBA_DISABLE_JIT": "0"}
        )
    assert done.stdout.splitlines()[-1] == ""
