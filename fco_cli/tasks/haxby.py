"""Face and house scans of Haxby et al. (2001), prepared once and then memory-mapped.

nilearn finds or downloads the files and computes z-scores of the voxels. The prepared scans are stored in a cache
folder whose name is a digest of all inputs; the folder is created atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from fco_cli.data.readers.source import as_user_error, check_file
from fco_cli.errors import UserError, one_line
from fco_cli.files import exclusive_access, private_cache, require_private
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.typed_files import Missing, read_json

if TYPE_CHECKING:
    from nibabel import Nifti1Image

log = logging.getLogger(__name__)
Item = TypeVar("Item")

STIMULI = {"house": 0.0, "face": 1.0}
PREPROCESSING = {"standardize": "zscore_sample", "by": "run", "stimuli": sorted(STIMULI), "dtype": "float32"}


@dataclass(frozen=True)
class Subject:
    """Files of one subject."""

    number: int
    scans: Path
    labels: Path
    mask: Path  # whole brain, shared by all subjects


@dataclass(frozen=True)
class Session:
    """Run of a subject with face or house scans; a client."""

    subject: int
    run: int
    volumes: list[int]  # indices of the face and house scans
    y: list[float]


class Description(msgspec.Struct):
    """Schema of prepared.json, the description of x.npy."""

    shape: list[int]
    sessions: list[Session]


@dataclass(frozen=True)
class Prepared:
    """Prepared scans of all sessions, in the order of the requested subjects."""

    x: Array  # [scans, voxels], a memory map
    sessions: list[Session]
    mask: Nifti1Image

    def of(self, subjects: list[int], dtype: str) -> ClientData:
        """Return the sessions of consecutive subjects as clients; float32 data are not copied."""
        selected = [i for i, session in enumerate(self.sessions) if session.subject in subjects]
        start = np.cumsum([0] + [len(session.y) for session in self.sessions])[selected[0] : selected[-1] + 2]
        y = np.concatenate([self.sessions[i].y for i in selected]).astype(dtype)
        x = np.asarray(self.x[start[0] : start[-1]])  # a plain array, as the kernels require
        return ClientData(x.astype(dtype, copy=False), y, start - start[0])


def prepare(data_dir: str | None, subjects: list[int]) -> Prepared:
    """Return the prepared sessions of the subjects, from the cache if possible."""
    files = [fetch(data_dir, number) for number in subjects]
    with as_user_error(files[0].mask.parent, "a folder of scans"):
        folder = fmri_cache() / _digest(files)
    prepared = _load(folder)
    if prepared is None:
        with exclusive_access(folder.parent):  # wait for another process that prepares the same data
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
        bunch = fetch_haxby(data_dir=data_dir, subjects=[number], verbose=0)
    except (OSError, ValueError) as problem:
        folder = Path(get_data_dirs(data_dir)[0]) / "haxby2001"
        raise UserError(
            f"task.data_dir: the Haxby 2001 data of subject {number} are not in {folder} and cannot be downloaded "
            f"({one_line(problem).split(' (Caused by')[0]}). "
            "Required files: mask.nii.gz from https://www.nitrc.org/frs/download.php/7868/mask.nii.gz, and "
            f"MD5SUMS and subj{number}-2010.01.14.tar.gz, unpacked, from http://data.pymvpa.org/datasets/haxby2001/ "
            "(about 300 MB per subject, 1.8 GB for all six). task=fmri_sim needs no download"
        ) from problem
    return Subject(number, Path(bunch.func[0]), Path(bunch.session_target[0]), Path(bunch.mask))


def missing_file(data_dir: str | None, subjects: list[int]) -> str | None:
    """Return a message with the first required file that is in none of the data folders of nilearn, or None."""
    from nilearn.datasets.utils import get_data_dirs

    folders = [Path(folder) / "haxby2001" for folder in get_data_dirs(data_dir)]
    names = ["mask.nii.gz", *(f"subj{n}/{name}" for n in subjects for name in ("bold.nii.gz", "labels.txt"))]
    for name in names:
        if not any((folder / name).exists() for folder in folders):
            return f"the Haxby 2001 data have not been downloaded: no {name} in {folders[0]}"
    return None


def read_sessions(subject: Subject) -> tuple[list[Session], Array]:
    """Return the sessions of the subject in chronological order, and the run of every volume."""
    import pandas as pd

    what = "a table with the columns 'labels' and 'chunks', separated by a blank,"
    with as_user_error(subject.labels, what, (ValueError, KeyError)):
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
            log.info("subject %d: run %d has no face or house scan; skipped", subject.number, run)
    if not sessions:
        raise UserError(f"{subject.labels}: subject {subject.number} has no face or house scan")
    return sessions, runs


def read_image(path: Path) -> Nifti1Image:
    """Read an image into memory; raise UserError if it is damaged."""
    import nibabel

    with as_user_error(
        path, "a NIfTI image", (nibabel.filebasedimages.ImageFileError, EOFError, ValueError, zlib.error)
    ):
        check_file(path)
        image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Image):
            raise UserError(f"{path}: is not a NIfTI image")
        require_memory(f"{path}: reading it", 8 * math.prod(image.shape))  # scaled integers become floats
        return nibabel.Nifti1Image(np.asanyarray(image.dataobj), image.affine, image.header)


def z_scores(subject: Subject, sessions: list[Session], runs: Array, mask: Nifti1Image) -> Array:
    """Return the face and house scans of a subject [scans, voxels], z-scored over all volumes of their run."""
    from nilearn.maskers import NiftiMasker

    scans = read_image(subject.scans)
    if scans.ndim != 4 or scans.shape[3] != len(runs):
        raise UserError(f"{subject.labels}: has {len(runs)} rows, but {subject.scans} has shape {scans.shape}")
    if scans.shape[:3] != mask.shape:
        raise UserError(f"{subject.mask}: shape {mask.shape} differs from that of the scans, {subject.scans.name}: "
                        f"{scans.shape[:3]}")  # fmt: skip
    if not np.isfinite(np.asarray(scans.dataobj)[np.asarray(mask.dataobj) != 0]).all():
        raise UserError(f"{subject.scans}: some voxels are not finite")
    masker = NiftiMasker(mask, runs=runs, standardize=PREPROCESSING["standardize"], dtype=PREPROCESSING["dtype"])
    return masker.fit().transform(scans)[[volume for session in sessions for volume in session.volumes]]


def _prepare(files: list[Subject], folder: Path) -> None:
    """Prepare all subjects in a temporary folder, then rename it to `folder`."""
    labeled = [read_sessions(subject) for subject in files]  # first, since it is fast and detects most errors
    sessions = [session for subject_sessions, _ in labeled for session in subject_sessions]
    mask = read_image(files[0].mask)
    voxels = int((np.asarray(mask.dataobj) != 0).sum())
    if voxels == 0:
        raise UserError(f"{files[0].mask}: has no voxels")
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        work.mkdir(mode=0o700)
        shape = (sum(len(session.y) for session in sessions), voxels)
        x = np.lib.format.open_memmap(work / "x.npy", mode="w+", dtype=np.float32, shape=shape)
        low = 0
        for subject, (subject_sessions, runs) in _track(list(zip(files, labeled, strict=True)), "preparing subjects"):
            scans = z_scores(subject, subject_sessions, runs, mask)
            x[low : low + len(scans)] = scans
            low += len(scans)
        x.flush()
        shutil.copyfile(files[0].mask, work / "mask.nii.gz")
        description = _contents(files) | {"shape": shape, "sessions": [asdict(session) for session in sessions]}
        (work / "prepared.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
        if folder.exists():  # but damaged
            folder.rename(work / "replaced")
        work.rename(folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    except OSError as problem:
        raise UserError(f"{folder.parent}: the cache cannot be written: {problem.strerror}") from problem
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _load(folder: Path) -> Prepared | None:
    """Return the prepared scans in the cache folder; None if it does not exist or is damaged."""
    if folder.exists():
        require_private(folder)
    try:
        description = read_json(folder / "prepared.json", Description)
        # copy-on-write: a writable array, as elsewhere, whose file never changes
        x = np.load(folder / "x.npy", mmap_mode="c", allow_pickle=False)
        if list(x.shape) != description.shape:
            raise ValueError(f"x.npy has shape {x.shape}")
        return Prepared(x, description.sessions, read_image(folder / "mask.nii.gz"))
    except (FileNotFoundError, Missing):
        return None
    except (OSError, ValueError, UserError) as problem:
        log.warning("%s cannot be read (%s); preparing it again", folder, one_line(problem))
        return None


def _contents(files: list[Subject]) -> dict[str, Any]:
    """Return all inputs that determine the prepared scans."""
    import nilearn

    def version(path: Path) -> list[Any]:
        return [str(path), path.stat().st_size, path.stat().st_mtime_ns]

    sources = {s.number: [version(path) for path in (s.scans, s.labels, s.mask)] for s in files}
    return {"nilearn": nilearn.__version__, "preprocessing": PREPROCESSING, "sources": sources}


def _digest(files: list[Subject]) -> str:
    content = json.dumps([_contents(files), [subject.number for subject in files]])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def fmri_cache() -> Path:
    return private_cache("fmri")


def _track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items; show a progress bar on a terminal, otherwise log a line per item."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=len(items))
        for number, item in enumerate(items, 1):
            if not console.is_terminal:
                log.info("%s: %d of %d", what, number, len(items))
            yield item
            bar.update(task, completed=number)
