"""An archive of the leaderboard for a repository of research data: records, tables, figures and metadata in one zip.

Equal records and tables give equal bytes: members are sorted and have no time of their own. `fco-report` reads the
unpacked records.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import yaml

from fco_cli import __version__
from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.reporting import RecordedRun, Results
from fco_cli.studies.leaderboard.data_card import data_card, runs_of, versions_of
from fco_cli.studies.leaderboard.tables import Problem, methods_of
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

NAME = "leaderboard"  # folder in the archive, and prefix of its tables and figures
RECORD = ("config.yaml", "metrics.csv", "result.json")  # files of a record that reports need
SHOWN = {"tables": (".csv", ".parquet", ".tex"), "figures": (".csv", ".pdf")}
LICENSE_URL = "https://www.apache.org/licenses/LICENSE-2.0.txt"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # time of every member
PERMISSIONS = 0o100644
UNIX = 3  # system that created the archive, as zip files number it
README = """\
{card}
## Files of this archive

- `records/EXPERIMENT/METHOD/RUN/`: configuration, metrics of every evaluated round and result of every run; without the
  models. `result.json` names the paths of plug-ins on the machine of the run.
- `tables/`, `figures/`: made from these records by `fco-report records`.
- `plugins/`: the source of methods from outside the package, if it was unchanged when the archive was written.
- `versions.json`: software of the runs. `SHA256SUMS`: check with `sha256sum -c SHA256SUMS`.
- `CITATION.cff` and `LICENSE`: how to cite, and the terms of use. Add the authors and the DOI before publication.
"""


def write_archive(results: Results, problems: list[Problem], report: Path, path: Path) -> int:
    """Write the archive; return its number of records. `report` is the folder of the written report."""
    if not problems:
        raise UserError("--leaderboard-archive: no records of the leaderboard with a certified optimum were found")
    runs = runs_of(problems)
    sums, buffer = [], io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in sorted(_members(problems, runs, report).items()):
            data = content if isinstance(content, bytes) else content.read_bytes()
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
            _add(file, name, data)
        _add(file, "SHA256SUMS", "".join(sums).encode())
    write_atomically(path, buffer.getvalue())
    return len(runs)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(f"{NAME}/{name}", EARLIEST)
    member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, UNIX
    member.external_attr = PERMISSIONS << 16
    file.writestr(member, data)


def _members(problems: list[Problem], runs: list[RecordedRun], report: Path) -> dict[str, bytes | Path]:
    """Return the contents of all members but the checksums, or the files to read them from, by name."""
    members: dict[str, bytes | Path] = {
        "README.md": README.format(card=data_card(problems)).encode(),
        "CITATION.cff": citation(problems).encode(),
        "LICENSE": license_text().encode(),
        "versions.json": (json.dumps(_versions(runs), indent=1, sort_keys=True) + "\n").encode(),
    }
    for folder, suffixes in SHOWN.items():
        paths = (report / folder).glob(f"{NAME}*")
        members |= {f"{folder}/{path.name}": path for path in paths if path.suffix in suffixes}
    folders = {
        run.folder: f"records/{one.study.slug}/{run.algo}/{run.run_id}" for one in problems for run in one.study.runs
    }
    members |= {f"{member}/{name}": folder / name for folder, member in folders.items() for name in RECORD}
    for path, digest in {pair for run in runs for pair in run.result.get("plugins", {}).items()}:
        if (content := _unchanged(Path(path), digest)) is not None:
            members[f"plugins/{digest[:8]}/{Path(path).name}"] = content
    return members


def _unchanged(path: Path, digest: str) -> bytes | None:
    """Return the content of a plug-in file if it is still that of the runs."""
    try:
        content = read_bounded(path, MEBIBYTE) if path.suffix == ".py" else b""
    except BadRecord:
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def _versions(runs: list[RecordedRun]) -> dict[str, object]:
    revisions = sorted({run.result["git_revision"] for run in runs if run.result["git_revision"]})
    return {"fco": __version__, "runs": [line.removeprefix("- ") for line in versions_of(runs)], "revisions": revisions}


def citation(problems: list[Problem]) -> str:
    """Return the metadata of the data set in the Citation File Format."""
    counts = f"{len(methods_of(problems))} methods on {len(problems)} problems in {len(runs_of(problems))} runs"
    content = {
        "cff-version": "1.2.0",
        "message": "If you use these data, please cite them and the software that made them.",
        "type": "dataset",
        "title": "Leaderboard of federated composite optimization",
        "abstract": f"Rounds, bytes, gradients, queries and simulated seconds to certified optima: {counts}.",
        "version": __version__,
        "license": "Apache-2.0",
        "authors": [{"name": "The fco developers"}],
        "keywords": ["federated learning", "composite optimization", "benchmark"],
        "references": [
            {
                "type": "software",
                "title": "fco: federated composite optimization",
                "version": __version__,
                "license": "Apache-2.0",
                "authors": [{"name": "The fco developers"}],
            }
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


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
