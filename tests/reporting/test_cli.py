from __future__ import annotations

import base64
import csv
import json
import re
import subprocess
import sys
import zlib

import pytest

from fco_cli.commands.report import main


@pytest.fixture
def report(records, monkeypatch, capsys):
    """Return a function that runs the command in the records' folder and returns exit code, stdout and stderr."""
    records.root.mkdir(exist_ok=True)
    monkeypatch.chdir(records.root.parent)

    def run(*arguments):
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_report_has_figures_tables_ledger_and_page(records, report):
    for client_lr in (0.001, 0.003):
        records.add("feddualavg", client_lr)
        records.add("fedmid", client_lr)
    code, out, err = report("lasso_i")
    folder = records.root / "report"
    assert (code, err) == (0, "")
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"lasso_i{kind}.{suffix}" for kind in ("", "_learning_rates") for suffix in ("png", "pdf", "csv")
    }
    assert {path.name for path in (folder / "tables").iterdir()} == {f"lasso_i.{s}" for s in ("md", "csv", "tex")}
    assert (folder / "CLAIMS.md").read_text().startswith("# Claims ledger")
    assert (folder / "index.html").read_text().startswith("<!doctype html>")
    assert "lasso_i: curves, learning_rates from 4 runs, profile paper" in out
    assert "not run: curse, curse_one_epoch, digits" in out
    assert "lasso_i_extended, lasso_ii" in out
    assert "fco-run -m experiment=curse" in out
    assert "report: outputs/report/index.html" in out


@pytest.mark.usefixtures("quick_figures")
def test_several_sources_make_one_report(records, report):
    records.add(experiment="lasso_i")
    records.add(experiment="lasso_ii", profile="quick")
    code, out, _ = report("outputs/lasso_i", "lasso_ii", "lasso_iii", "--output", "elsewhere")
    assert code == 0
    assert "lasso_i: curves from 1 run, profile paper" in out
    assert "lasso_ii_quick: curves from 1 run, profile quick" in out
    assert "lasso_iii" in out.split("not run: ")[1]
    assert (records.root.parent / "elsewhere" / "index.html").exists()


@pytest.mark.usefixtures("quick_figures")
def test_a_report_removes_the_figures_of_an_earlier_one_and_nothing_else(records, report):
    records.add(experiment="lasso_i")
    records.add(experiment="lasso_ii")
    assert report("lasso_i")[0] == 0
    figures = records.root / "report" / "figures"
    (figures / "mine.png").write_bytes(b"own")
    assert report("lasso_ii", "--row")[0] == 0
    assert {path.stem for path in figures.iterdir()} == {"mine", "lasso_ii"}
    assert {path.stem for path in (records.root / "report" / "tables").iterdir()} == {"lasso_ii"}


