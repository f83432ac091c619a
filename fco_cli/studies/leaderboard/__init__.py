"""The leaderboard: all methods on the problems of `experiment=successors…`, each at the best cell of its grid."""

from __future__ import annotations

from fco_cli.reporting import Results, Section, Study, Table, as_csv, as_markdown, as_numbers, for_markdown
from fco_cli.studies.leaderboard.figures import overviews, problem_figure
from fco_cli.studies.leaderboard.tables import FEW_ROUNDS, finding, format_cells, problems_of, summary, table

LEADERBOARD = "successors"  # prefix of its experiments
TEXT = (
    "Gap: (Φ(w) − Φ*) / (Φ(w₀) − Φ*), with the certified optimum Φ*. All grids have the same size. The best cell of a "
    "grid reaches the smallest level in the fewest rounds; if none does, it has the smallest final gap. "
    '"Rounds to" a level: the first evaluated round from which the gap stays below it, median and range over the '
    "seeds. A query is one request about a client's rows that the client answers for the method. Auto: client_lr=auto "
    "with the method's default server step and options. The table counts the problems on "
    "which a method reaches each level, and those on which its gap rests (no longer decreases) above the optimum."
)

__all__ = ["LEADERBOARD", "Leaderboard"]


class Leaderboard(Study):
    """Comparison of all methods."""

    name = "leaderboard"
    experiments = (LEADERBOARD, FEW_ROUNDS)

    def sections(self, results: Results) -> list[Section]:
        """Return one section: an overview of all problems, with a folded section per problem."""
        problems = problems_of(results.named(LEADERBOARD) + results.named(FEW_ROUNDS))
        if not problems:
            return []
        whole, by_method = table(problems), summary(problems)
        texts = format_cells(whole).groupby("problem", sort=False)
        boards = []
        for problem in problems:
            shown = texts.get_group(problem.name).drop(columns=["problem", "algo"])
            tables = [Table(shown, shown=shown)]
            boards.append(
                Section(problem.study.slug, finding(problem), figures=[problem_figure(problem)], tables=tables)
            )
        parts = ["# Leaderboard\n", as_markdown(format_cells(by_method))]
        for problem, board in zip(problems, boards, strict=True):
            heading, sentence = for_markdown(problem.name), for_markdown(board.heading)
            parts.append(f"## {heading}\n\n{sentence}\n\n{as_markdown(board.tables[0].frame)}")
        files = {
            "tables/leaderboard.csv": as_csv(as_numbers(whole)).encode(),
            "tables/leaderboard.md": "\n".join(parts).encode(),
        }
        section = Section(
            "leaderboard",
            "Leaderboard: every method at the best of its grid",
            TEXT,
            list(overviews(problems)),
            tables=[Table(by_method, "leaderboard_summary", shown=format_cells(by_method))],
            sections=boards,
            menu="Leaderboard",
            command="make leaderboard",
            links=[("all numbers (CSV)", "tables/leaderboard.csv")],
            files=files,
        )
        return [section]
