"""Hydra's test suites for launchers, and tests of the plugins' own features."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module, version
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite
from hydra.types import HydraContext
from omegaconf import OmegaConf

import hydra_plugins.fco_launcher
from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.sweeps.run import Sweep
from hydra_plugins.fco_launcher import Composer, FusedLauncher, GridSweeper

register()


def test_hydra_finds_the_plugins():
    assert FusedLauncher in Plugins.instance().discover(Launcher)
    assert GridSweeper in Plugins.instance().discover(Sweeper)


@pytest.fixture
def scripts_run_on_314(tmp_path_factory, monkeypatch):
    """Hydra's suites start plain scripts; apply the patch for Python 3.14 in every child process."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("from fco_cli.help import patch_argparse\n\npatch_argparse()\n")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


@pytest.mark.usefixtures("scripts_run_on_314")
@pytest.mark.filterwarnings("ignore:Future Hydra versions", "ignore::hydra.errors.Hydra14MigrationWarning")
@pytest.mark.parametrize(("launcher_name", "overrides"), [("fused", [])])
class TestFusedLauncher(LauncherTestSuite):
    """Without a `sweep` function of the application, its jobs run one after another."""

    @pytest.fixture(autouse=True)
    def _as_hydra_runs_its_suite(self):
        """The suite expects jobs to change their folder, as before Hydra 1.2, and makes Hydra search plugins again."""
        version.setbase("1.1")
        register()  # Hydra's search does not find the plugins in an editable install


@pytest.mark.usefixtures("scripts_run_on_314")
@pytest.mark.parametrize(("task_launcher_cfg", "extra_flags"), [({}, ["-m", "hydra/launcher=basic"])])
class TestBasicStillWorks(IntegrationTestSuite):
    """Registering the plugins must not affect Hydra's own."""


JOBS = [
    ["task=nuclear", "algo=fedmid", "hparams.client_lr=0.01", "seed=3"],
    ["task=lasso", "algo=optimum", "regularizer.strength=0.25"],
    ["experiment=lasso_i_extended", "profile=smoke", "hparams.server_lr=10", "task.clients=12"],
    ["regularizer=l1_ball", "regularizer.radius=3", "hparams.weighting=examples"],
    ["algo=scaffnew", "hparams.client_lr=0.3/L", "algo.coin=true", "task.name='${hparams.weighting}'"],
    ["hparams.client_lr=2", "hparams.server_lr=1", "seed=3", "algo=fedmid", "algo.name='fedmid_${seed}'"],
]


def test_a_shared_composition_equals_hydras_own():
    """Numbers applied to a shared composition give the same configuration as a full composition by Hydra."""
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        loader = GlobalHydra.instance().hydra.config_loader
        master = compose("config", return_hydra_config=True)
        composer = Composer(loader, master)
        for warm_up in JOBS:
            composer.job(warm_up)
        for job in JOBS:
            ours, _ = composer.job(job)
            assert ours.config() == compose("config", overrides=job)


def test_runs_with_a_shared_configuration_equal_separate_ones():
    """The second run is the first one with other numbers; so is the last, whose client rate is the default."""
    chosen = [["hparams.client_lr=0.5", "seed=1"], ["hparams.client_lr=2", "seed=4"], ["hparams.server_lr=3"]]
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        composer = Composer(GlobalHydra.instance().hydra.config_loader, compose("config", return_hydra_config=True))
        jobs = [composer.job(["task=nuclear", *numbers])[0] for numbers in chosen]
        assert all(job.shared is jobs[0].shared for job in jobs)
        sweep = Sweep(jobs, chosen, n_jobs=1, memory_mb=512, backend="local", address=None)
        for run, numbers in zip(sweep.runs, chosen, strict=True):
            whole = Run.of(compose("config", overrides=["task=nuclear", *numbers]))
            assert (run, run.yaml, run.identity) == (whole, whole.yaml, whole.identity)
    with pytest.raises(UserError, match="client_lr: got -1"):
        sweep.runs[1].with_numbers({"hparams.client_lr": -1.0})
    with pytest.raises(UserError, match="seed: got -1"):
        sweep.runs[1].with_numbers({"seed": -1})


