"""Download of public data sets: verification by checksum, unpacking, caching."""

from __future__ import annotations

import hashlib
import logging
import os
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fco_cli.cache_folders import cache_folder, exclusive_access, private_cache, require_private
from fco_cli.errors import UserError

log = logging.getLogger(__name__)

SITE = "https://storage.googleapis.com/tff-datasets-public/"
CHUNK = 1 << 16  # bytes; an interrupted download loses at most one chunk


@dataclass(frozen=True)
class RemoteFile:
    """File of a publisher, with its checksum."""

    name: str
    sha256: str
    url: str

    @property
    def manual_download(self) -> str:
        """Instructions for a manual download."""
        return f"download {self.url} and pass task.data_dir=<its folder>"


@dataclass(frozen=True)
class Archive:
    """Archive of HDF5 files of TensorFlow Federated, with its checksum."""

    name: str
    sha256: str

    @property
    def url(self) -> str:
        return SITE + self.name

    @property
    def folder(self) -> Path:
        """Folder of the unpacked files; it exists only if it is complete."""
        return cache_folder("data") / self.name.removesuffix(".tar.bz2")

    @property
    def manual_download(self) -> str:
        return (
            f"download {self.url}, unpack it and pass task.data_dir=<the folder> "
            "(a folder of LEAF's JSON or an .npz file also works)"
        )


ARCHIVES = {
    10: Archive("fed_emnist_digitsonly.tar.bz2", "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b"),
    62: Archive("fed_emnist.tar.bz2", "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"),
}  # by the number of classes (docs/method.md, "Data")


def fetch(archive: Archive) -> Path:
    """Return the folder of the unpacked archive, downloaded if necessary."""
    home = private_cache("data")
    if archive.folder.exists():
        return require_private(home / archive.folder.name)
    with exclusive_access(home):
        if archive.folder.exists():  # unpacked by another process
            return require_private(home / archive.folder.name)
        return unpack(_retrieve(archive, home), home / archive.folder.name)


def fetch_files(name: str, files: Sequence[RemoteFile]) -> Path:
    """Return the cache folder `name` with the files, downloaded if necessary."""
    home = private_cache("data")
    folder = home / name
    with exclusive_access(home):
        folder.mkdir(mode=0o700, exist_ok=True)
        require_private(folder)
        for file in files:
            if not (folder / file.name).exists():
                _retrieve(file, folder)
    return folder


def _retrieve(file: RemoteFile | Archive, folder: Path) -> Path:
    """Return the verified file in the folder; resume an interrupted download."""
    path, part = folder / file.name, folder / f"{file.name}.part"
    if path.exists():
        verify(path, file.sha256)
        return path
    log.info("downloading %s to %s", file.url, path)
    try:
        _download(file.url, part)
    except OSError as problem:  # the exceptions of requests are subclasses of OSError
        kept = f"; {part.stat().st_size / 1e6:.1f} MB are kept for resuming" if part.exists() else ""
        raise UserError(
            f"task.data_dir: not given, and the download failed ({type(problem).__name__}{kept}): "
            f"try again, or {file.manual_download}"
        ) from problem
    verify(part, file.sha256)
    return part.replace(path)


def _download(url: str, part: Path) -> None:
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    start = part.stat().st_size if part.exists() else 0
    with requests.get(url, stream=True, timeout=30, headers={"Range": f"bytes={start}-"} if start else {}) as response:
        if response.status_code == 416:  # range not satisfiable: the file is complete
            return
        response.raise_for_status()
        resumed = response.status_code == 206
        start = start if resumed else 0
        total = start + int(response.headers.get("Content-Length", 0)) or None
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress, part.open("ab" if resumed else "wb") as file:
            task = progress.add_task("download", total=total, completed=start)
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                progress.advance(task, len(chunk))


def verify(path: Path, sha256: str) -> None:
    """Raise UserError if the checksum of a file is wrong, and rename the file."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        renamed = path.with_name(f"{path.name}.wrong-{time.time_ns()}")
        path.rename(renamed)
        raise UserError(f"{path}: wrong checksum: sha256 is {actual}, must be {sha256}; the file is kept as {renamed}")


def unpack(packed: Path, folder: Path) -> Path:
    """Extract the HDF5 files of the archive into the folder, atomically, and remove the archive."""
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(mode=0o700, exist_ok=True)
    with tarfile.open(packed) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".h5"):
                archive.extract(_renamed(member), unfinished, filter="data")
    unfinished.replace(folder)
    packed.unlink()
    return folder


def _renamed(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the member without its folders, so that it is extracted into the target folder."""
    return member.replace(name=Path(member.name).name, deep=False)
