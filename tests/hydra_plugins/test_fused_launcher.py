"""Hydra's own test suites for launchers, and what is special about ours."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module, version
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite

import hydra_plugins.fco_launcher
from fco_cli.config import register
from hydra_plugins.fco_launcher import Composer, FusedLauncher, GridSweeper

register()


def test_hydra_knows_the_plugins():
    assert FusedLauncher in Plugins.instance().discover(Launcher)
    assert GridSweeper in Plugins.instance().discover(Sweeper)


@pytest.mark.filterwarnings("ignore:Future Hydra versions", "ignore::hydra.errors.Hydra14MigrationWarning")
@pytest.mark.parametrize(("launcher_name", "overrides"), [("fused", [])])
class TestFusedLauncher(LauncherTestSuite):
    """Any application can use the launcher: without a `sweep` of its own its jobs run one after another."""

    @pytest.fixture(autouse=True)
    def _as_hydra_runs_its_suite(self):
        """The suite expects jobs to change their folder, as before Hydra 1.2, and makes Hydra search plugins anew."""
        version.setbase("1.1")
        register()  # that search misses ours in an editable install


@pytest.mark.parametrize(("task_launcher_cfg", "extra_flags"), [({}, ["-m", "hydra/launcher=basic"])])
class TestBasicStillWorks(IntegrationTestSuite):
    """Registering our plugins must not disturb Hydra's own."""


JOBS = [
    ["task=nuclear", "algo=fedmid", "hparams.client_lr=0.01", "seed=3"],
    ["task=lasso", "algo=optimum", "regularizer.strength=0.25"],
    ["experiment=lasso_i_mild", "profile=smoke", "hparams.server_lr=10", "task.clients=12"],
    ["regularizer=l1_ball", "regularizer.radius=3", "hparams.weighting=examples"],
]


@pytest.mark.parametrize("job", JOBS, ids=" ".join)
def test_a_shared_composition_equals_hydras_own(job):
    """A job's numbers are applied to a composition that it shares; Hydra, composing the job anew, must agree."""
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        loader = GlobalHydra.instance().hydra.config_loader
        master = compose("config", return_hydra_config=True)
        composer = Composer(loader, master)
        for warm_up in JOBS[:4]:
            composer.job(warm_up)
        ours, _ = composer.job(job)
        assert ours == compose("config", overrides=job)


def test_hydras_own_search_takes_the_plugins_in():
    """Hydra executes a plugin before it is in `sys.modules`, in every Hydra application beside ours."""
    search = "from hydra.core.plugins import Plugins; print(*Plugins.instance().class_name_to_class)"
    folder_of_plugins = Path(hydra_plugins.fco_launcher.__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", search], cwd=folder_of_plugins, capture_output=True, text=True, check=True
    )
    assert "hydra_plugins.fco_launcher.FusedLauncher" in found.stdout.split()


def test_the_plugin_imports_nothing_heavy():
    text = Path(hydra_plugins.fco_launcher.__file__).read_text()
    for heavy in ("numpy", "numba", "rich", "joblib", "fco_cli"):
        assert f"import {heavy}" not in text
        assert f"from {heavy}" not in text