def jobs_of(params, grid_of, arguments, tmp_path, monkeypatch, seeds=None):
    """Return the jobs that the sweeper would launch."""
    launched = []

    class Recorder:
        def launch(self, jobs, initial_job_idx):
            launched.extend(jobs)
            return []

    monkeypatch.setattr(Plugins.instance(), "instantiate_launcher", lambda *_: Recorder(), raising=False)
    sweeper = GridSweeper(params, grid_of)
    config = OmegaConf.create({"seeds": seeds, "hydra": {"sweep": {"dir": str(tmp_path)}}})
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        context = HydraContext(config_loader=GlobalHydra.instance().hydra.config_loader, callbacks=None)
        sweeper.setup(hydra_context=context, task_function=None, config=config)
        sweeper.sweep(arguments)
    return launched


PARAMS = {"algo": "fedmid,local", "hparams.client_lr": "1,2", "hparams.server_lr": "3,4"}
OWN = {"local": {"hparams.client_lr": "5,6,7", "hparams.server_lr": 1}}
FEDMID = [["algo=fedmid", f"hparams.client_lr={c}", f"hparams.server_lr={s}"] for c in (1, 2) for s in (3, 4)]


def test_an_algorithm_may_have_its_own_grid(tmp_path, monkeypatch):
    local = [["algo=local", f"hparams.client_lr={c}", "hparams.server_lr=1"] for c in (5, 6, 7)]
    assert jobs_of(PARAMS, OWN, [], tmp_path, monkeypatch) == FEDMID + local


def test_seeds_multiply_every_grid_unless_the_command_line_sets_a_seed(tmp_path, monkeypatch):
    jobs = jobs_of(PARAMS, OWN, [], tmp_path, monkeypatch, seeds=2)
    assert [job[1:] if job[0].startswith("seed") else job for job in jobs][:4] == FEDMID
    assert sorted(job[0] for job in jobs) == ["seed=0"] * 7 + ["seed=1"] * 7
    chosen = jobs_of(PARAMS, OWN, ["algo=fedmid", "seed=7"], tmp_path, monkeypatch, seeds=2)
    assert chosen == [["seed=7", *job] for job in FEDMID]


def test_the_command_line_overrides_any_grid(tmp_path, monkeypatch):
    assert jobs_of(PARAMS, OWN, ["algo=fedmid"], tmp_path, monkeypatch) == FEDMID
    chosen = jobs_of(PARAMS, OWN, ["algo=local", "hparams.client_lr=9"], tmp_path, monkeypatch)
    assert chosen == [["algo=local", "hparams.client_lr=9", "hparams.server_lr=1"]]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("seed=range(1,1)", "seed: got range(1,1), which has no values"),
        ("seed=glob(*)", "seed: got glob(*), which has no values"),
        ("algo=glob(zz*)", "algo: got glob(zz*), which has no values"),
        ("seed=range(0,1,0)", "seed: got range(0,1,0), which is infinite"),
        ("seed=range(0,1e300)", "the sweep has "),
        ("seed=interval(0,1)", "seed: got interval(0,1), must be a list of values such as seed=1,2,3"),
    ],
)
def test_a_sweep_needs_a_finite_number_of_values(argument, complaint, tmp_path, monkeypatch):
    with pytest.raises(HydraException, match=re.escape(complaint)):
        jobs_of({}, {}, [argument], tmp_path, monkeypatch)


