"""Downloads from a local server."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from fco_cli.data import published
from fco_cli.data.published import Archive, RemoteFile, fetch, fetch_files
from fco_cli.errors import UserError


def packed() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
        for name in ("folder/fed_train.h5", "../escape.h5", "readme.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"data"))
    return buffer.getvalue()


CONTENT = packed()


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler that serves CONTENT, supports ranges and can disconnect after `stop_after` bytes."""

    stop_after: int | None = None
    ranges: list[str | None] = []  # noqa: RUF012 - reset by the fixture

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        stop = type(self).stop_after
        self.wfile.write(CONTENT[start:stop] if stop else CONTENT[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Local server in place of the site, with an empty cache."""
    Handler.stop_after, Handler.ranges = None, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(published, "TFF", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield tmp_path / "fco" / "data"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def archive() -> Archive:
    return Archive("fed.tar.bz2", hashlib.sha256(CONTENT).hexdigest())


def test_an_archive_is_fetched_once_and_unpacked_flat(site, archive):
    folder = fetch(archive)
    assert sorted(path.name for path in folder.iterdir()) == ["escape.h5", "fed_train.h5"]
    assert not (site.parent / "escape.h5").exists()
    assert fetch(archive) == folder
    assert Handler.ranges == [None]
    assert sorted(path.name for path in site.iterdir()) == [".lock", "fed"]


def test_a_broken_download_is_resumed(site, archive, monkeypatch):
    monkeypatch.setattr(published, "CHUNK", 10)
    Handler.stop_after = 100
    with pytest.raises(UserError, match="MB are kept"):
        fetch(archive)
    assert (site / "fed.tar.bz2.part").read_bytes() == CONTENT[:100]
    Handler.stop_after = None
    assert fetch(archive).exists()
    assert Handler.ranges == [None, "bytes=100-"]


def test_a_file_with_a_wrong_checksum_is_renamed(site):
    with pytest.raises(UserError, match="wrong checksum") as problem:
        fetch(Archive("fed.tar.bz2", "0" * 64))
    (kept,) = site.glob("*.wrong-*")
    assert kept.read_bytes() == CONTENT
    assert str(kept) in str(problem.value)
    assert not (site / "fed").exists()


def test_a_damaged_archive_in_the_cache_is_renamed(site, archive):
    site.mkdir(parents=True)
    (site / archive.name).write_bytes(b"damaged")
    with pytest.raises(UserError, match="wrong checksum"):
        fetch(archive)
    assert next(site.glob("*.wrong-*")).read_bytes() == b"damaged"
    assert fetch(archive).exists()  # the next attempt downloads it


def test_a_failed_download_gives_instructions(site, archive, monkeypatch):
    monkeypatch.setattr(published, "TFF", "http://127.0.0.1:9/")
    with pytest.raises(UserError, match=r"task.data_dir: not given, and the download failed.*pass task.data_dir="):
        fetch(archive)


def test_plain_files_are_downloaded_once_and_verified(site, archive):
    def remote(name: str, digest: str = archive.sha256) -> RemoteFile:
        return RemoteFile(name, digest, f"{published.TFF}{name}")

    files = [remote("a.data"), remote("b.data")]
    folder = fetch_files("tables", files)
    assert [(folder / file.name).read_bytes() for file in files] == [CONTENT, CONTENT]
    assert len(Handler.ranges) == 2
    assert fetch_files("tables", files) == folder
    assert len(Handler.ranges) == 2
    with pytest.raises(UserError, match="wrong checksum"):
        fetch_files("tables", [*files, remote("c.data", "0" * 64)])
    assert not (folder / "c.data").exists()
