"""The leaderboard: all methods on the problems of `experiment=successors…`, each at the best cell of its grid."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fco_cli.reporting import Results, Section, Study, Table, as_csv, as_latex, as_markdown, as_numbers, for_markdown
from fco_cli.studies.leaderboard.data_card import data_card
from fco_cli.studies.leaderboard.figures import overviews, problem_figure
from fco_cli.studies.leaderboard.tables import (
    FEW_ROUNDS,
    PAPER_COLUMNS,
    Problem,
    finding,
    format_cells,
    problems_of,
    summary,
    table,
)

if TYPE_CHECKING:
    from pandas import DataFrame

LEADERBOARD = "successors"  # prefix of its experiments
TEXT = (
    "Gap: (Φ(w) − Φ*) / (Φ(w₀) − Φ*), with the certified optimum Φ*. The best cell of a "
    "grid reaches the smallest level in the fewest rounds; if none does, it has the smallest final gap. "
    '"Rounds to" a level: the first evaluated round from which the gap stays below it, median and range over the '
    "seeds. A query is one request about a client's rows that the client answers for the method; simulated seconds are "
    "those of time_model=lognormal. Auto: client_lr=auto with the method's default server step and options. The table "
    "counts the problems on which a method reaches each level, and those on which its gap rests (no longer decreases) "
    "above the optimum. Exactness is judged on problems with exact gradients: exact methods reach the smallest level, "
    "the gaps of biased ones rest above it, open ones still decrease. Settings tried are the size of a method's grid."
)

__all__ = ["LEADERBOARD", "Leaderboard", "leaderboard_problems"]


def leaderboard_problems(results: Results) -> list[Problem]:
    """Return the problems of the leaderboard among recorded results."""
    return problems_of(results.named(LEADERBOARD) + results.named(FEW_ROUNDS))


class Leaderboard(Study):
    """Comparison of all methods."""

    name = "leaderboard"
    experiments = (LEADERBOARD, FEW_ROUNDS)

    def sections(self, results: Results) -> list[Section]:
        """Return one section: an overview of all problems, with a folded section per problem."""
        problems = leaderboard_problems(results)
        if not problems:
            return []
        whole, by_method = table(problems), summary(problems)
        texts, rows = format_cells(whole).groupby("problem", sort=False), whole.groupby("problem", sort=False)
        boards, files = [], {}
        for problem in problems:
            shown = texts.get_group(problem.name).drop(columns=["problem", "algo"])
            numbers = rows.get_group(problem.name).drop(columns="problem")
            slug = f"leaderboard_{problem.study.slug}"
            tables = [Table(numbers, slug, shown=shown)]
            files[f"tables/{slug}.tex"] = as_latex(shown[list(PAPER_COLUMNS)], problem.name).encode()
            boards.append(
                Section(problem.study.slug, finding(problem), figures=[problem_figure(problem)], tables=tables)
            )
        parts = ["# Leaderboard\n", as_markdown(format_cells(by_method))]
        for problem, board in zip(problems, boards, strict=True):
            heading, sentence = for_markdown(problem.name), for_markdown(board.heading)
            shown = texts.get_group(problem.name).drop(columns=["problem", "algo"])
            parts.append(f"## {heading}\n\n{sentence}\n\n{as_markdown(shown)}")
        files |= {
            "tables/leaderboard.csv": as_csv(as_numbers(whole)).encode(),
            "tables/leaderboard.md": "\n".join(parts).encode(),
            "tables/leaderboard_card.md": data_card(problems).encode(),
        }
        links = [("all numbers (CSV)", "tables/leaderboard.csv")]
        if find_spec("pyarrow"):
            files["tables/leaderboard.parquet"] = _as_parquet(as_numbers(whole))
            links.append(("Parquet", "tables/leaderboard.parquet"))
        links += [("data card", "tables/leaderboard_card.md"), ("LaTeX", "tables/leaderboard_summary.tex")]
        methods = Table(by_method, "leaderboard_summary", "Leaderboard", ("csv", "tex"), shown=format_cells(by_method))
        section = Section(
            "leaderboard",
            "Leaderboard: every method at the best of its grid",
            TEXT,
            list(overviews(problems)),
            tables=[methods],
            sections=boards,
            menu="Leaderboard",
            command="make leaderboard",
            links=links,
            files=files,
        )
        return [section]


def _as_parquet(numbers: DataFrame) -> bytes:
    buffer = io.BytesIO()
    numbers.to_parquet(buffer, index=False)
    return buffer.getvalue()
