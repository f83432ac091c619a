"""fco-reproduce, the command behind `make reproduce-figures`."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fco_cli.commands import reproduce as command
from fco_cli.data.published import PUBLICATIONS

REPRODUCE = Path(sys.executable).with_name("fco-reproduce")


def reproduce(*arguments, cwd):
    return subprocess.run([REPRODUCE, *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.mark.ci
def test_figures_and_page_are_made(tmp_path, monkeypatch, capfd):
    """Reproduction with small data; test_sweeps.py tests that a second call runs nothing again."""
    (tmp_path / "outputs" / "figures").mkdir(parents=True)  # as an earlier call has left it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fco-reproduce"])
    small = ["task.dimension=12", "task.ones=4", "task.clients=10", "task.samples=12"]
    monkeypatch.setattr(command, "FCO_RUN", [*command.FCO_RUN, *small])
    assert end_of("--profile", "smoke", "lasso_iii") == 0
    for name in ("lasso_iii_smoke.png", "lasso_iii_smoke.pdf", "lasso_iii_smoke_learning_rates.png"):
        assert (tmp_path / "outputs" / "figures" / name).stat().st_size > 1000
    assert "<html" in (tmp_path / "outputs" / "report" / "index.html").read_text()
    assert "lasso_iii_smoke: curves, learning_rates" in capfd.readouterr().out


def test_a_wrong_name_is_one_line(tmp_path):
    done = reproduce("lasso_v", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fco-reproduce: lasso_v: no such experiment; the experiments are ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def without_data(tmp_path, monkeypatch):
    """Return a machine without downloads, whose fco-run records its calls and exits with the given codes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NILEARN_DATA", str(tmp_path / "nilearn"))
    monkeypatch.setenv("NILEARN_SHARED_DATA", str(tmp_path / "nilearn"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["fco-reproduce"])
    started, ends = [], {}

    def run_experiment(name, profile, more):
        started.append(" ".join([name, *more]))
        return ends.get(name, (0, ""))

    monkeypatch.setattr(command, "run_experiment", run_experiment)
    return started, ends


def end_of(*arguments):
    with pytest.raises(SystemExit) as end:
        command.main(list(arguments))
    return end.value.code


def test_what_is_skipped_before_anything_starts(without_data, capsys):
    """Experiments whose data are not here, and, silently, those that run only when they are named."""
    started, _ = without_data
    assert end_of("--profile", "smoke") == 0
    skipped = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("skipped ")]
    assert skipped == ["skipped femnist10_l1", "skipped femnist10_l2", "skipped femnist62_mlp", "skipped fmri"]
    assert "fmri_sim" in started
    assert not {"femnist10_l1", "femnist10_l2", "femnist62_mlp", "fmri"} & set(started)
    assert not [name for name in started if name.startswith(command.on_demand())]


def test_quick_runs_a_few(without_data):
    started, _ = without_data
    assert end_of("--profile", "quick") == 0
    assert started == list(command.QUICK)


def test_the_quick_leaderboard_runs_a_few_problems_and_says_so(without_data, capsys):
    started, _ = without_data
    assert end_of("--profile", "quick", "--leaderboard", "successors_batches") == 0
    assert started == ["successors_batches", *command.QUICK_LEADERBOARD]
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(
        "leaderboard, one seed: successors_batches, few_rounds, successors, successors_low_rank_i; "
    )


@pytest.mark.ci
def test_the_leaderboard_is_all_of_its_experiments_whose_data_are_here(without_data, capsys):
    started, _ = without_data
    assert end_of("--leaderboard") == 0
    assert "successors" in started
    assert all(name.startswith(("successors", "few_rounds")) for name in started)
    assert "skipped successors_heart: heart_disease is not on this machine" in capsys.readouterr().out
    folder = PUBLICATIONS["heart"].folder
    folder.mkdir(parents=True)
    for file in PUBLICATIONS["heart"].files:
        (folder / file.name).touch()
    assert end_of("--leaderboard") == 0
    assert "successors_heart" in started


def test_one_method_alone_joins_what_is_there(without_data, capsys):
    started, _ = without_data
    assert end_of("--algo", "zhj", "successors", "successors_digits") == 0
    assert started == ["successors algo=zhj,optimum", "successors_digits algo=zhj,optimum"]
    assert end_of("--algo", "optimum", "successors", "lasso_i") == 0
    assert started[2:] == ["successors algo=optimum", "lasso_i algo=optimum"]
    assert end_of("--algo", "jhz", "successors") == 2
    assert "fco-reproduce: --algo: got jhz, must be one of c_fedda, " in capsys.readouterr().err


