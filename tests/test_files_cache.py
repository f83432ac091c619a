"""Tests of the cache folders: caches that another user could have written to are not used."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fco_cli.data.published import ARCHIVES, fetch
from fco_cli.errors import UserError
from fco_cli.files import cache_folder, exclusive_access, private_cache, require_private
from fco_cli.tasks.haxby import fmri_cache

CACHES = {"data": lambda: fetch(ARCHIVES[10]), "fmri": fmri_cache}


@pytest.fixture
def shared(monkeypatch):
    """Return a world-writable folder with the sticky bit, like /tmp, as XDG_CACHE_HOME."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield Path(folder)


def as_another_user(*command: str) -> None:
    if not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root can act as another user")
    subprocess.run(command, user="nobody", group="nogroup", extra_groups=[], check=True)


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_of_another_user_is_refused(shared, name):
    place = shared / "fco" / name / ARCHIVES[10].folder.name
    as_another_user("mkdir", "-p", "-m", "0700", str(place))
    as_another_user("touch", str(place / "fed_emnist_train.h5"))
    with pytest.raises(UserError, match="is not used because another user may have written") as problem:
        CACHES[name]()
    assert "\n" not in str(problem.value)


def test_a_folder_with_an_archive_of_another_user_is_refused(shared):
    home = private_cache("data")
    home.parent.chmod(0o755)
    home.chmod(0o777)
    as_another_user("mkdir", str(home / ARCHIVES[10].folder.name))
    with pytest.raises(UserError, match="it is not private"):
        fetch(ARCHIVES[10])
    home.chmod(0o700)  # too late: another user may have written to it
    with pytest.raises(UserError, match="it is not private"):
        fetch(ARCHIVES[10])


def test_a_cache_is_created_private_and_read_access_is_removed(shared):
    home = private_cache("data")
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o755)  # as created by former versions
    assert private_cache("data") == home
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_link_and_a_file_are_not_private_folders(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(UserError, match="it is not a folder"):
            require_private(tmp_path / name)
    with pytest.raises(UserError, match="cannot be used: No such file"):
        require_private(tmp_path / "none")


def test_an_unwritable_cache_is_a_user_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written: Not a directory \(XDG_CACHE_HOME moves it\)"):
        private_cache("data")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other cache folders")
def test_the_cache_folder_on_linux(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("data") == tmp_path / "fco" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("data") == tmp_path / ".cache" / "fco" / "data"


def test_a_cache_folder_that_cannot_be_created_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="XDG_CACHE_HOME moves it"), exclusive_access(tmp_path / "file" / "below"):
        pass
