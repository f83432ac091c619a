"""Plug-ins in real processes: files, FCO_PLUGINS, modules, entry points; single runs, sweeps, Python and reports."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

OWN = Path(__file__).with_name("own_parts.py")
ALL = [
    "task=own_task", "algo=own_method", "algo.damping=0.5", "regularizer=half_l1", "hparams.rounds=2",
    "hparams.clients_per_round=2",
]  # fmt: skip
SMALL = ["hparams.rounds=2", "hparams.clients_per_round=2"]


@pytest.fixture
def folder(tmp_path):
    shutil.copy(OWN, tmp_path / "own.py")
    return tmp_path


def call(folder: Path, *arguments: str, module: str = "run", code: int = 0, **variables: str) -> str:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")} | variables
    command = [sys.executable, "-m", f"fco_cli.commands.{module}", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_an_exception_of_a_plugin_names_its_file_and_line(folder):
    """Code 2 and one line, also where a class of the plug-in is called while the configuration is read."""
    text = """
    from dataclasses import dataclass
    from fco_cli.problem.regularizers import all_regularizers

    @dataclass
    class Mine(all_regularizers()["l1"]):
        name: str = "mine"

        def __post_init__(self):
            self.nope
    """
    (folder / "raises.py").write_text(textwrap.dedent(text))
    (line,) = call(
        folder, "plugins=[raises.py]", "regularizer=mine", code=2, XDG_STATE_HOME=str(folder / "state")
    ).splitlines()
    complaint = "line 10: AttributeError: 'Mine' object has no attribute 'nope'"
    assert line.startswith(f"fco-run: plugins: {folder / 'raises.py'}: {complaint}; the traceback is in {folder}")
    assert "Traceback" in next((folder / "state").rglob("errors.log")).read_text()


def results(folder: Path) -> list[Path]:
    return sorted(folder.glob("outputs/*/*/*/result.json"))


@pytest.mark.ci
def test_an_edited_plugin_has_another_record_and_an_undone_edit_the_old_one(folder):
    call(folder, "plugins=[own.py]", *ALL)
    (first,) = results(folder)
    result, config = json.loads(first.read_text()), (first.parent / "config.yaml").read_text()
    assert "plugins:\n- own.py\n" in config
    (path, digest) = next(iter(result["plugins"].items()))
    assert (path, len(digest)) == (str(folder / "own.py"), 64)
    text = (folder / "own.py").read_text()
    for part in ("np.reshape(self", "psi.strength / 2", "np.tanh(", "x.sum(axis=2)"):  # of every class
        assert part in text
        (folder / "own.py").write_text(text.replace(part, f"1.5 * {part}"))
        before = len(results(folder))
        call(folder, "plugins=[own.py]", *ALL)
        assert len(results(folder)) == before + 1, part
    (folder / "own.py").write_text("# a comment\n" + text)
    assert "already done" in call(folder, f"plugins=[{folder}/own.py]", *ALL)


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_plugin_compiles_and_runs_in_a_sweep_of_two_processes(folder):
    grid = ["-m", *ALL, "seeds=2", "hparams.batch_size=2,4", "hydra.launcher.n_jobs=2"]
    call(folder, "plugins=[own.py]", *ALL, "hparams.batch_size=2")
    call(folder, *grid, FCO_PLUGINS="own.py")
    assert len(results(folder)) == 4  # the run of the first call is one of them
    assert all(json.loads(path.read_text())["plugins"] for path in results(folder))


@pytest.mark.ci
def test_a_dask_worker_loads_the_plugin_of_its_stack(folder):
    pytest.importorskip("distributed", reason="the extra fco-cli[dask] is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    elsewhere = folder / "worker"
    elsewhere.mkdir()
    commands = [
        ["scheduler", "--host", address, "--dashboard-address", "127.0.0.1:0"],
        ["worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(elsewhere)],
    ]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = Path(sys.executable).with_name("dask")
    processes = [subprocess.Popen([dask, *words], cwd=elsewhere, **quiet) for words in commands]
    try:
        wait_for(address)
        launcher = ["hydra.launcher.backend=dask", f"hydra.launcher.address={address}"]
        call(folder, "-m", "plugins=[own.py]", *ALL, "seeds=2", *launcher)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(results(folder)) == 2


def wait_for(address: str) -> None:
    """Wait until a scheduler listens at the address."""
    host, port = address.removeprefix("tcp://").split(":")
    for _ in range(300):
        try:
            return socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(address)


@pytest.mark.ci
def test_python_loads_plugins_and_a_report_only_those_that_this_user_has_loaded(folder):
    script = """