def test_a_method_that_a_problem_does_not_support_is_skipped_with_the_reason(without_data, capsys):
    started, ends = without_data
    ends["successors"] = 2, "fco-run: algo: refused"
    assert end_of("--algo", "scaffnew", "successors", "successors_sampled") == 2
    assert started == ["successors algo=scaffnew,optimum"]
    said = capsys.readouterr()
    assert "skipped successors with scaffnew: algo: refused" in said.out
    assert "skipped successors_sampled with scaffnew: the method does not support this problem" in said.out
    assert said.err == "fco-reproduce: --algo: no experiment was run with scaffnew; see the reasons above\n"


def test_a_file_of_methods_and_a_model(without_data, tmp_path, capsys):
    started, _ = without_data
    (tmp_path / "two_methods.py").write_text(TWO_METHODS)
    (tmp_path / "empty_plugin.py").write_text(
        "from fco_cli.problem.mirror_maps import Mirror\n\n\nclass My(Mirror):\n    name = 'my'\n"
    )
    assert end_of("--algo", "two_methods.py", "--model", "net.py:Net", "successors") == 0
    more = "plugins=['two_methods.py'] model=torch model.module=net.py:Net"
    assert started == [f"successors algo={name},optimum {more}" for name in ("first_of_two", "second_of_two")]
    assert end_of("--algo", "two_methods.py", "--model", "small_choice", "successors") == 2
    assert "--model: got small_choice, must be FILE.py, FILE.py:NAME or one of auto, " in capsys.readouterr().err
    assert end_of("--algo", "two_methods.py", "--model", "two_methods.py", "successors") == 2
    assert "--model: two_methods.py defines no model; define one ModelChoice" in capsys.readouterr().err
    assert end_of("--algo", "empty_plugin.py", "successors") == 2
    assert "--algo: empty_plugin.py defines no algorithm with a name" in capsys.readouterr().err
    assert end_of("--algo", "absent.py", "successors") == 2
    assert "plugins: absent.py: no such file" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra `torch`)")
def test_a_file_of_a_pytorch_module_is_a_model(without_data, tmp_path, capsys):
    started, _ = without_data
    (tmp_path / "one_net.py").write_text("from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n")
    assert end_of("--profile", "quick", "--leaderboard", "--algo", "zhj", "--model", "one_net.py") == 0
    assert started == ["successors_digits algo=zhj,optimum model=torch model.module=one_net.py:Net"]
    (tmp_path / "no_net.py").write_text("from torch.nn import Linear\n")
    assert end_of("--algo", "zhj", "--model", "no_net.py", "successors") == 2
    assert "--model: no_net.py defines no model; define one ModelChoice, or give FILE.py" in capsys.readouterr().err
    (tmp_path / "two_nets.py").write_text((tmp_path / "one_net.py").read_text() + "class Other(Net):\n    pass\n")
    assert end_of("--algo", "zhj", "--model", "two_nets.py", "successors") == 2
    assert "--model: two_nets.py defines 2 models; " in capsys.readouterr().err
    assert len(started) == 1


TWO_METHODS = """
from dataclasses import dataclass

from fco_cli.algorithms.fedavg import FedAvg


@dataclass(kw_only=True)
class First(FedAvg):
    name: str = "first_of_two"


@dataclass(kw_only=True)
class Second(FedAvg):
    name: str = "second_of_two"
"""


def test_data_that_are_here_are_no_reason_to_skip(without_data, tmp_path, capsys):
    started, _ = without_data
    (tmp_path / "cache" / "fco" / "data" / "fed_emnist_digitsonly").mkdir(parents=True)
    for name in ("mask.nii.gz", *(f"subj{n}/{name}" for n in range(1, 7) for name in ("bold.nii.gz", "labels.txt"))):
        path = tmp_path / "nilearn" / "haxby2001" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert end_of("femnist10_l1", "fmri", "femnist62_mlp") == 0
    assert started == ["femnist10_l1", "fmri"]
    assert "skipped femnist62_mlp: https://" in capsys.readouterr().out
    assert end_of("--download", "femnist62_mlp") == 0
    assert started[2:] == ["femnist62_mlp"]


@pytest.mark.parametrize("code", [1, 2])
def test_whatever_else_ends_badly_has_failed(without_data, capsys, code):
    """Errors such as a full disk, which fco-run reports with exit code 2."""
    started, ends = without_data
    ends["lasso_i"] = code, "fco-run: outputs/x: cannot be written: No space left on device"
    assert end_of("lasso_i", "nuclear_i") == 1
    assert started == ["lasso_i", "nuclear_i"]
    said = capsys.readouterr()
    assert "fco-reproduce: failed: lasso_i: outputs/x: cannot be written: No space left on device" in said.err
    assert "skipped" not in said.out


def test_a_signal_ends_all(without_data):
    started, ends = without_data
    ends["lasso_i"] = 130, "fco-run: stopped"
    assert end_of("lasso_i", "nuclear_i") == 130
    assert started == ["lasso_i"]