@pytest.mark.usefixtures("quick_figures")
def test_csv_and_claims(records, report):
    records.add("fedmid", f1=(0, 0, 1, 1))
    code, out, _ = report("--csv", "runs.csv", "--claims", "--x", "bytes")
    assert code == 0
    with (records.root.parent / "runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["algo"], float(row["f1"])) == ("fedmid", 1.0)
    assert "lasso I, FedMiD is least sparse" in out
    assert "fMRI" not in out.split("not run: ")[0]  # not run


@pytest.mark.usefixtures("quick_figures")
def test_own_results_come_first_and_claims_only_on_request(records, report):
    """Test a task that shares its name with an experiment."""
    own = records.add(experiment=None, task={"name": "digits"}, validation_auc=(0.5, 0.8, 0.9, 0.875))
    result = json.loads((own / "result.json").read_text())
    ends = {"test": {"test_auc": 0.8125}, "convergence": {"converged": True, "line": "converged"}}
    (own / "result.json").write_text(json.dumps(result | ends))
    _, out, _ = report()
    folder = records.root / "report"
    assert out.splitlines()[0] == "digits: curves from 1 run"
    assert "claims" not in out
    assert "not run" not in out
    page = (folder / "index.html").read_text()
    summary = page.split('<section id="summary">')[1].split("</section>")[0]
    assert re.findall("<th>(.*?)</th>", summary) == [
        "algorithm", "learning rates", "converged", "test auc", "training loss + ψ", "F1", "validation AUC",
    ]  # fmt: skip
    assert "<td>FedDualAvg</td><td>(0.001, 1)</td><td>yes</td><td>0.8125</td><td>3</td><td>0.7</td>" in summary
    assert "claims" not in page.split("<body>")[1].split("<script")[0]
    assert not (folder / "CLAIMS.md").exists()
    _, out, _ = report("--claims")
    assert "claims: 0 claims can be judged from these records; 136 need experiments not run here" in out
    page = (folder / "index.html").read_text()
    assert page.index('<section id="digits">') < page.index('<section id="claims">')
    assert (folder / "CLAIMS.md").exists()


@pytest.mark.usefixtures("quick_figures")
def test_own_runs_precede_the_papers_experiments(records, report):
    records.add("fedmid")
    records.add(experiment=None, task={"name": "custom", "path": "data/heart.csv", "label": "num>0"})
    _, out, _ = report()
    page = (records.root / "report" / "index.html").read_text()
    order = ["summary", "custom", "lasso_i", "claims", "runs"]
    assert re.findall('<section id="(.*?)">', page) == order
    assert re.findall('<li><a href="#(.*?)">', page) == order
    assert "<h2>custom: heart.csv</h2>" in page
    assert "fco-run -m task=custom task.path=data/heart.csv &#39;task.label=num&gt;0&#39;" in page
    assert "claims: 0 claims can be judged from these records; 13 need the complete, unaltered experiment; 123 " in out


@pytest.mark.usefixtures("quick_figures")
def test_page_has_the_optimality_gap_of_every_run(records, report):
    records.add("fedmid", objective=(9, 7, 6, 5))
    records.add("optimum", f1=(0, 1), objective=(9, 3))
    report()
    page = (records.root / "report" / "index.html").read_text()
    packed = re.search(r'<script id="data" type="text/plain">(.*?)</script>', page).group(1)
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert {run["algo"]: run["gap"] for run in data["runs"]} == {"fedmid": 2, "optimum": 0}
    assert "<th>optimality gap</th>" in page


@pytest.mark.usefixtures("quick_figures")
def test_damaged_records_are_listed_and_do_not_stop_the_report(records, report):
    records.add("feddualavg")
    (records.add("fedmid") / "result.json").write_text("{")
    code, out, err = report()
    assert code == 0
    assert "fco-report: left out outputs/lasso_i/lasso/fedmid/" in err
    assert "result.json is not JSON" in err
    assert "from 1 run" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lasso_x"], "lasso_x: neither a folder nor an experiment; the experiments are curse, curse_one_epoch"),
        (["lasso_i"], "lasso_i: no finished records found"),
        (["outputs"], "outputs: no finished records found"),
        ([], "outputs: no finished records found"),
    ],
)
def test_invalid_source_gives_one_line_and_exit_code_2(report, arguments, message):
    code, out, err = report(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"fco-report: {message}")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("quick_figures")
def test_unwritable_output_gives_one_line_and_exit_code_2(records, report):
    records.add()
    (records.root.parent / "taken").write_text("")
    code, _, err = report("--output", "taken")
    assert code == 2
    assert err == "fco-report: --output: taken cannot be created: File exists\n"
    code, _, err = report("--csv", "nowhere/runs.csv")
    assert code == 2
    assert err == "fco-report: nowhere/runs.csv: cannot be written: No such file or directory\n"


@pytest.mark.usefixtures("quick_figures")
def test_folder_names_are_escaped_on_the_terminal(records, report):
    records.add()
    _, out, err = report("--output", "\x1b[31mred")
    assert r"report: \x1b[31mred/index.html" in out
    _, _, err = report("\x1b[31mred")
    (records.root.parent / "\x1b[2Jtaken").write_text("")
    _, _, refused = report("--output", "\x1b[2Jtaken")
    assert "\x1b" not in out + err + refused


def test_reporting_reads_records_and_never_loads_the_simulation():
    program = (
        "import sys, fco_cli.commands.report, fco_cli.reporting.report; "
        "heavy = ('numba', 'fco_cli.simulation', 'fco_cli.algorithms'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_invalid_csv_path_is_rejected_before_the_report_is_made(records, report):
    records.add()
    for name in ("", ".", "outputs"):
        code, _, err = report("--csv", name)
        assert code == 2
        assert "must be the name of a file" in err
        assert err.count("\n") == 1
    assert not (records.root / "report").exists()


@pytest.mark.usefixtures("quick_figures")
def test_control_characters_in_a_folder_name_are_escaped(records, report):
    records.add()
    code, out, _ = report("--output", "red\x1b[31m")
    assert code == 0
    assert "report: red\\x1b[31m/index.html" in out
