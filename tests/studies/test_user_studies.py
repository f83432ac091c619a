"""Tests of a study in a folder of the user's own, of claims files, and of the imports of the studies that ship."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fco_cli
import fco_cli.reporting
from fco_cli.commands.report import main
from fco_cli.reporting import Figure, Section, Study, collect, make_report
from fco_cli.studies import all_studies

DOCS = Path(__file__).parents[2] / "docs" / "reporting.md"
SHIPPED = Path(fco_cli.__file__).parent / "studies"
CLAIM = "- {id: one, text: So, experiments: [lasso_i], test: {final: {algo: feddualavg, metric: f1, at_least: 0.9}}}"
STUDY = """
from fco_cli.reporting import Study
class Mine(Study):
    name = "mine"
    def sections(self, results):
"""


@pytest.fixture
def report(capsys, monkeypatch, records):
    """Run the command below the records; return its exit code, output and errors."""
    monkeypatch.chdir(records.root.parent)

    def run(*arguments):
        code = 0
        try:
            main(list(map(str, arguments)))
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def write_study(folder, code, claims=None):
    folder.mkdir()
    (folder / "study.py").write_text(code)
    if claims is not None:
        (folder / "claims.yaml").write_text(claims)
    return folder


def documented():
    """Return the files of the example in the documentation."""
    text = DOCS.read_text().split("## A study of your own")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (claims,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return code, claims


@pytest.mark.usefixtures("quick_figures")
def test_documented_example(records, report, tmp_path):
    code, claims = documented()
    assert len((code + claims).splitlines()) <= 40
    for seed, density in enumerate((0.2, 0.9)):
        records.add("feddualavg", seed=seed, density=(1, density, density, density))
        records.add("fedmid", seed=seed, density=(1, 0.5, 0.5, 0.5))
    folder = write_study(tmp_path / "my_study", code, claims)
    status, out, err = report("outputs", "--study", folder)
    assert (status, err) == (0, "")
    assert "sparsity: sparsity\n" in out
    made = records.root / "report"
    assert "algo,density\n" in (made / "figures" / "sparsity.csv").read_text()
    page = (made / "index.html").read_text()
    assert '<section id="sparsity">' in page
    assert page.index('<section id="sparsity">') < page.index('<section id="lasso_i">')
    assert "<h2>Claims</h2>" in page  # those of the paper and of the study
    ledger = (made / "CLAIMS.md").read_text()
    assert "FedDualAvg is sparser than FedMiD." in ledger
    assert "| lasso_i | **mixed (1 of 2)** |" in ledger


@pytest.mark.usefixtures("quick_figures")
def test_claims_file(records, report, tmp_path):
    records.add(f1=(0, 1, 1))
    file = tmp_path / "my_claims.yaml"
    file.write_text(CLAIM)
    assert report("outputs", "--claims-file", file)[0] == 0
    assert "| lasso_i | **reproduced (1 of 1)** |" in (records.root / "report" / "CLAIMS.md").read_text()


@pytest.mark.usefixtures("quick_figures")
def test_claims_about_own_runs_are_judged(records, report, tmp_path):
    records.add(experiment=None, f1=(0, 1, 1))
    file = tmp_path / "my_claims.yaml"
    file.write_text(CLAIM.replace("lasso_i", "lasso"))
    assert report("outputs", "--claims-file", file)[0] == 0
    ledger = (records.root / "report" / "CLAIMS.md").read_text()
    assert "| lasso | **reproduced (1 of 1)** |" in ledger
    assert ledger.count("\n## ") == 1  # no claims of the paper


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("a: [", "not YAML"),
        ("a: 1", "must be a list of claims"),
        ("- {id: one}", "one: no text; a claim has id, text"),
        (CLAIM[:-1] + ", note: 1}", "one: unknown key note"),
        (CLAIM.replace("final", "guess"), "one: unknown test 'guess', must be one of reaches"),
        (CLAIM.replace("[lasso_i]", "lasso_i"), "one: experiments: got lasso_i, must be a list of names"),
        (CLAIM.replace("at_least", "at_last"), "one: final:"),
        (re.sub(r"final: \{.*", "final: 3}}", CLAIM), "one: final: got 3, must be a mapping"),
    ],
)
def test_invalid_claims_file_is_refused_in_one_line(records, report, tmp_path, content, message):
    records.add()
    file = tmp_path / "my_claims.yaml"
    if content is not None:
        file.write_text(content)
    code, out, err = report("outputs", "--claims-file", file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(:", "study.py, line 1: SyntaxError: invalid syntax"),
        ("import nothing_here", "study.py, line 1: ModuleNotFoundError"),
        ("x = 1", "no class defines a study"),
        (STUDY + "        return results.nothing", "study.py, line 6: AttributeError"),
        (
            STUDY + "        from fco_cli.reporting import Figure, Section\n"
            "        return [Section('a', 'A', figures=[Figure('a', lambda: 1 / 0)])]",
            "study.py, line 7: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_broken_study_is_refused_in_one_line(records, report, tmp_path, code, message):
    records.add()
    folder = write_study(tmp_path / "my_study", code)
    status, _, err = report("outputs", "--study", folder)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err


def test_only_study_py_of_the_folder_is_executed(records, report, tmp_path):
    records.add()
    (tmp_path / "other.py").write_text("raise RuntimeError('executed')")
    status, _, err = report("outputs", "--study", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "neither study.py nor claims.yaml found" in err
    assert "not a folder" in report("outputs", "--study", "nowhere")[2]


def test_section_without_a_heading_is_added_to_the_one_of_the_same_slug():
    section = Section("a", "A", figures=[Figure(kind, b"", kind=kind) for kind in ("curves", "brain")])
    figure = Figure("x", b"", kind="x", before="brain")
    section.add(Section("a", figures=[figure], notes=["note"]))
    assert [one.kind for one in section.figures] == ["curves", "x", "brain"]
    assert section.notes == ["note"]
    section.add(Section("a", figures=[Figure("y", b"", kind="y", alone=True)]))
    assert [one.kind for one in section.figures] == ["y"]


@pytest.mark.usefixtures("quick_figures")
def test_legends_have_the_papers_methods_first_in_its_order(records, tmp_path):
    for algo in ("zhj", "fedavg_subgrad", "fedavg", "feddualavg"):
        records.add(algo)
    made = make_report(collect([records.root]), tmp_path / "report", all_studies())
    assert list(made.choices["lasso_i"]) == ["feddualavg", "fedavg", "fedavg_subgrad", "zhj"]
    alone = make_report(collect([records.root]), tmp_path / "alone")
    assert list(alone.choices["lasso_i"]) == ["zhj", "fedavg_subgrad", "feddualavg", "fedavg"]  # by family and label


def test_shipped_studies_are_found_and_those_of_folders_are_not(records, report, tmp_path):
    records.add()
    write_study(tmp_path / "my_study", STUDY + "        return 1 / 0")
    report("outputs", "--study", tmp_path / "my_study")
    assert {study.name for study in all_studies() if not type(study).__module__.startswith("tests")} == {
        "leaderboard", "yuan2021",
    }  # fmt: skip
    assert all(isinstance(study, Study) for study in all_studies())


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/*.py")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_studies_use_only_the_public_api_of_reporting(path):
    own = f"fco_cli.studies.{path.parent.name}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not [one.name for one in node.names if one.name.startswith("fco_cli")]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            if node.module.startswith("fco_cli") and not node.module.startswith((own, "fco_cli.errors")):
                assert node.module == "fco_cli.reporting"
                assert {one.name for one in node.names} <= set(fco_cli.reporting.__all__)
