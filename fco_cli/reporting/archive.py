"""Archives of records for a repository of research data: one zip with records, plug-ins, versions and checksums.

Equal contents give equal bytes: members are sorted and have no time of their own. `fco-report` reads the unpacked
records.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from fco_cli.files import write_atomically
from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

RECORD = ("config.yaml", "metrics.csv", "result.json")  # files of a record that reports need
LICENSE_URL = "https://www.apache.org/licenses/LICENSE-2.0.txt"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # time of every member
PERMISSIONS = 0o100644
UNIX = 3  # system that created the archive, as zip files number it


def write_archive(path: Path, folder: str, studies: Iterable[RecordedStudy], own: Mapping[str, bytes | Path]) -> int:
    """Write an archive of the studies' records and of `own` members, below a folder; return the number of records.

    A member is its content or the file to read it from.
    """
    runs = {run.folder: f"records/{study.slug}/{run.algo}/{run.run_id}" for study in studies for run in study.runs}
    recorded = [run for study in studies for run in study.runs]
    members = dict(own) | {f"{member}/{name}": place / name for place, member in runs.items() for name in RECORD}
    members |= _plugins(recorded)
    members["LICENSE"] = license_text().encode()
    members["versions.json"] = (json.dumps(_versions(recorded), indent=1, sort_keys=True) + "\n").encode()
    sums, buffer = [], io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in sorted(members.items()):
            data = content if isinstance(content, bytes) else content.read_bytes()
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
            _add(file, f"{folder}/{name}", data)
        _add(file, f"{folder}/SHA256SUMS", "".join(sums).encode())
    write_atomically(path, buffer.getvalue())
    return len(runs)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, EARLIEST)
    member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, UNIX
    member.external_attr = PERMISSIONS << 16
    file.writestr(member, data)


def _plugins(runs: list[RecordedRun]) -> dict[str, bytes]:
    """Return the plug-in files of the runs that are unchanged, by member."""
    members = {}
    for path, digest in {pair for run in runs for pair in run.result.get("plugins", {}).items()}:
        try:
            content = read_bounded(Path(path), MEBIBYTE) if path.endswith(".py") else b""
        except BadRecord:
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            members[f"plugins/{digest[:8]}/{Path(path).name}"] = content
    return members


def software_of(runs: Iterable[RecordedRun]) -> list[str]:
    """Return the combinations of software versions of the runs, sorted, one line each."""
    distinct = {json.dumps({"python": run.result["python"], **run.result["versions"]}, sort_keys=True) for run in runs}
    return [", ".join(f"{name} {version}" for name, version in json.loads(text).items()) for text in sorted(distinct)]


def _versions(runs: list[RecordedRun]) -> dict[str, list[str]]:
    revisions = sorted({run.result["git_revision"] for run in runs if run.result["git_revision"]})
    return {"software": software_of(runs), "revisions": revisions}


def license_text() -> str:
    """Return the license of the installed package; its address if the package has no metadata."""
    try:
        paths = [path.locate() for path in files("fco-cli") or [] if path.name == "LICENSE"]
    except PackageNotFoundError:
        paths = []
    for path in map(str, paths):
        if Path(path).is_file():
            return Path(path).read_text(encoding="utf-8")
    return f"Apache License, Version 2.0: {LICENSE_URL}\n"
