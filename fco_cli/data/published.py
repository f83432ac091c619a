"""Public tables with natural clients; docs/data.md has descriptions, licenses and citations."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fco_cli.cache_folders import cache_folder
from fco_cli.data.download import RemoteFile, fetch_files
from fco_cli.data.format import FederatedData, from_arrays
from fco_cli.data.readers import all_clients, source_fingerprint
from fco_cli.data.readers.csv_files import Csv
from fco_cli.data.readers.source import Columns, ReadOptions, Source, as_user_error, check_file, read_arrays
from fco_cli.errors import UserError

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"


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
}  # fmt: skip
