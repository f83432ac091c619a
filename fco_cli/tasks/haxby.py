"""The data of Haxby et al. (2001): face and house scans by subject and run, prepared once and then memory-mapped.

nilearn finds or downloads the files and turns the volumes into z-scored voxels. The prepared scans stay in a cache
folder whose name is a digest of everything they depend on; it appears complete or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fco_cli.data.private_cache import private, private_cache
from fco_cli.data.source import check_file, understood
from fco_cli.errors import UserError, one_line
from fco_cli.files import one_at_a_time
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.typed_files import Missing, read_json

if TYPE_CHECKING:
    from nibabel import Nifti1Image

log = logging.getLogger(__name__)

STIMULI = {"house": 0.0, "face": 1.0}
PREPROCESSING = {"standardize": "zscore_sample", "by": "run", "stimuli": sorted(STIMULI), "dtype": "float32"}


@dataclass(frozen=True)
class Subject:
    """One subject's files."""

    number: int
    scans: Path
    labels: Path
    mask: Path  # of the whole brain, one for all subjects


@dataclass(frozen=True)
class Session:
    """A run of a subject that has face or house scans: a client."""

    subject: int
    run: int
    volumes: list[int]  # of the face and house scans
    y: list[float]


class Description(msgspec.Struct):
    """Schema of prepared.json: what x.npy holds."""

    shape: list[int]
    sessions: list[Session]


@dataclass(frozen=True)
class Prepared:
    """All sessions, one after another in the order of the subjects asked for."""

    x: Array  # [scans, voxels], a memory map
    sessions: list[Session]
    mask: Nifti1Image

    def of(self, subjects: list[int], dtype: str) -> ClientData:
        """The sessions of subjects that stand next to each other, as clients; float32 is read in place."""
        chosen = [i for i, session in enumerate(self.sessions) if session.subject in subjects]
        start = np.cumsum([0] + [len(session.y) for session in self.sessions])[chosen[0] : chosen[-1] + 2]
        y = np.concatenate([self.sessions[i].y for i in chosen]).astype(dtype)
        x = np.asarray(self.x[start[0] : start[-1]])  # a plain array, which the kernels know
        return ClientData(x.astype(dtype, copy=False), y, start - start[0])


def prepare(data_dir: str | None, subjects: list[int]) -> Prepared:
    """The sessions of the subjects, from the cache if they have been prepared before."""
    files = [fetch(data_dir, number) for number in subjects]
    with understood(files[0].mask.parent, "a folder of scans"):
        folder = cache_home() / _digest(files)
    prepared = _load(folder)
    if prepared is None:
        with one_at_a_time(folder.parent):  # another process may be at it: then wait, and find its work done
            prepared = _load(folder)
            if prepared is None:
                _prepare(files, folder)
                prepared = _load(folder)
    assert prepared is not None, folder
    return prepared


def fetch(data_dir: str | None, number: int) -> Subject:
    """Find one subject's files with nilearn, which downloads what is missing.

    One subject at a time: nilearn lists the files of several in a wrong order unless subject 6 is the last.
    """
    from nilearn.datasets import fetch_haxby
    from nilearn.datasets.utils import get_data_dirs

    try:
        found = fetch_haxby(data_dir=data_dir, subjects=[number], verbose=0)
    except (OSError, ValueError) as problem:
        place = Path(get_data_dirs(data_dir)[0]) / "haxby2001"
        raise UserError(
            f"task.data_dir: the Haxby 2001 data of subject {number} are not in {place} and cannot be downloaded "
            f"({one_line(problem).split(' (Caused by')[0]}). "
            "What is needed there: mask.nii.gz from https://www.nitrc.org/frs/download.php/7868/mask.nii.gz, and "
            f"MD5SUMS and subj{number}-2010.01.14.tar.gz, unpacked, from http://data.pymvpa.org/datasets/haxby2001/ "
            "(about 300 MB a subject, 1.8 GB for all six). task=fmri_sim needs no download"
        ) from problem
    return Subject(number, Path(found.func[0]), Path(found.session_target[0]), Path(found.mask))


def missing(data_dir: str | None, subjects: list[int]) -> str | None:
    """The first file, of those that we read, which is in none of nilearn's folders."""
    from nilearn.datasets.utils import get_data_dirs

    places = [Path(place) / "haxby2001" for place in get_data_dirs(data_dir)]
    names = ["mask.nii.gz", *(f"subj{n}/{name}" for n in subjects for name in ("bold.nii.gz", "labels.txt"))]
    for name in names:
        if not any((place / name).exists() for place in places):
            return f"the Haxby 2001 data have not been downloaded: no {name} in {places[0]}"
    return None


