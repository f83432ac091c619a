"""Tests of exit codes and messages: closed and full streams, invalid environments, internal errors."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fco_cli.commands import shell
from fco_cli.commands.shell import one_line_errors, print_line

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
WITHIN = "from fco_cli.commands.shell import one_line_errors\nwith one_line_errors('fco-x'):\n    "


def run_script(body: str, *redirections: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code inside one_line_errors, with a shell's redirections."""
    words = ["sh", "-c", f'"$0" -c "$1" {" ".join(redirections)}', sys.executable, WITHIN + body]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | environment)


def ends_early(words: list[str], buffered: bool) -> tuple[int, bytes]:
    """Run a program whose reader exits before it writes; return its exit code and stderr."""
    read, write = os.pipe()
    os.close(read)
    environment = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, env=environment)
    os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_every_command_ends_quietly_when_its_reader_has_left(command, buffered):
    """`fco-data ... | true`: the exit code of a program that SIGPIPE ends."""
    module, _, function = PROJECT["scripts"][command].partition(":")
    script = f"import sys; sys.argv = ['{command}', '--version']; from {module} import {function}; {function}()"
    assert ends_early([sys.executable, "-c", script], buffered) == (141, b"")


def test_a_table_ends_quietly_too():
    script = WITHIN + "from fco_cli.commands.shell import table_console; table_console().print('x')"
    assert ends_early([sys.executable, "-c", script], buffered=False) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_one_line(unbuffered):
    done = run_script("print('text')", ">/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (
        2,
        "fco-x: standard output: cannot be written: No space left on device\n",
    )


def test_messages_of_handlers_that_were_configured_before_are_written():
    """A process of another launcher configures logging before the streams are replaced."""
    script = "import logging; logging.basicConfig(format='%(message)s')\n" + WITHIN + "logging.warning('text')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "text\n")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_fault(tmp_path, redirection):
    """No file that is opened later gets the descriptor of the closed stream."""
    body = f"import sys; file = open({str(tmp_path / 'f')!r}, 'w'); print('text'); print('text', file=sys.stderr)"
    done = run_script(body + "; file.flush()", redirection)
    assert done.returncode == 0
    assert (tmp_path / "f").read_text() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_full_standard_error_is_no_fault():
    body = "import logging, sys; logging.warning('text'); print('text', file=sys.stderr); print('done')"
    done = run_script(body, "2>/dev/full")
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.parametrize("threads", ["0", "-1", " 0"])
def test_a_wrong_number_of_threads_is_one_line(monkeypatch, capsys, threads):
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    with pytest.raises(SystemExit) as ended, one_line_errors("fco-x"):
        raise AssertionError
    assert ended.value.code == 2
    said = f"fco-x: NUMBA_NUM_THREADS: got {threads!r}, must be a whole number of at least 1\n"
    assert capsys.readouterr().err == said


def test_an_internal_error_is_one_line_and_its_traceback_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shell, "error_log", lambda: tmp_path / "log" / "errors.log")
    for _ in range(2):
        with pytest.raises(SystemExit) as ended, one_line_errors("fco-x"):
            {}["key"]
        assert ended.value.code == 1
        advice = f"please report it with the traceback in {tmp_path}/log/errors.log"
        assert capsys.readouterr().err == f"fco-x: internal error: KeyError: 'key'; {advice}\n"
    log = (tmp_path / "log" / "errors.log").read_text()
    assert log.count("Traceback") == log.count("KeyError: 'key'") == 2
    assert "test_shell.py" in log


def test_an_internal_error_without_a_place_for_its_log_shows_the_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(shell, "error_log", lambda: tmp_path / "file" / "errors.log")
    with pytest.raises(SystemExit), one_line_errors("fco-x"):
        {}["key"]
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("fco-x: internal error: KeyError: 'key'; please report it with the traceback above\n")


def test_lines_show_control_characters(capsys):
    print_line("report: a\x1b[31m\nb é")
    assert capsys.readouterr().out == "report: a\\x1b[31m\\x0ab é\n"
