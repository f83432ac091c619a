"""Caches that another user could have written to are not used."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from fco_cli.data.download import ARCHIVES, fetch
from fco_cli.data.private_cache import private_cache, require_private
from fco_cli.errors import UserError
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
def test_what_another_user_has_made_first_is_not_used(shared, name):
    place = shared / "fco" / name / ARCHIVES[10].folder.name
    as_another_user("mkdir", "-p", "-m", "0700", str(place))
    as_another_user("touch", str(place / "fed_emnist_train.h5"))
    with pytest.raises(UserError, match="is not used because another user may have written") as problem:
        CACHES[name]()
    assert "\n" not in str(problem.value)


def test_a_folder_into_which_another_user_has_put_an_archive_is_not_used(shared):
    home = private_cache("data")
    home.parent.chmod(0o755)
    home.chmod(0o777)
    as_another_user("mkdir", str(home / ARCHIVES[10].folder.name))
    with pytest.raises(UserError, match="it is not private"):
        fetch(ARCHIVES[10])
    home.chmod(0o700)  # too late: another user may have written to it
    with pytest.raises(UserError, match="it is not private"):
        fetch(ARCHIVES[10])


def test_a_cache_is_made_for_us_alone_and_closed_if_others_could_read(shared):
    home = private_cache("data")
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o755)  # as created by former versions
    assert private_cache("data") == home
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_link_and_a_file_are_no_private_folders(tmp_path):
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