def test_unknown_options_are_refused(tmp_path, monkeypatch):
    with pytest.raises(HydraException, match="local: got 5, must be key: values, or null"):
        jobs_of(PARAMS, {"local": 5}, [], tmp_path, monkeypatch)
    launcher = FusedLauncher(n_jobs=1, memory_mb=1, backend="local", address=None, nosuch=1)
    with pytest.raises(HydraException, match=re.escape("hydra.launcher.nosuch: no such key; allowed: n_jobs, ")):
        launcher.setup(hydra_context=None, task_function=None, config=None)


def test_expect_is_called_for_every_shared_configuration_before_all_jobs_are_composed(tmp_path):
    story = []

    def application(config):
        raise AssertionError("the jobs are run together")

    def expect(job, **options):
        story.append((job.shared.algo.name, job.numbers, options["n_jobs"]))

    def sweep(jobs, overrides, **options):
        story.append(len(jobs))
        return [0.0] * len(jobs)

    application.expect, application.sweep = expect, sweep
    overrides_of_jobs = [[f"algo={algo}", f"seed={seed}"] for algo in ("fedmid", "fedavg") for seed in (3, 4)]
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        config = compose("config", overrides=[f"output_dir={tmp_path}"], return_hydra_config=True)
        launcher = FusedLauncher(n_jobs=2, memory_mb=1, backend="local", address=None)
        context = HydraContext(config_loader=GlobalHydra.instance().hydra.config_loader, callbacks=None)
        launcher.setup(hydra_context=context, task_function=application, config=config)
        launcher.launch(overrides_of_jobs, 0)
    assert story == [("fedmid", {"seed": 3}, 2), ("fedavg", {"seed": 3}, 2), 4]


def test_callbacks_of_hydra_see_every_job_of_a_fused_sweep(tmp_path):
    story = []

    class Callbacks:
        def on_job_start(self, config, task_function):
            story.append(("start", config.hydra.job.num, config.seed, config.algo.name))

        def on_job_end(self, config, job_return):
            story.append(("end", config.hydra.job.num, job_return.return_value))

    def application(config):
        raise AssertionError("the jobs are run together")

    application.sweep = lambda jobs, overrides, **options: [float(job.numbers["seed"]) for job in jobs]
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        texts = [f"output_dir={tmp_path}", "+hydra.callbacks.mine._target_=builtins.object"]
        config = compose("config", overrides=texts, return_hydra_config=True)
        launcher = FusedLauncher(n_jobs=2, memory_mb=1, backend="local", address=None)
        context = HydraContext(config_loader=GlobalHydra.instance().hydra.config_loader, callbacks=Callbacks())
        launcher.setup(hydra_context=context, task_function=application, config=config)
        launcher.launch([["algo=fedmid", "seed=3"], ["algo=fedavg", "seed=4"]], 5)
    assert story == [("start", 5, 3, "fedmid"), ("start", 6, 4, "fedavg"), ("end", 5, 3.0), ("end", 6, 4.0)]


def test_a_sweep_that_cannot_write_its_folder_is_one_line(monkeypatch):
    with pytest.raises(HydraException, match=re.escape("output_dir: /dev/null cannot be written: ")):
        jobs_of({}, {}, ["seed=1"], Path("/dev/null"), monkeypatch)


def test_hydras_search_includes_the_plugins():
    """Hydra executes a plugin before it is in `sys.modules`, in every Hydra application on the machine."""
    search = "from hydra.core.plugins import Plugins; print(*Plugins.instance().class_name_to_class)"
    folder_of_plugins = Path(hydra_plugins.fco_launcher.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", search], cwd=folder_of_plugins, capture_output=True, text=True, check=True
    )
    assert "hydra_plugins.fco_launcher.FusedLauncher" in done.stdout.split()


def test_the_plugin_imports_nothing_heavy():
    text = Path(hydra_plugins.fco_launcher.__file__).read_text()
    for heavy in ("numpy", "numba", "rich", "joblib", "fco_cli"):
        assert f"import {heavy}" not in text
        assert f"from {heavy}" not in text
