"""Public data sets: downloads, verified by checksums, and the roles of their columns.

docs/data.md has descriptions, licenses and citations.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import re
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fco_cli.data.format import FederatedData, from_arrays
from fco_cli.data.readers import all_clients, source_fingerprint
from fco_cli.data.readers.csv_files import Csv
from fco_cli.data.readers.source import Columns, ReadOptions, Source, as_user_error, check_file, read_arrays
from fco_cli.errors import UserError
from fco_cli.files import cache_folder, exclusive_access, private_cache, require_private

log = logging.getLogger(__name__)

TFF = "https://storage.googleapis.com/tff-datasets-public/"
CHUNK = 1 << 16  # bytes; an interrupted download loses at most one chunk
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
FLAMBY = "https://raw.githubusercontent.com/owkin/FLamby/edacf54d5211520583b0133d55ac39b6fda8324b/flamby/datasets/"


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
        return TFF + self.name

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
}  # by the number of classes (docs/paper.md, "Data")


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


@dataclass(frozen=True)
class Publication:
    """Files of one public data set and the roles of their columns."""

    name: str  # of the cache folder
    tables: tuple[str, ...]  # one table, or one per client
    columns: Columns
    files: tuple[RemoteFile, ...] = ()  # to download; empty: the user must provide the folder
    names_file: str = ""  # file with the column names

    @property
    def folder(self) -> Path:
        return cache_folder("data") / self.name

    @property
    def is_downloaded(self) -> bool:
        """True if all files are in the cache."""
        return bool(self.files) and all((self.folder / file.name).exists() for file in self.files)

    def data_folder(self, data_dir: str | None) -> Path:
        """Return the folder with the files: `data_dir`, or the cache after a download if necessary."""
        if data_dir is not None:
            return Path(data_dir)
        if not self.files:
            raise UserError(f"task.data_dir: {self.name} requires the folder with {self.tables[0]} (docs/data.md)")
        return fetch_files(self.folder.name, self.files)

    def read(self, data_dir: str | None, min_samples: int) -> FederatedData:
        source = self._source(self.data_folder(data_dir))
        columns = self._columns(source.path)
        arrays = read_arrays(source, ReadOptions(columns, all_clients, source.in_folder))
        data = from_arrays(str(source.path), arrays, min_samples)
        names = [name.rpartition(".")[2] for name in data.clients.tolist()]  # processed.cleveland is cleveland
        return replace(data, client=np.array(names)[np.searchsorted(data.clients, data.client)])

    def content(self, data_dir: str | None) -> str:
        """Return the identity of the content: the pinned checksums, or a fingerprint of the user's files."""
        if data_dir is None:
            return " ".join(file.sha256 for file in self.files)
        source = self._source(Path(data_dir))
        return source_fingerprint(source, self._columns(source.path))

    def _source(self, folder: Path) -> Source:
        files = tuple(folder / name for name in self.tables)
        for file in files:
            with as_user_error(file, "a table"):
                check_file(file)
        return Source(folder, Csv(), files, in_folder=len(files) > 1)

    def _columns(self, folder: Path) -> Columns:
        if not self.names_file:
            return self.columns
        path = folder / self.names_file
        with as_user_error(path, "a list of names"):
            check_file(path)
            names = re.findall(r"^@attribute (\S+)", path.read_text(encoding="latin-1"), re.MULTILINE)
        return replace(self.columns, names=tuple(names))


