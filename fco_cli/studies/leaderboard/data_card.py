"""The data card of the leaderboard's tables: contents, columns, rules and limits, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fco_cli import __version__
from fco_cli.reporting import RecordedRun, for_markdown, settings_of
from fco_cli.studies.leaderboard.method_results import ALL_ROWS, LEVELS, has_exact_gradients
from fco_cli.studies.leaderboard.tables import COLUMNS, Problem, methods_of

FIRST_SETTINGS = ("task.dimension", "task.clients", "task.samples", "task.heterogeneity", "hparams.clients_per_round")


def data_card(problems: list[Problem]) -> str:
    """Return the data card."""
    runs = runs_of(problems)
    parts = [
        "# Data card: leaderboard of federated composite optimization",
        f"Methods: {len(methods_of(problems))}. Problems: {len(problems)}. Runs: {len(runs)}. fco {__version__}.",
        "## Content",
        "`leaderboard.csv` and `leaderboard.parquet` have the same rows, one per problem and method, at the best "
        "setting of its grid. `leaderboard_summary.csv` has a row per method over all problems, "
        "`leaderboard_NAME.csv` the rows of one problem. Tables with the ending `tex` need the LaTeX package booktabs. "
        "The figures have their numbers in CSV files of the same name.",
        "## Columns of leaderboard.csv",
        "Numbers that differ between the seeds have three columns: median, low and high. "
        "The gap is (Phi(w) - Phi*) / (Phi(w_0) - Phi*), where Phi is the objective and Phi* its certified minimum.",
        _table(("column", "meaning"), COLUMNS.items()),
        "## Problems",
        _table(
            ("problem", "experiment", "regularizer", "gradients", "settings", "seeds", "methods", "runs"),
            map(_problem, problems),
        ),
        "## How the numbers were made",
        "- Every method has a grid of settings, listed in `conf/base/successors.yaml` and `conf/base/few_rounds.yaml` "
        "of the package; a method from outside has the client rates 1/L, 0.3/L and 0.1/L and the server rates 1 and 3.",
        f"- The best setting reaches a gap of {LEVELS[-1]:g} in the fewest rounds; if none does, it has the smallest "
        "final gap. It is chosen with the same seeds that are reported.",
        "- Simulated seconds are those of `time_model=lognormal` with its defaults: hypothetical clients.",
        "- Data are generated from the seed or read from the published tables that `fco` names; no rows are included.",
        "## Limits",
        "- The synthetic problems are smaller than those of the literature; orders of methods need not carry over.",
        "- A method with a larger grid, or with rates beyond it, may be better: see the columns of tuning effort and "
        "`on the edge of its grid`.",
        "- Exactness is observed, not proven: a gap that still decreases may rest later.",
        "## Software",
        *versions_of(runs),
    ]
    return "\n\n".join(parts) + "\n"


def runs_of(problems: list[Problem]) -> list[RecordedRun]:
    """Return every run of the problems once."""
    runs = {run.folder: run for problem in problems for run in problem.study.runs}
    return list(runs.values())


def versions_of(runs: Iterable[RecordedRun]) -> list[str]:
    """Return the combinations of software versions of the runs, sorted, as lines of a list."""
    found = {json.dumps({"python": run.result["python"], **run.result["versions"]}, sort_keys=True) for run in runs}
    lines = (", ".join(f"{name} {version}" for name, version in json.loads(text).items()) for text in sorted(found))
    return [f"- {for_markdown(line)}" for line in lines]


def _problem(problem: Problem) -> tuple[object, ...]:
    study = problem.study
    settings = settings_of(study)
    shown = [f"{name.partition('.')[2]} {settings[name]}" for name in FIRST_SETTINGS if settings.get(name) is not None]
    batches = "exact" if has_exact_gradients(study) else f"batches of {settings.get('hparams.batch_size', ALL_ROWS)}"
    regularizer = study.runs[0].config["regularizer"]["name"]
    counts = (len(study.seeds), len(problem.methods), len(study.runs))
    return problem.name, study.name, regularizer, batches, ", ".join(shown), *counts


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(for_markdown(str(cell)) for cell in line) + " |" for line in lines)
