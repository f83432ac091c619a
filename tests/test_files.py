"""Tests of YAML output, locks between processes, the cache folder, special files, and imports on Windows.

CSV: exact numbers, no formulas, and no other writer of CSV in the package.
"""

from __future__ import annotations

import ast
import csv
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

import fco_cli
from fco_cli.errors import UserError
from fco_cli.files import as_csv, as_yaml, lock, write_atomically
from fco_cli.path.record import csv_of_lines
from fco_cli.reporting.text import as_csv as frame_as_csv

PACKAGE = Path(fco_cli.__file__).parent


@pytest.mark.parametrize("text", ["1e-3", "1_000", "007", ".5", "nan", "yes", "null", "", "${seed}", "a: b", "é", "~"])
def test_text_stays_text(text):
    assert OmegaConf.to_container(OmegaConf.create(as_yaml({"key": text}))) == {"key": text}


def test_numbers_and_order_are_kept():
    content = {"z": 1e-10, "a": [1, 2.5, None, True], "inner": {"list": [], "rate": 0.001}}
    back = OmegaConf.to_container(OmegaConf.create(as_yaml(content)))
    assert back == content
    assert list(back) == list(content)


def test_cached_groups_belong_to_their_configuration():
    """Equal numbers of different types have different texts."""
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


def test_a_lock_belongs_to_one_process_and_ends_with_it(tmp_path):
    """The lock also ends if the process is killed without cleaning up."""
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


def test_a_folder_that_cannot_be_locked_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), lock(tmp_path / "file" / ".lock", wait=True):
        pass


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


@pytest.mark.ci
def test_every_module_can_be_imported_on_windows():
    """Windows has no fcntl, no resource and no user ids."""
    done = subprocess.run([sys.executable, "-c", ON_WINDOWS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = list((Path(__file__).parents[1] / "fco_cli").rglob("*.py"))
    assert int(done.stdout) == len(modules) - 1  # all but the package itself


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    target, link = tmp_path / "folder" / "target.csv", tmp_path / "link.csv"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in (b"made", b"replaced"):  # the link dangles at first
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["target.csv"]


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match="cannot be written"):
        write_atomically(tmp_path / "a", b"text")
    assert (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_through(tmp_path, linked):
    pipe, content = tmp_path / "pipe", b"text" * 100_000  # more than a pipe holds
    os.mkfifo(pipe)
    given = tmp_path / "link" if linked else pipe
    if linked:
        given.symlink_to(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(given, content)
    reader.join(10)
    assert received == [content]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert given.is_symlink() == linked


@pytest.mark.parametrize(("minor", "fault"), [(3, None), (7, "No space left")])
def test_a_device_is_written_through(tmp_path, minor, fault):
    """Private copies of /dev/null and /dev/full protect those of the machine."""
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, minor))
        device.open("wb").close()
    except OSError as problem:
        pytest.skip(f"devices cannot be made here: {problem.strerror}")
    if fault is None:
        write_atomically(device, b"text")
    else:
        with pytest.raises(UserError, match=fault):
            write_atomically(device, b"text")
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["device"]


@pytest.fixture
def stdout_link(tmp_path):
    """Return a private copy of /dev/stdout, since a rename must not replace that of the machine."""
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    if not link.exists():
        pytest.skip("there is no /proc/self/fd here")
    return link


TO_OUTPUT = """
import sys
from pathlib import Path
from fco_cli.files import write_atomically
print("before")
write_atomically(Path(sys.argv[1]), b"content\\n")
print("after")
"""


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("name", ["stdout", "out.txt"])
def test_standard_output_is_appended_to(tmp_path, stdout_link, mode, name):
    """This includes regular files, where a rename would separate the name from later output."""
    path = tmp_path / "out.txt"
    path.write_text("first\n")
    with path.open(mode) as file:
        command = [sys.executable, "-c", TO_OUTPUT, tmp_path / name]
        subprocess.run(command, stdout=file, check=True)
    assert path.read_text() == "first\n" * (mode == "a") + "before\ncontent\nafter\n"


def test_a_pipe_as_standard_output_is_written(stdout_link):
    command = [sys.executable, "-c", TO_OUTPUT, stdout_link]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"before\ncontent\nafter\n"
    assert stdout_link.is_symlink()


@pytest.mark.parametrize("name", ["", ".", "..", "folder", "a\0b"])
def test_an_invalid_file_name_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="must be the name of a file"):
        write_atomically(Path(name), b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_every_text_file_is_read_and_written_as_utf_8():
    """The encoding must not depend on the locale; it is ASCII under LC_ALL=C."""
    package = Path(fco_cli.__file__).parent
    lacking = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and "encoding" not in {keyword.arg for keyword in node.keywords}:
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                given = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                as_text = name == "open" and {"r", "w", "a", "x"} & set(given)
                bare = (name == "read_text" and not node.args) or (name == "write_text" and len(node.args) == 1)
                if as_text or bare:
                    lacking.append(f"{path.relative_to(package)}:{node.lineno}")
    assert lacking == []


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", '=HYPERLINK("http://x")'])
def test_a_text_that_begins_like_a_formula_is_marked_as_text(name):
    header, row = csv.reader(as_csv([name], [[name]]).splitlines())
    assert header == row
    assert row[0].startswith("'")


def test_a_client_whose_name_is_a_formula_is_text_in_the_table_of_clients():
    """`selection` writes this table as clients.csv."""
    lines = csv_of_lines([{"client": "=1+1", "loss": -0.5}, {"client": "north", "loss": 2, "auc": 0.5}]).decode()
    assert lines == "client,loss,auc\n'=1+1,-0.5,\nnorth,2,0.5\n"


def test_numbers_read_back_exactly_and_are_never_marked():
    numbers = [*np.random.default_rng(0).standard_normal(100).tolist(), -1e-300, 1e300, -5e-324, -0.0, 0.1]
    rows = list(csv.reader(as_csv(["x"], [[value] for value in numbers]).splitlines()))[1:]
    assert [float(cell) for (cell,) in rows] == numbers
    assert as_csv(["x"], [[-0.1], [np.float64(-3)], [-2], [True]], ".17g") == "x\n-0.10000000000000001\n-3\n-2\nTrue\n"


def test_control_characters_and_lone_surrogates_are_escaped():
    assert as_csv(["a"], [["\x1b]0;x\x07\n\udc80"]]).encode() == b"a\n\\x1b]0;x\\x07\\x0a\\xdc80\n"


def test_a_frame_is_written_as_pandas_writes_it():
    frame = pd.DataFrame(
        {
            "rate": [0.1, np.nan, 1e-17], "count": [1, 2, 3], "some": pd.array([1, None, 3], dtype="Int64"),
            "good": [True, False, True], "mixed": [1, None, "a,b"], "quoted": ['"', "'", "é"],
        }
    )  # fmt: skip
    assert frame_as_csv(frame) == frame.to_csv(index=False)


def test_no_other_module_writes_csv():
    functions = {"writer", "DictWriter", "to_csv"}
    writers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in functions:
                writers.add(path.relative_to(PACKAGE).as_posix())
    assert writers == {"files.py"}