def read_sessions(subject: Subject) -> tuple[list[Session], Array]:
    """The subject's sessions in the order of time, and the run of every volume."""
    import pandas as pd

    what = "a table with the columns 'labels' and 'chunks', separated by a blank,"
    with understood(subject.labels, what, (ValueError, KeyError)):
        check_file(subject.labels)
        table = pd.read_csv(subject.labels, sep=" ")
        names, runs = table["labels"], table["chunks"].to_numpy(dtype=np.int64)
    y = names.map(STIMULI).to_numpy()
    sessions = []
    for run in dict.fromkeys(runs.tolist()):
        volumes = np.flatnonzero((runs == run) & np.isfinite(y))
        if len(volumes):
            sessions.append(Session(subject.number, run, volumes.tolist(), y[volumes].tolist()))
        else:
            log.info("subject %d: run %d has no face or house scan, left out", subject.number, run)
    if not sessions:
        raise UserError(f"{subject.labels}: subject {subject.number} has no face or house scan")
    return sessions, runs


def read_image(path: Path) -> Nifti1Image:
    """The whole image, read into memory so that damage shows here."""
    import nibabel

    with understood(path, "a NIfTI image", (nibabel.filebasedimages.ImageFileError, EOFError, ValueError, zlib.error)):
        check_file(path)
        image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Image):
            raise UserError(f"{path}: is not a NIfTI image")
        require_memory(f"{path}: reading it", 8 * math.prod(image.shape))  # whole numbers with a scale become floats
        return nibabel.Nifti1Image(np.asanyarray(image.dataobj), image.affine, image.header)


def z_scores(subject: Subject, sessions: list[Session], runs: Array, mask: Nifti1Image) -> Array:
    """The face and house scans of a subject, [scans, voxels], z-scored over all volumes of their run."""
    from nilearn.maskers import NiftiMasker

    scans = read_image(subject.scans)
    if scans.ndim != 4 or scans.shape[3] != len(runs):
        raise UserError(f"{subject.labels}: has {len(runs)} rows, but {subject.scans} has shape {scans.shape}")
    if scans.shape[:3] != mask.shape:
        raise UserError(f"{subject.mask}: its shape {mask.shape} is not that of the scans, {subject.scans.name}: "
                        f"{scans.shape[:3]}")  # fmt: skip
    if not np.isfinite(np.asarray(scans.dataobj)[np.asarray(mask.dataobj) != 0]).all():
        raise UserError(f"{subject.scans}: some voxels are not finite")
    masker = NiftiMasker(mask, runs=runs, standardize=PREPROCESSING["standardize"], dtype=PREPROCESSING["dtype"])
    return masker.fit().transform(scans)[[volume for session in sessions for volume in session.volumes]]


def _prepare(files: list[Subject], folder: Path) -> None:
    """Prepare all subjects in a folder beside the final one, which then takes its name."""
    from fco_cli.progress import track

    labelled = [read_sessions(subject) for subject in files]  # first: cheap, and most mistakes show here
    sessions = [session for found, _ in labelled for session in found]
    mask = read_image(files[0].mask)
    voxels = int((np.asarray(mask.dataobj) != 0).sum())
    if voxels == 0:
        raise UserError(f"{files[0].mask}: has no voxel")
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        work.mkdir(mode=0o700)
        shape = (sum(len(session.y) for session in sessions), voxels)
        x = np.lib.format.open_memmap(work / "x.npy", mode="w+", dtype=np.float32, shape=shape)
        low = 0
        for subject, (found, runs) in track(list(zip(files, labelled, strict=True)), "preparing subjects"):
            scans = z_scores(subject, found, runs, mask)
            x[low : low + len(scans)] = scans
            low += len(scans)
        x.flush()
        shutil.copyfile(files[0].mask, work / "mask.nii.gz")
        description = _contents(files) | {"shape": shape, "sessions": [asdict(session) for session in sessions]}
        (work / "prepared.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
        if folder.exists():  # damaged
            folder.rename(work / "replaced")
        work.rename(folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    except OSError as problem:
        raise UserError(f"{folder.parent}: the cache cannot be written: {problem.strerror}") from problem
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _load(folder: Path) -> Prepared | None:
    """What is in the cache; None if nothing is, or if it is damaged."""
    if folder.exists():
        private(folder)
    try:
        description = read_json(folder / "prepared.json", Description)
        # copy-on-write: the file never changes, and the kernels see the same kind of array as everywhere
        x = np.load(folder / "x.npy", mmap_mode="c", allow_pickle=False)
        if list(x.shape) != description.shape:
            raise ValueError(f"x.npy has shape {x.shape}")
        return Prepared(x, description.sessions, read_image(folder / "mask.nii.gz"))
    except (FileNotFoundError, Missing):
        return None
    except (OSError, ValueError, UserError) as problem:
        log.warning("%s cannot be read (%s): prepared again", folder, one_line(problem))
        return None


def _contents(files: list[Subject]) -> dict[str, Any]:
    """All that prepared scans depend on."""
    import nilearn

    def version(path: Path) -> list[Any]:
        return [str(path), path.stat().st_size, path.stat().st_mtime_ns]

    sources = {s.number: [version(path) for path in (s.scans, s.labels, s.mask)] for s in files}
    return {"nilearn": nilearn.__version__, "preprocessing": PREPROCESSING, "sources": sources}


def _digest(files: list[Subject]) -> str:
    content = json.dumps([_contents(files), [subject.number for subject in files]])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def cache_home() -> Path:
    return private_cache("fmri")
