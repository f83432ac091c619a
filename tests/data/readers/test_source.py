"""Paths that are not data files are rejected before they are read."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from fco_cli.data.readers import FORMATS, fingerprint
from fco_cli.data.readers.source import Format
from fco_cli.errors import UserError


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.suffix)
class TestPaths:
    """Paths that are not data files, for every format."""

    def source(self, kind: Format, folder: Path, name: str = "d") -> tuple[Path, Path]:
        """Return the path to read and the file in question."""
        path = folder / f"{name}{kind.suffix}"
        return (folder if kind.single_file_error else path), path

    def test_a_pipe_is_not_waited_for(self, kind, tmp_path, error_message):
        source, path = self.source(kind, tmp_path)
        os.mkfifo(path)
        assert "is not a regular file" in error_message(source)

    def test_a_device_is_not_read(self, kind, tmp_path, error_message):
        source, path = self.source(kind, tmp_path)
        path.symlink_to("/dev/zero")
        assert "is not a regular file" in error_message(source)

    def test_a_socket_is_not_read(self, kind, tmp_path, monkeypatch, error_message):
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        source, path = self.source(kind, Path())
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            assert "is not a regular file" in error_message(source)

    def test_a_folder_with_a_file_s_suffix_is_none(self, kind, tmp_path, error_message):
        (tmp_path / f"d{kind.suffix}").mkdir()
        message = error_message(tmp_path if kind.single_file_error else tmp_path / f"d{kind.suffix}")
        assert "is not a regular file" in message or "holds no known format" in message

    def test_an_empty_file_is_refused(self, kind, tmp_path, error_message):
        source, path = self.source(kind, tmp_path)
        path.touch()
        assert f"{path}: is empty" in error_message(source)

    def test_forty_gigabytes_of_nothing_are_neither_read_nor_hashed(self, kind, tmp_path, error_message):
        source, path = self.source(kind, tmp_path)
        with path.open("wb") as file:
            file.truncate(40 << 30)
        error_message(source)
        start = time.process_time()
        with pytest.raises(UserError):
            fingerprint(source)
        assert time.process_time() - start < 5

    def test_a_file_that_may_not_be_read_is_named(self, kind, tmp_path, monkeypatch, error_message):
        source, path = self.source(kind, tmp_path)
        path.write_bytes(b"anything")
        with monkeypatch.context() as patch:  # undone before the teardown of other fixtures
            patch.setattr(Path, "stat", _denied)
            assert "cannot be read: Permission denied" in error_message(source)

    def test_a_name_in_another_encoding_is_refused(self, kind, tmp_path, error_message):
        source, path = self.source(kind, tmp_path, "m\udcfcller")
        path.write_bytes(b"anything")
        assert "must be printable text" in error_message(source)


def _denied(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    "kind", [kind for kind in FORMATS if not kind.folder_error and kind.suffix != ".sql"], ids=lambda kind: kind.suffix
)
def test_a_link_out_of_a_folder_is_not_followed(kind, tmp_path, error_message):
    (tmp_path / "secret").write_bytes(b"anything")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"d{kind.suffix}").symlink_to(tmp_path / "secret")
    assert "is a link to a file outside of" in error_message(tmp_path / "data")


def test_a_path_that_cannot_exist_is_refused(tmp_path, error_message):
    assert "no such file" in error_message(tmp_path / "none.csv")
    assert "printable" in error_message(Path("a\0b.csv"))
    message = error_message(tmp_path / ("a" * 300 + ".csv"))
    assert "cannot be read: File name too long" in message or "no such file" in message  # from Python 3.14 on


def test_a_spreadsheet_is_refused_with_the_remedy(tmp_path, error_message):
    (tmp_path / "patients.XLSX").write_bytes(b"PK")
    assert error_message(tmp_path / "patients.XLSX").endswith("is a spreadsheet; save its sheet as `CSV UTF-8`")


def test_subfolders_are_not_searched(tmp_path, error_message, csv):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    csv(tmp_path / "deep" / "deeper")
    assert "holds no known format" in error_message(tmp_path)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.suffix)
def test_a_bug_is_not_reported_as_a_damaged_file(kind, tmp_path):
    """Only the declared exceptions of the parser of a format become a UserError."""
    with pytest.raises(AttributeError), kind.as_user_error(tmp_path / "t"):
        None.rows  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(UserError, match="cannot be read: No such file"), kind.as_user_error(tmp_path / "t"):
        (tmp_path / "t").read_bytes()
