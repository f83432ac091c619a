"""The record of experiment=glm as a Python object, and its printed summary."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fco_cli.errors import UserError, as_python_errors, require
from fco_cli.problem.layout import Array
from fco_cli.reporting.coefficients import as_html, as_latex, as_text, cells, coefficient_lines, format_p, headings
from fco_cli.reporting.records.predictions import RecordedPredictions, client_sizes, predictions_of, read_predictions
from fco_cli.reporting.records.tables import Columns, read_table
from fco_cli.reporting.text import printable
from fco_cli.results import GlmResult, check_complete, read_result
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_arrays, read_bounded

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LARGEST_FILE = 1 << 30  # bytes
PICTURES = ("survival", "calibration")  # of a Cox model
CLIENTS = Columns(("client", "rows", "coefficient", "estimate", "error"), ("client", "coefficient"))
PERFORMANCE = Columns(("client", "rows"), ("client",))
DOUBTFUL = 0.05  # p-value of a term whose test of proportional hazards is printed
COVARIANCE_NAMES = {
    "model": "model-based",
    "hc0": "robust (HC0)",
    "hc1": "robust (HC1)",
    "cluster": "robust, clustered by client",
}


@dataclass(frozen=True)
class RecordedGlm:
    """Record of experiment=glm."""

    result: dict[str, Any]  # content of result.json
    folder: Path
    slug: str = ""

    @classmethod
    def read(cls, folder: str | Path) -> RecordedGlm:
        """Return the record in a folder; raise BadRecord if it is invalid."""
        folder = Path(folder)
        result = read_result(folder, GlmResult)
        check_complete(folder, GlmResult, result)
        return cls(result, folder, f"glm_{printable(result['task'])}")

    @property
    def performance(self) -> pd.DataFrame:
        """Metrics on the rows of the fit, of all clients and of every client; empty if there are none."""
        return self._table("performance")

    def predictions(self) -> RecordedPredictions | None:
        """Return the predictions of a logistic model on the rows of the fit; None without any."""
        table = read_predictions(self.folder / "predictions.csv")
        if table is None:
            return None
        lines = read_table(self.folder / "performance.csv", PERFORMANCE)
        sizes = client_sizes(lines["client"].tolist(), lines["rows"].tolist())
        return predictions_of(table, sizes, "", "on the rows of the fit")

    def checked_performance(self) -> pd.DataFrame:
        """Return `performance`; raise BadRecord if it is invalid."""
        import pandas as pd

        path = self.folder / "performance.csv"
        return read_table(path, PERFORMANCE) if path.exists() else pd.DataFrame()

    def client_lines(self) -> list[dict[str, Any]]:
        """Return the lines of clients.csv; none without a meta-analysis."""
        path = self.folder / "clients.csv"
        return read_table(path, CLIENTS).to_dict("records") if path.exists() else []  # type: ignore[return-value]

    def pictures(self) -> dict[str, bytes]:
        """Return the recorded figures of a Cox model as PNG files; raise BadRecord if one is damaged."""
        from PIL import Image

        contents = {}
        for name in PICTURES:
            if (path := self.folder / f"{name}.png").exists():
                contents[name] = read_bounded(path, 8 * MEBIBYTE)
                try:
                    Image.open(io.BytesIO(contents[name])).load()
                except Exception as problem:  # damaged images raise many kinds of exceptions
                    raise BadRecord(f"{name}.png: {printable(str(problem))}") from problem
        return contents

    @property
    def table(self) -> pd.DataFrame:
        """Coefficients with standard errors, tests, intervals and ratios, by name."""
        return _frame(self.result["coefficients"], "coefficient")

    @property
    def terms(self) -> pd.DataFrame:
        """Tests of the columns of the table, by name."""
        return _frame(self.result["terms"], "term")

    @property
    def meta(self) -> pd.DataFrame:
        """Pooled estimates of the clients, by coefficient; empty without a meta-analysis."""
        return _frame(self.result["meta"], "coefficient")

    @property
    def clients(self) -> pd.DataFrame:
        """Estimates of every client from its own rows; empty without a meta-analysis."""
        return self._table("clients")

    def _table(self, name: str) -> pd.DataFrame:
        """Return a table of the record; empty if there is none."""
        import pandas as pd

        path = self.folder / f"{name}.csv"
        return pd.read_csv(path) if path.is_file() else pd.DataFrame()

    @property
    def survival(self) -> pd.DataFrame:
        """Kaplan-Meier curve of every client; empty unless the loss is Cox's."""
        return self._table("survival")

    @property
    def baseline(self) -> pd.DataFrame:
        """Baseline cumulative hazard of every client; empty unless the loss is Cox's."""
        return self._table("baseline")

    @property
    def calibration(self) -> pd.DataFrame:
        """Predicted and observed risk until the horizon by group; empty without a horizon."""
        return self._table("calibration")

    @property
    def proportional_hazards(self) -> pd.DataFrame:
        """Score tests of proportional hazards by term; empty unless the loss is Cox's."""
        return _frame(self.result.get("proportional_hazards", []), "term")

    @property
    def concordance(self) -> pd.DataFrame:
        """Concordance of all clients and of every client; empty unless the loss is Cox's."""
        return _frame(self.result.get("concordance", []), "client")

    def covariance(self, kind: str | None = None) -> pd.DataFrame:
        """Return a covariance matrix of the coefficients; by default that of the table.

        `kind` is "model", "hc0", "hc1" or "cluster".
        """
        import pandas as pd

        matrix = self._arrays(kind or self.result["covariance"])[1]
        names = [line["coefficient"] for line in self.result["coefficients"]]
        return pd.DataFrame(matrix, index=names, columns=names)

    def _arrays(self, kind: str) -> tuple[Array, Array]:
        """Return the estimates [A] and a covariance matrix [A, A]."""
        with as_python_errors():
            require(kind in COVARIANCE_NAMES, "covariance", kind, "one of " + ", ".join(COVARIANCE_NAMES))
            arrays = read_arrays(self.folder / "covariance.npz", LARGEST_FILE)
            known = ", ".join(name for name in COVARIANCE_NAMES if name in arrays)
            require(kind in arrays, "covariance", kind, f"one of {known}: the record has no other matrix")
        return arrays["estimates"], arrays[kind]

    def with_covariance(self, kind: str) -> RecordedGlm:
        """Return the record with the table of another covariance matrix."""
        result = self.result
        estimates, matrix = self._arrays(kind)
        is_t = result["loss"] == "squared" and result["method"] == "wald" and kind == "model"
        degrees = result["rows"] - len(estimates) if is_t else None
        names = [line["coefficient"] for line in result["coefficients"]]
        lines = coefficient_lines(names, estimates, matrix, result["level"], degrees, result["loss"])
        return replace(self, result=result | {"coefficients": lines, "covariance": kind, "degrees": degrees})

    def summary(self, covariance: str | None = None) -> str:
        """Return the table as text; `covariance` replaces the covariance matrix."""
        record = self if covariance is None else self.with_covariance(covariance)
        return "\n".join(summary_lines(record.result))

    def forest(self, coefficients: list[str] | None = None) -> Figure:
        """Return the forest plot of coefficients; by default of those with the largest statistics."""
        from fco_cli.reporting.figures.forest import forest_figure

        with as_python_errors():
            if not self.result["meta"]:
                raise UserError("forest: the record has no meta-analysis: at least two clients need fits of their own")
            return forest_figure(self.result, self.client_lines(), coefficients)

    def coefficient_plot(self) -> Figure:
        """Return the plot of the coefficients with their intervals."""
        from fco_cli.reporting.figures.coefficients import coefficients_figure

        return coefficients_figure(self.result)

    @property
    def card(self) -> str:
        """Model card as Markdown."""
        return read_bounded(self.folder / "model_card.md", MEBIBYTE).decode()


