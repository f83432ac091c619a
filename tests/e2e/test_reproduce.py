"""fco-reproduce, the command behind `make reproduce-figures`."""

import subprocess
import sys
from pathlib import Path

REPRODUCE = Path(sys.executable).with_name("fco-reproduce")


def reproduce(*arguments, cwd):
    return subprocess.run([REPRODUCE, *arguments], cwd=cwd, capture_output=True, text=True)


def test_figures_and_page_are_made_and_nothing_is_done_twice(tmp_path):
    first = reproduce("--profile", "smoke", "lasso_iii", "nuclear_iii", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for name in ("lasso_iii_smoke.png", "nuclear_iii_smoke.pdf", "lasso_iii_smoke_learning_rates.png"):
        assert (tmp_path / "outputs" / "figures" / name).stat().st_size > 1000
    assert "<html" in (tmp_path / "outputs" / "report" / "index.html").read_text()
    assert "lasso_iii_smoke: curves, learning_rates" in first.stdout
    records = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert reproduce("--profile", "smoke", "lasso_iii", "nuclear_iii", cwd=tmp_path).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == records


def test_a_wrong_name_is_one_line(tmp_path):
    done = reproduce("lasso_v", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fco-reproduce: lasso_v: no such experiment; the experiments are ")
    assert done.stderr.count("\n") == 1
