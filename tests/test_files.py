"""Files: YAML that OmegaConf reads back as it was, locks between processes, the cache's place, and no Unix needed."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fco_cli.errors import UserError
from fco_cli.files import as_yaml, cache_folder, lock, one_at_a_time


@pytest.mark.parametrize("text", ["1e-3", "1_000", "007", ".5", "nan", "yes", "null", "", "${seed}", "a: b", "é", "~"])
def test_text_stays_text(text):
    assert OmegaConf.to_container(OmegaConf.create(as_yaml({"key": text}))) == {"key": text}


def test_numbers_and_order_are_kept():
    content = {"z": 1e-10, "a": [1, 2.5, None, True], "inner": {"list": [], "rate": 0.001}}
    back = OmegaConf.to_container(OmegaConf.create(as_yaml(content)))
    assert back == content
    assert list(back) == list(content)


def test_groups_that_were_written_before_are_those_of_their_own_configuration():
    """Equal numbers of different types are not the same text."""
    contents = [{"a": {"rate": rate}, "b": [rate], "c": {}} for rate in (1, 1.0, True, "1", "1.0", 1e-3, "1e-3", None)]
    texts = [as_yaml(content) for content in contents]
    assert texts == [as_yaml(content) for content in contents]
    assert len(set(texts)) == len(texts)
    for content, text in zip(contents, texts, strict=True):
        back = OmegaConf.to_container(OmegaConf.create(text))
        assert repr(back) == repr(content)
    assert as_yaml({}) == "{}\n"


HOLD = """
import sys, time
from pathlib import Path
from fco_cli.files import lock
with lock(Path(sys.argv[1]), wait=True) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""


def test_a_lock_is_of_one_process_and_ends_with_it(tmp_path):
    """Also where it is killed in a way that lets it clean up nothing."""
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        with lock(path, wait=False) as ours:
            assert not ours
        holder.kill()
        holder.wait()
        with lock(path, wait=False) as ours:
            assert ours
    with lock(path, wait=True) as ours:
        assert ours


def test_a_place_that_cannot_be_locked_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), lock(tmp_path / "file" / ".lock", wait=True):
        pass
    with pytest.raises(UserError, match="XDG_CACHE_HOME moves it"), one_at_a_time(tmp_path / "file" / "below"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system has its own place")
def test_the_cache_is_where_linux_wants_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("data") == tmp_path / "fco" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("data") == tmp_path / ".cache" / "fco" / "data"


ON_WINDOWS = """
import builtins, importlib, os, pkgutil

import fco_cli, hydra_plugins.fco_launcher

absent = {"fcntl", "resource", "pwd", "grp", "termios"}
real_import = builtins.__import__


def as_on_windows(name, globals=None, *others):
    ours = ((globals or {}).get("__name__") or "").startswith(("fco_cli", "hydra_plugins"))
    if ours and name in absent:  # libraries ask for the platform first, and that is Linux here
        raise ModuleNotFoundError(name)
    return real_import(name, globals, *others)


builtins.__import__ = as_on_windows
for name in ("getuid", "geteuid", "getgid", "fork", "killpg"):
    delattr(os, name)
names = [module.name for module in pkgutil.walk_packages(fco_cli.__path__, "fco_cli.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def test_every_module_can_be_imported_on_windows():
    """Where there is no fcntl, no resource and no user id."""
    done = subprocess.run([sys.executable, "-c", ON_WINDOWS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = list((Path(__file__).parents[1] / "fco_cli").rglob("*.py"))
    assert int(done.stdout) == len(modules) - 1  # all but the package itself
