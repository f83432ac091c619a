"""The archive of the leaderboard: its records, tables, figures and data card in one zip file."""

from __future__ import annotations

from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.reporting import Results, as_yaml, software_of, write_archive
from fco_cli.studies.leaderboard.data_card import data_card, runs_of
from fco_cli.studies.leaderboard.tables import Problem, methods_of, recorded_problems

NAME = "leaderboard"  # folder in the archive, and prefix of its tables and figures
SHOWN = {"tables": (".csv", ".parquet", ".tex"), "figures": (".csv", ".pdf")}
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


def archive(results: Results, report: Path, path: Path) -> int:
    """Write the archive; return its number of records. `report` is the folder of the written report."""
    problems = recorded_problems(results)
    if not problems:
        raise UserError("--leaderboard-archive: no records of the leaderboard with a certified optimum were found")
    members: dict[str, bytes | Path] = {
        "README.md": README.format(card=data_card(problems)).encode(),
        "CITATION.cff": citation(problems).encode(),
    }
    for folder, suffixes in SHOWN.items():
        paths = (report / folder).glob(f"{NAME}*")
        members |= {f"{folder}/{one.name}": one for one in paths if one.suffix in suffixes}
    return write_archive(path, NAME, [problem.study for problem in problems], members)


def citation(problems: list[Problem]) -> str:
    """Return the metadata of the data set in the Citation File Format."""
    runs = runs_of(problems)
    content = {
        "cff-version": "1.2.0",
        "message": "If you use these data, please cite them and the software that made them.",
        "type": "dataset",
        "title": "Leaderboard of federated composite optimization",
        "abstract": (
            "Rounds, bytes, gradients, queries and simulated seconds to certified optima: "
            f"{len(methods_of(problems))} methods on {len(problems)} problems in {len(runs)} runs."
        ),
        "license": "Apache-2.0",
        "authors": [{"name": "The fco developers"}],
        "keywords": ["federated learning", "composite optimization", "benchmark"],
        "references": [
            {
                "type": "software",
                "title": "fco: federated composite optimization",
                "notes": "; ".join(software_of(runs)),
                "license": "Apache-2.0",
                "authors": [{"name": "The fco developers"}],
            }
        ],
    }
    return as_yaml(content)