@dataclass(frozen=True)
class SurvivalByCenter(Publication):
    """Survival times whose centers, and parts of training and test rows, are in a second file, as in FLamby.

    Rows that are in no center are left out, and so are rows censored at time 0: they are in no risk set of an event.
    """

    split_file: str = ""  # columns: the patient, train or test, and train_0, ..., test_5 with the number of the center
    centers: tuple[str, ...] = ()

    def read(self, data_dir: str | None, min_samples: int) -> FederatedData:
        source = self._source(self.data_folder(data_dir))
        parts = self._parts(source.path)
        assert self.columns.event is not None
        arrays = read_arrays(source, ReadOptions(replace(self.columns, event=None), all_clients, in_folder=False))
        is_event = arrays["features"] == self.columns.event
        event, time = arrays["x"][:, is_event][:, 0] > 0, arrays["y"]
        kept = np.array([patient in parts for patient in arrays["client"].tolist()]) & (event | (time > 0))
        members = [parts[patient] for patient in arrays["client"][kept].tolist()]
        rows = {
            "x": arrays["x"][kept][:, ~is_event],
            "y": np.where(event, time, -time)[kept],
            "client": np.array([self.centers[center] for _, center in members]),
            "split": np.array([part for part, _ in members]),
            "features": arrays["features"][~is_event],
        }
        return from_arrays(str(source.path), rows, min_samples)

    def content(self, data_dir: str | None) -> str:
        if data_dir is None:
            return super().content(data_dir)
        return " ".join([super().content(data_dir), hashlib.sha256(self._split_text(Path(data_dir))).hexdigest()])

    def _split_text(self, folder: Path) -> bytes:
        path = folder / self.split_file
        with as_user_error(path, "a list of parts"):
            check_file(path)
            return path.read_bytes()

    def _parts(self, folder: Path) -> dict[str, tuple[str, int]]:
        """Return the part (train or test) and the index of the center of every patient."""
        path, parts, known = folder / self.split_file, {}, [str(k) for k in range(len(self.centers))]
        lines = list(csv.reader(self._split_text(folder).decode("utf-8", "replace").splitlines()))
        for number, line in enumerate(lines[1:], 2):
            part, _, center = line[-1].partition("_") if len(line) == 3 else ("", "", "")
            if part not in ("train", "test") or part != line[1] or center not in known:
                raise UserError(
                    f"{path}: line {number}: must be a patient, train or test, and the same with _ and a center"
                )
            parts[line[0]] = part, int(center)
        return parts


def _uci(folder: str, **digests: str) -> tuple[RemoteFile, ...]:
    names = {key.replace("_", "."): digest for key, digest in digests.items()}
    return tuple(RemoteFile(name, digest, f"{UCI}{folder}/{name}") for name, digest in names.items())


HEART_FILES = _uci(
    "heart-disease",
    processed_cleveland_data="a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    processed_hungarian_data="d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    processed_switzerland_data="834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    processed_va_data="e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
)
CRIME_FILES = _uci(
    "communities",
    communities_data="09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea",
    communities_names="d4c5560c798d2c723d4455cdea7c87be59a10327dee20ef175a17eaea1445827",
)
BRCA_FILES = (
    RemoteFile(
        "brca.csv",
        "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020",
        f"{FLAMBY}fed_tcga_brca/brca.csv",
    ),
    RemoteFile(
        "train_test_split.csv",
        "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
        f"{FLAMBY}fed_tcga_brca/dataset_creation_scripts/train_test_split.csv",
    ),
)
PUBLICATIONS = {
    "heart": Publication(
        "heart_disease",
        tuple(file.name for file in HEART_FILES),
        Columns(
            label="num>0",
            categorical=("cp", "restecg", "slope", "thal"),
            missing=("chol:0", "trestbps:0"),  # Switzerland and parts of VA code missing values as 0
            names=tuple(
                "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num".split()  # noqa: SIM905
            ),
        ),
        HEART_FILES,
    ),
    "crime": Publication(
        "communities_crime",
        ("communities.data",),
        Columns(
            label="ViolentCrimesPerPop", client="state", drop=("county", "community", "communityname", "fold"),
        ),
        CRIME_FILES,
        names_file="communities.names",
    ),
    "eicu": Publication("eicu_demo", ("eicu_apache.csv",), Columns(label="died", client="hospital", missing=("-1",))),
    "brca": SurvivalByCenter(
        "fed_tcga_brca",
        ("brca.csv",),
        Columns(label="T", client="pid", event="E"),
        BRCA_FILES,
        split_file=BRCA_FILES[1].name,
        centers=("Northeast", "South", "West", "Midwest", "Europe", "Canada"),
    ),
}  # fmt: skip
