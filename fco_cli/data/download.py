"""Data from their publishers: downloaded once, verified, archives unpacked."""

from __future__ import annotations

import hashlib
import logging
import os
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fco_cli.data.private_cache import private, private_cache
from fco_cli.errors import UserError
from fco_cli.files import cache_folder, one_at_a_time

log = logging.getLogger(__name__)

SITE = "https://storage.googleapis.com/tff-datasets-public/"
CHUNK = 1 << 16  # bytes: the most that a broken download loses


@dataclass(frozen=True)
class RemoteFile:
    """A file on a site and what its content must be."""

    name: str
    sha256: str
    url: str

    @property
    def by_hand(self) -> str:
        """What to do without the download."""
        return f"fetch {self.url} yourself and pass task.data_dir=<its folder>"


@dataclass(frozen=True)
class Archive:
    """One of TensorFlow Federated's, with HDF5 files."""

    name: str
    sha256: str

    @property
    def url(self) -> str:
        return SITE + self.name

    @property
    def folder(self) -> Path:
        """Where it is unpacked; there only when it is complete."""
        return cache_folder("data") / self.name.removesuffix(".tar.bz2")

    @property
    def by_hand(self) -> str:
        return (
            f"fetch {self.url} yourself, unpack it and pass task.data_dir=<the folder> "
            "(a folder of LEAF's JSON or an .npz file will do as well)"
        )


ARCHIVES = {
    10: Archive("fed_emnist_digitsonly.tar.bz2", "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b"),
    62: Archive("fed_emnist.tar.bz2", "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"),
}  # by the number of classes (docs/method.md, "Data")


def fetch(archive: Archive) -> Path:
    """The folder with the archive's files; downloads what is not there yet."""
    home = private_cache("data")
    if archive.folder.exists():
        return private(home / archive.folder.name)
    with one_at_a_time(home):
        if archive.folder.exists():  # another process was faster
            return private(home / archive.folder.name)
        return unpack(_retrieve(archive, home), home / archive.folder.name)


def fetch_files(name: str, files: Sequence[RemoteFile]) -> Path:
    """The folder of that name with these files; downloads what is not there yet."""
    home = private_cache("data")
    folder = home / name
    with one_at_a_time(home):
        folder.mkdir(mode=0o700, exist_ok=True)
        private(folder)
        for file in files:
            if not (folder / file.name).exists():
                _retrieve(file, folder)
    return folder


def _retrieve(file: RemoteFile | Archive, folder: Path) -> Path:
    """Return the file in the folder, complete and verified; a download that broke off is resumed."""
    place, part = folder / file.name, folder / f"{file.name}.part"
    if place.exists():
        verify(place, file.sha256)
        return place
    log.info("downloading %s to %s", file.url, place)
    try:
        _download(file.url, part)
    except OSError as problem:  # requests' errors are kinds of OSError
        kept = f"; {part.stat().st_size / 1e6:.1f} MB are kept and need not come again" if part.exists() else ""
        raise UserError(
            f"task.data_dir: not given, and the download failed ({type(problem).__name__}{kept}): "
            f"try again, or {file.by_hand}"
        ) from problem
    verify(part, file.sha256)
    return part.replace(place)


def _download(url: str, part: Path) -> None:
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    have = part.stat().st_size if part.exists() else 0
    with requests.get(url, stream=True, timeout=30, headers={"Range": f"bytes={have}-"} if have else {}) as answer:
        if answer.status_code == 416:  # nothing after what we have
            return
        answer.raise_for_status()
        resumed = answer.status_code == 206
        have = have if resumed else 0
        total = have + int(answer.headers.get("Content-Length", 0)) or None
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress, part.open("ab" if resumed else "wb") as file:
            task = progress.add_task("download", total=total, completed=have)
            for chunk in answer.iter_content(CHUNK):
                file.write(chunk)
                progress.advance(task, len(chunk))


def verify(path: Path, sha256: str) -> None:
    """Refuse a file that is not the one we know; it is kept aside for whoever wants to look."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        aside = path.with_name(f"{path.name}.wrong-{time.time_ns()}")
        path.rename(aside)
        raise UserError(f"{path}: wrong checksum: sha256 is {found}, must be {sha256}; the file is kept as {aside}")


def unpack(packed: Path, folder: Path) -> Path:
    """Take the HDF5 files out of the archive; the folder appears when all are there."""
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(mode=0o700, exist_ok=True)
    with tarfile.open(packed) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".h5"):
                archive.extract(_renamed(member), unfinished, filter="data")
    unfinished.replace(folder)
    packed.unlink()  # its content is verified and unpacked
    return folder


def _renamed(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without folders: nothing is written outside of ours."""
    return member.replace(name=Path(member.name).name, deep=False)
