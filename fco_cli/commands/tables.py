"""Tables printed by the commands: best of a sweep, paths, theory and advice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fco_cli.commands.run_summary import OBJECTIVES
from fco_cli.files import escape_unprintable
from fco_cli.path.between_clients import warning_of_between_clients
from fco_cli.theory.advice import Constants

if TYPE_CHECKING:
    from fco_cli.search.record import SearchRecord

SHOWN = 10  # settings of a search


def best_table(folders: list[Path]) -> Table | None:
    """Return the best configuration of each algorithm in a sweep, selected as in a report; None without records."""
    from fco_cli.reporting import choose, read_record, studies_of
    from fco_cli.studies.yuan2021 import SEARCH
    from fco_cli.typed_files import BadRecord

    records = []
    for folder in folders:
        with suppress(BadRecord):  # fco-report lists damaged records
            records.append(read_record(folder))
    studies = [study for study in studies_of(records) if study.name != SEARCH]
    if not studies:
        return None
    table = Table(title=f"best by {studies[0].rule}", title_justify="left", box=None, pad_edge=False)
    for heading in ("task", "algorithm", studies[0].rule.metric, "client lr", "server lr", "record"):
        right = heading not in ("task", "algorithm", "record")
        table.add_column(heading.replace("_", " "), justify="right" if right else "left", no_wrap=True)
    edge = False
    for study in studies:
        for choice in choose(study).values():
            if (best := choice.best) is not None:
                task = " ".join(filter(None, (best.runs[0].config["task"]["name"], study.variant)))
                rates = ["" if rate is None else f"{rate:g}" for rate in (best.client_lr, best.server_lr)]
                for i, name in enumerate(("client", "server")):
                    if any(name in edge_name for edge_name in choice.on_edge):
                        rates[i], edge = f"{rates[i]} †", True
                score = str(best.final(study.rule.metric, study.rule.last))
                table.add_row(task, choice.algo, score, *rates, escape_unprintable(str(best.runs[0].folder)))
    if edge:
        table.caption, table.caption_justify = (
            "† smallest or largest value tried: better ones may lie outside the grid",
            "left",
        )
    return table


def search_table(record: SearchRecord, folder_of: Callable[[list[str]], Path]) -> Table:
    """Return the best settings of a search, or those on the Pareto front of several metrics."""
    names = [objective.metric for objective in record.objectives]
    title = "; ".join(map(str, record.objectives))
    table = Table(title=f"best by {title}", title_justify="left", box=None, pad_edge=False)
    for heading in (*names, *(one.key for one in record.space.dimensions), "record"):
        right = heading != "record"
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for one in record.best[:SHOWN]:
        folder = escape_unprintable(str(folder_of(one.overrides[0])))
        table.add_row(*(f"{value:.6g}" for value in one.values), *map(escape_unprintable, one.point), folder)
    return table


def path_table(result: dict[str, Any]) -> Table:
    """Return the models chosen from a path, one per row."""
    headings = {"cv_loss": "cv loss", "cv_error": "standard error of cv loss"}
    columns = [result["dial"], "cv_loss", "cv_error", "nonzeros", "rank", "kkt", "rounds"]
    table = Table(box=None, pad_edge=False)
    table.add_column("chosen")
    shown = [column for column in columns if column in result["chosen"]["min"]]
    for column in shown:
        table.add_column(headings.get(column, column), justify="right")
    for name, one in result["chosen"].items():
        table.add_row(name, *(_number(one[column]) for column in shown))
    return table


def _number(value: float | None) -> str:
    """Return a number with four digits, a whole number with all digits."""
    return "not finite" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"


def path_lines(result: dict[str, Any]) -> list[str]:
    """Return the remarks on a path: its method, test metrics, convergence and stable features."""
    lines = []
    if "method" in result:  # older records lack the key
        lines.append(f"path: {result['method']} ({result['reason']}); {result['rounds']} rounds")
    if "weighting" in result:
        lines.append(f"weights: {OBJECTIVES[result['weighting']]} (hparams.weighting={result['weighting']})")
    if between := result.get("between_clients"):
        lines.append(f"warning: {warning_of_between_clients(between)}")
    for name, one in result["chosen"].items():
        areas = one.get("out_of_fold") or {}
        if "concordance" in areas:
            lines.append(f"{name}: concordance {areas['concordance']:.3f} out of fold, within clients (clients.csv)")
        elif areas:
            lines.append(
                f"{name}: AUC {areas['auc']:.3f} over all rows out of fold, which also compares rows of different "
                f"clients; {areas['auc_within']:.3f} within clients (clients.csv)"
            )
    for name, one in result["chosen"].items():
        if one["test"]:
            numbers = ", ".join(f"{key} {value:.4g}" for key, value in one["test"].items() if value is not None)
            lines.append(f"{name} on test rows: {numbers}")
    if result["at_the_end"]:
        lines.append("the last model of the path is the best: extend the path with a smaller path.ratio")
    if result["not_converged"]:
        lines.append(f"{result['not_converged']} models have not converged (path.csv): raise hparams.most_rounds")
    for name, one in result["chosen"].items():
        if not one.get("converged", True):  # older records lack the key
            lines.append(
                f"{name}: the refit has not converged to hparams.tolerance (KKT {one['kkt']:.1e} after {one['rounds']} "
                "rounds): raise hparams.most_rounds"
            )
    if stability := result["stability"]:
        names = result["features"] or [f"feature {i}" for i in range(len(stability["frequency"]))]
        stable = ", ".join(names[i] for i in stability["stable"]) or "none"
        lines.append(f"stable features (at most {stability['bound']:.2g} expected errors): {stable}")
    return lines


def theory_table(result: dict[str, Any]) -> Table:
    """Return the theoretical statements, one per row; slopes are measured / bound."""
    header, *body = result["table"]
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(header):
        table.add_column(title, justify="left" if i == 0 else "right")
    for row in body:
        table.add_row(*row)
    violated = ", ".join(f"{count} of {statement}" for statement, count in result["violated"].items())
    verdict = f"{result['cells']} cells, bound violated in {violated or 'none'}"
    errors = ", ".join(f"{name} {error:.1e}" for name, error in result["identity_error"].items())
    table.caption = f"{verdict}; error of the key identity: {errors}; {result['seconds']} s"
    return table


def advice_tables(constants: Constants, grid: list[float], chosen: float) -> list[Table]:
    """Return three tables: estimated constants, the theorems' step sizes with their limits, and the paper's grid."""
    estimates = Table(box=None, pad_edge=False, title="estimated from the data", title_justify="left")
    for column in ("constant", "value", "meaning"):
        estimates.add_column(column, justify="right" if column == "value" else "left")
    meanings = {
        "L": (constants.smoothness, "largest curvature of the loss on a batch"),
        "sigma": (constants.sigma, "largest standard deviation of a client's batch gradients"),
        "zeta": (constants.zeta, "largest distance of a client's gradient from the mean"),
        "G": (constants.gradient, "largest norm of a batch gradient"),
        "B": (constants.divergence, "D_h(w*, w_0), from the start to the pooled optimum"),
        "K": (constants.steps, "local steps"),
        "M": (constants.clients, "clients per round"),
        "R": (constants.rounds, "rounds"),
    }
    for name, (value, meaning) in meanings.items():
        estimates.add_row(name, f"{value:.4g}", meaning)

    advice = Table(box=None, pad_edge=False, title="recommended client_lr", title_justify="left")
    for column in ("by", "client_lr", "limited by"):
        advice.add_column(column, justify="right" if column == "client_lr" else "left")
    for theorem, limits in constants.recommended().items():
        reason = min(limits, key=lambda key: limits[key])
        advice.add_row(theorem, f"{limits[reason]:.2g}", reason)
    advice.add_row("largest stable, 2/L", f"{constants.largest_stable:.2g}", "larger steps overshoot on some batches")

    safe, stable = 1 / (4 * constants.smoothness), constants.largest_stable
    comparison = Table(box=None, pad_edge=False, title="the paper's grid, and this run", title_justify="left")
    comparison.add_column("client_lr", justify="right")
    comparison.add_column("range")
    for rate in sorted({*grid, chosen}):
        text = "covered by the theorems" if rate <= safe else "stable, above the theorems' 1/(4L)"
        text = text if rate <= stable else "above 2/L: may diverge"
        comparison.add_row(f"{rate:g}", text + (" (this run)" if rate == chosen else ""))
    return [estimates, advice, comparison]
