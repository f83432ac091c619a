"""Every command and every block of Python in the README and the tutorials, in the order of the text."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "docs" / "tutorials" / "paper"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:[Ss]ave\s+this as `(?P<name>\S+)`:\n\n)?```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL)


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Return file name (or ""), language and content of every block."""
    return [(found["name"] or "", found["language"], found["text"]) for found in BLOCK.finditer(text)]


def run_commands(commands: str, folder: Path) -> str:
    """Run the lines of a block in bash, as a reader does; return their output."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def section(title: str) -> str:
    """Return a section of the README."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", ["hospitals", "own_method"])
def test_a_tutorial_from_start_to_end(name, tmp_path):
    output = ""
    for file, language, content in blocks((ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")):
        if language == "python":
            (tmp_path / file).write_text(content)
        elif language == "text":  # printed by the command above
            lines = [line.split() for line in output.splitlines()]
            assert all(line.split() in lines for line in content.splitlines()), output
        else:
            assert not language
            output = run_commands(content, tmp_path)
    assert list(tmp_path.glob("outputs/**/result.json"))
    assert (tmp_path / "outputs" / "report" / "index.html").exists()


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_numbers_of_the_tutorials(tmp_path):
    """docs/tutorials/hospitals.md: missing cells, areas under the curve, the odds ratio of men."""
    import pandas as pd

    from fco_cli.api import glm, path

    run_commands("fco-data example", tmp_path)
    text = " ".join((ROOT / "docs" / "tutorials" / "hospitals.md").read_text(encoding="utf-8").split())
    table = pd.read_csv(tmp_path / "hospitals.csv")
    missing = table["cholesterol"].isna().groupby(table["hospital"]).mean()
    assert f"for {missing.pop('south'):.0%} of its patients".replace("%", " %") in text
    assert missing.max() < 0.09
    keys = [f"task.path={tmp_path}/hospitals.csv", "task.client=hospital", "task.label=diagnosis"]
    keys += ["task.drop=[days,died]", f"output_dir={tmp_path}/outputs"]
    record = path(*keys)
    clients = record.clients[record.clients["choice"] == "1se"].set_index("client")["auc"]
    stated = re.search(r"is (0\.\d+) in the east, (0\.\d+) in the north, (0\.\d+) in the south and (0\.\d+)", text)
    assert stated.groups() == tuple(f"{clients[name]:.2f}" for name in ("east", "north", "south", "west"))
    assert len(record.models["1se"]) == 6 + 1
    ratio = glm(*keys).table.loc["sex=male"]
    stated = re.search(r"have ([\d.]+) times the odds of women, with a 95 % interval of (\d+\.\d) to (\d+\.\d)", text)
    names = ("ratio", "ratio_low", "ratio_high")
    assert stated.groups() == tuple(f"{ratio[name]:.1f}" for name in names)


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_numbers_of_the_paper_tutorial(tmp_path):
    """docs/tutorials/paper: the gap of `gap.py`, the F1 scores of local epochs, the gaps of exact methods."""
    from fco_cli.api import load

    directive = re.compile(r"```\{.*?```\n", re.DOTALL)
    pages = {path.stem: directive.sub("", path.read_text(encoding="utf-8")) for path in PAPER.glob("*.md")}

    def command(name: str) -> str:
        (text,) = [text for _, language, text in blocks(pages[name]) if not language and text.startswith("fco-run")]
        return text.partition("\nfco-report")[0]

    def finals(folder: Path, key: str) -> dict[str, dict]:
        """Return the final metrics of the records of a folder, by a key of their configuration."""
        return {str(row[key]): row for row in load(folder).to_dict("records")}

    (script,) = [text for _, language, text in blocks(pages["problem"]) if language == "python"]
    (tmp_path / "gap.py").write_text(script)
    printed = [float(number) for number in re.findall(r"[\d.]+e[+-]\d+", run_commands("python gap.py", tmp_path))]
    stated = re.search(r"The gap falls from (\S+) to (\S+)\.", pages["problem"])
    assert printed[0] == pytest.approx(float(stated[1]), abs=0.5)
    assert printed[-1] == pytest.approx(float(stated[2]), rel=0.5)

    run_commands(f"{command('local_steps').strip()} output_dir=steps", tmp_path)
    scores = finals(tmp_path / "steps", "hparams.local_epochs")
    stated = re.search(r"is (0\.\d+), (0\.\d+) and (0\.\d+) with 1, 2 and 5 epochs", pages["local_steps"])
    assert stated.groups() == tuple(f"{scores[epochs]['f1']:.3f}" for epochs in ("1", "2", "5"))

    run_commands(f"{command('exact').strip()} output_dir=exact", tmp_path)
    run_commands("fco-run task=lasso task.heterogeneity=0.3 algo=optimum output_dir=exact", tmp_path)
    objectives = {algo: row["objective"] for algo, row in finals(tmp_path / "exact", "algo").items()}
    gaps = {algo: objective - objectives["optimum"] for algo, objective in objectives.items()}
    stated = re.search(r"the gap is (\S+) for FedDualAvg and (\S+) and (\S+) for the other two", pages["exact"])
    for text, algo in zip(stated.groups(), ("feddualavg", "feddualavg_cv", "zhj"), strict=True):
        assert gaps[algo] == pytest.approx(float(text), rel=0.1), algo


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_table_of_the_readme(tmp_path):
    ((_, _, commands),) = blocks(section("Your own table"))
    run_commands(commands, tmp_path)
    assert list(tmp_path.glob("outputs/path/custom/auto/*/1se/model.csv"))
    assert (tmp_path / "outputs" / "report" / "index.html").exists()


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_python_of_the_readme(tmp_path, monkeypatch):
    import numpy as np

    from fco_cli.estimators import FederatedLasso

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    ((_, language, code),) = blocks(section("Python"))
    assert language == "python"
    exec(code, {})
    assert (tmp_path / "f1.png").read_bytes().startswith(b"\x89PNG")
    random = np.random.default_rng(0)
    X, hospital = random.standard_normal((60, 4)), random.integers(0, 3, 60)
    (inline,) = re.findall(r"`(FederatedLasso\(.*?\)\.fit\(.*?\))`", section("Python"))
    model = eval(inline, {"FederatedLasso": FederatedLasso, "X": X, "y": 2 * X[:, 1], "hospital": hospital})
    assert np.argmax(abs(model.coef_)) == 1


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_commands_of_the_page_about_searches(tmp_path):
    pytest.importorskip("optuna")
    commands = [text for _, language, text in blocks((ROOT / "docs" / "search.md").read_text()) if language == "sh"]
    assert len(commands) == 2
    output = "".join(run_commands(text, tmp_path) for text in commands)
    assert output.count("best by ") == 3
    assert len(list(tmp_path.glob("**/search/*/best.yaml"))) == 3


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_sixty_seconds_of_the_readme(tmp_path):
    (_, _, _), (_, _, shown) = blocks(section("Sixty seconds"))
    (command,) = re.findall(r"then (fco-run .*)", section("Sixty seconds"))
    dry = subprocess.run(["make", "--dry-run", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert command in dry
    output = run_commands(command, tmp_path)
    printed = [" ".join(line.split()) for line in output.splitlines()]
    assert all(" ".join(line.split()) in printed for line in shown.splitlines())


@pytest.mark.ci
def test_the_options_of_the_sites_of_the_readme(here, tmp_path):
    """The commands of sites need a coordinator: their options exist, and the analyst's keys are composed."""
    ((_, _, commands),) = blocks(section("Real sites"))
    serve, join, analyst = (shlex.split(line, comments=True) for line in commands.splitlines())
    for command, *words in (serve, join):
        text = run_commands(f"{command} {words[0]} --help", tmp_path)
        options = [word for word in words if word.startswith("--")]
        assert all(re.search(rf"{option}\b", text) for option in options)
        usage = text.partition("\n\n")[0]
        while usage != (inner := re.sub(r"\[[^][]*\]", "", usage)):  # optional arguments, which may be nested
            usage = inner
        assert set(re.findall(r"--[a-z-]+", usage)) <= set(options)
    assert "sites:\n  - north\n  - south" in here(*analyst[1:], "--cfg", "job", cwd=tmp_path).out


def test_the_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_of_the_readme_and_contributing():
    for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md"):
        document = ROOT / name
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{name}: {target}"


def load_badges() -> ModuleType:
    """Return the module docs/badges.py, which is not part of a package."""
    spec = importlib.util.spec_from_file_location("badges", ROOT / "docs" / "badges.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ledger_adds_up():
    """The README's totals are the sums of the columns of the table in docs/results.md."""
    from fco_cli.studies.yuan2021 import Yuan2021

    columns = ("reproduced", "mixed", "not reproduced", "not run")
    pattern = r"applies (\d+) tests of .*?:\n" + ",".join(rf"\s*(\d+) {name}\b[^,.]*" for name in columns)
    total, *parts = map(int, re.search(pattern, README).groups())
    assert load_badges().ledger() == dict(zip(columns, parts, strict=True))
    assert sum(parts) == total
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"applies {total} tests" in text
    claims = Yuan2021().claims
    tests = sum(len(claim.experiments) for claim in claims)
    assert f"{len(claims)} statements make {tests} tests" in text
    assert f"; {total - tests} are repeated" in text
    smaller = [line for line in text.splitlines() if "two smaller client rates" in line and line.startswith("|")]
    (stated,) = re.findall(r"not reproduced, (\d+) are about smaller", " ".join(README.split()))
    assert sum(int(line.strip("|").split("|")[3]) for line in smaller) == int(stated)


def test_the_badges_of_the_readme_are_true():
    """The files are those that docs/badges.py draws now, and the alternative texts have the same values."""
    badges = load_badges()
    for name, (label, value, color) in badges.values().items():
        path = badges.FOLDER / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == badges.badge(label, value, color), "run python docs/badges.py"
        (text,) = re.findall(rf"!\[([^]]*)\]\(docs/images/badges/{name}\.svg\)", README)
        assert set(value.replace("reproduced", "").split()) <= set(text.split())


def test_the_number_of_methods_of_the_readme():
    from fco_cli.algorithms import all_algorithms

    paper = {"feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp", "fedavg", "fedavg_subgrad"}
    known = {name: kind for name, kind in all_algorithms().items() if kind.__module__.startswith("fco_cli.")}
    assert paper <= set(known)
    later = [name for name, kind in known.items() if kind.federated and name not in paper]
    (stated,) = re.findall(r"more than (\d+) later methods", README)
    assert len(later) > int(stated)