import sys
import textwrap
from fco_cli import api
record = api.run("plugins=[own.py]", *sys.argv[1:])
assert record.config["plugins"] == ["own.py"]
results = api.sweep("plugins=[own.py]", *sys.argv[1:], "seed=0,1")
assert len(results.table()) == 2
for plugin, reason in {"nowhere.py": "no such file", "copy/own.py": "have the same file name"}.items():
    try:
        api.run(f"plugins=[{plugin}]")
    except ValueError as problem:
        assert reason in str(problem)
    else:
        raise AssertionError(plugin)
"""
    (folder / "copy").mkdir()
    shutil.copy(OWN, folder / "copy" / "own.py")
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script, *ALL], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    note = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"
    (folder / "own.py").write_text((folder / "own.py").read_text() + note)
    (folder / "executed").unlink(missing_ok=True)
    assert "own_task" in call(folder, "outputs", module="report")
    assert not (folder / "executed").exists()  # edited since the runs
    shutil.rmtree(folder / "outputs")
    call(folder, "plugins=[own.py]", *ALL)
    (folder / "executed").unlink()
    call(folder, "outputs", module="report")
    assert (folder / "executed").exists()
    (folder / "executed").unlink()
    call(folder, "outputs", module="report", XDG_CACHE_HOME=str(folder / "cache of another user"))
    assert not (folder / "executed").exists()


@pytest.mark.ci
def test_other_commands_and_tables_use_plugins(folder):
    call(folder, "plugins=[own.py]", "task=own_task", "hparams.clients_per_round=2", module="advise")
    rows = [f"{'abc'[k % 3]},{k % 5},{k % 7}" for k in range(60)]
    (folder / "table.csv").write_text("\n".join(["client,x,y", *rows]))
    assert "OK" in call(folder, "check", "table.csv", "--loss", "log_cosh", module="data", FCO_PLUGINS="own.py")
    table = ["task=custom", "task.path=table.csv", "task.loss=log_cosh", *SMALL]
    objectives = []
    for sharpness in (1, 3):
        call(folder, "plugins=[own.py]", *table, f"task.loss_options={{sharpness: {sharpness}}}")
        newest = max(results(folder), key=lambda path: path.stat().st_mtime_ns)
        objectives.append(json.loads(newest.read_text())["final"]["objective"])
    assert objectives[0] != objectives[1]
    message = call(folder, "plugins=[own.py]", *table, "task.loss_options={sharp: 1}", code=2)
    assert "task.loss_options.sharp: no such key; allowed: sharpness" in message
    # A prediction needs the plug-in only if its link is its own.
    call(folder, str(newest.parent), "table.csv", module="predict")


@pytest.mark.ci
def test_an_installed_entry_point_needs_no_key(folder):
    installed = folder / "site-packages"
    (installed / "own_package").mkdir(parents=True)
    shutil.move(folder / "own.py", installed / "own_package" / "__init__.py")
    information = installed / "own_package-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text("[fco.plugins]\nown = own_package\n")
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))
    call(folder, *ALL, PYTHONPATH=path)
    (record,) = results(folder)
    assert json.loads(record.read_text())["versions"]["own-package"] == "1.2"
    source = installed / "own_package" / "__init__.py"
    source.write_text(source.read_text().replace("np.tanh(", "1.5 * np.tanh("))
    call(folder, *ALL, PYTHONPATH=path)
    assert len(results(folder)) == 2  # an installed plug-in's code is part of the run id
    (information / "entry_points.txt").write_text("[fco.plugins]\nown = own_package:Missing\n")
    message = call(folder, *ALL, PYTHONPATH=path, code=2)
    assert "entry point own = own_package:Missing of own-package: AttributeError" in message


@pytest.mark.ci
def test_a_module_of_the_current_folder_is_a_plugin_and_sites_refuse_it(folder):
    call(folder, "plugins=[own]", *ALL)
    assert len(results(folder)) == 1
    remote = ["federation=flare", "federation.sites=[a]", "task=custom", "task.loss=logistic"]
    message = call(folder, "plugins=[own]", *remote, "algo=own_method", *SMALL, code=2)
    assert "plugins: got ['own'], must be [] with federation=flare: sites execute installed code only" in message


@pytest.mark.ci
def test_help_and_reproduce_list_the_options_of_plugins(folder):
    assert "own_method" not in call(folder, "--help")
    for text in (call(folder, "plugins=[own.py]", "--help"), call(folder, "--help", FCO_PLUGINS="own.py")):
        assert "own_method" in text
        assert "half_l1" in text
    assert "plugins: none.py: no such file" in call(folder, "plugins=[none.py]", "--help", code=2)
    unknown = call(folder, "--algo", "own_method", "no_experiment", module="reproduce", code=2)
    assert "--algo: got own_method, must be one of" in unknown
    known = call(folder, "--algo", "own_method", "no_experiment", module="reproduce", code=2, FCO_PLUGINS="own.py")
    assert "no_experiment: no such experiment" in known