def _frame(lines: list[dict[str, Any]], index: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(lines).set_index(index) if lines else pd.DataFrame()


def caption(result: dict[str, Any]) -> str:
    """Return the caption of the table of coefficients."""
    regression = {"squared": "Linear", "softmax": "Multinomial", "cox": "Cox"}.get(
        result["loss"], result["loss"].title()
    )
    how = "debiased lasso" if result["method"] == "debiased" else "maximum likelihood"
    count = f"{result['rows']:,} rows of {result['clients']:,} client{'s' if result['clients'] != 1 else ''}"
    return (
        f"{regression} regression of {result['task']} ({how}), {count}; {COVARIANCE_NAMES[result['covariance']]} errors"
    )


def summary_lines(result: dict[str, Any]) -> list[str]:
    """Return the lines of the printed summary."""
    lines = [caption(result)]
    if test := result["test"]:
        lines.append(f"all terms: {describe_test(test)}")
    measure = "residual sum of squares" if result["loss"] == "squared" else "-2 log likelihood"
    measure = "deviance" if result["loss"] == "poisson" else measure
    null = "" if result["method"] == "debiased" else f" (null model: {result['null_deviance']:.6g})"
    dispersion = f", residual variance {result['dispersion']:.6g}" if result["loss"] == "squared" else ""
    lines.append(f"{measure} {result['deviance']:.6g}{null}{dispersion}, {result['rounds']} rounds")
    lines += as_text(headings(result), [cells(line) for line in result["coefficients"]])
    if grouped := [line for line in result["terms"] if line["numerator"] > 1]:
        lines += [f"{line['term']}: {describe_test(line)}" for line in grouped]
    return [*lines, *survival_summary(result), *result["notes"]]


def survival_summary(result: dict[str, Any]) -> list[str]:
    """Return the lines about concordance and proportional hazards of a Cox model."""
    lines = []
    if (scores := result.get("concordance")) and scores[0]["concordance"] is not None:
        lines.append(
            f"concordance {scores[0]['concordance']:.4g} (std. error {scores[0]['error']:.2g}), within clients"
        )
    if tests := result.get("proportional_hazards"):
        low = [f"{line['term']} (p = {format_p(line['p'])})" for line in tests[:-1] if line["p"] < DOUBTFUL]
        last = tests[-1]
        text = f"chi-squared {last['statistic']:.4g} on {last['df']} df, p = {format_p(last['p'])}"
        lines.append(f"proportional hazards: {text}{'; below 0.05: ' if low else ''}{', '.join(low)}")
    return lines


def describe_test(test: dict[str, Any]) -> str:
    """Return a test in one line."""
    numerator, denominator, value = test["numerator"], test["denominator"], test["statistic"]
    p = format_p(test["p"])
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    if denominator is None:
        return f"likelihood ratio {value:.4g} on {numerator} df, {p}"
    return f"F = {value:.4g} on {numerator} and {denominator} df, {p}"


def coefficient_files(result: dict[str, Any]) -> dict[str, str]:
    """Return the table of coefficients as LaTeX and HTML files."""
    head, rows = headings(result), [cells(line) for line in result["coefficients"]]
    return {
        "coefficients.tex": as_latex(head, rows, caption(result)),
        "coefficients.html": as_html(head, rows, caption(result), result["notes"]),
    }
