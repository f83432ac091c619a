"""Records of experiment=glm.

config.yaml        the resolved configuration
coefficients.csv   a row per coefficient in the units of the table; .tex and .html: the same table, rounded
terms.csv          tests of the columns of the table, each with all its coefficients
covariance.npz     estimates [A] and the covariance matrices [A, A] of all kinds
clients.csv        estimates of every client from its own rows
meta.csv           pooled estimates of the clients
forest.png         clients, pooled and federated estimates of the coefficients with the largest statistics
coefficients.png   estimates with intervals, per standard deviation of the columns of numbers
performance.csv, predictions.csv  on the rows of the fit (performance.py)
model_card.md      what the record states of TRIPOD+AI's items (model_card.py)
linear_model.*     the model for fco-predict, as in the record of a run; maximum likelihood only
survival.csv, ...  of a Cox model (survival_record.py)
result.json        written last; lists all files above
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fco_cli.config import GlmRun
from fco_cli.data.fitted import LinearModel
from fco_cli.data.format import format_list
from fco_cli.errors import UserError, require
from fco_cli.files import write_atomically
from fco_cli.inference.estimate import Estimates, estimate
from fco_cli.inference.meta import MetaAnalysis, meta_analysis
from fco_cli.inference.performance import ON_FIT, Performance
from fco_cli.inference.sums import SumOptions
from fco_cli.inference.survival_record import SurvivalAnalysis
from fco_cli.model_card import Line, as_markdown, card_lines
from fco_cli.path.record import as_npz, csv_of_lines, without_nonfinite
from fco_cli.path.select import limited_threads, number_of_events
from fco_cli.path.solve import problem_for
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.problem import Problem
from fco_cli.reporting.coefficients import coefficient_lines
from fco_cli.reporting.figures.coefficients import coefficients_png
from fco_cli.reporting.figures.forest import forest_png
from fco_cli.reporting.records.glm import COVARIANCE_NAMES, caption, coefficient_files
from fco_cli.results import GlmResult, listed_files
from fco_cli.simulation.clients import retry_after_losses
from fco_cli.simulation.process import Stop, Stopwatch, software
from fco_cli.simulation.record import Record
from fco_cli.tasks.base import Task
from fco_cli.tasks.model_terms import ModelTerms
from fco_cli.tasks.tabular import Tabular

log = logging.getLogger(__name__)
EQUAL_WEIGHTS = "every row counts once (weighting: examples)"
FEW_CLIENTS = 30  # cluster-robust standard errors are too small with fewer


def run_glm(run: GlmRun, stop: Stop) -> dict[str, Any]:
    """Return the result of experiment=glm, from its record if it is complete."""
    record = Record(run.folder)
    if not run.force and (result := record.result(GlmResult)):
        log.info("already done (force=true runs it again)")
        return result
    check_method(run)
    log.info("%s: inference with regularizer %s", run.task.name, run.regularizer.name)
    with limited_threads(run.threads):
        watch, settings = Stopwatch(), run.glm

        def retry(work: Callable[[], Any]) -> Any:
            return retry_after_losses(work, stop)

        data = retry(lambda: for_inference(run).data(run.seed, run.hparams.dtype))
        problem = problem_for(run, data)
        _check_hessians(problem)
        with_clients = not run.federation.masked or settings.covariance == "cluster"
        sums = SumOptions(run.hparams.fraction_bits, settings.robust, settings.robust and with_clients, retry)
        options: dict[str, Any] = {"drop": settings.drop, "on_round": stop.check}
        estimates = estimate(problem, with_tests=settings.tests, options=sums, **options)
        has_meta = settings.meta and not estimates.is_debiased and _why_no_meta(problem) is None
        meta = meta_analysis(problem, estimates, settings.level, retry=retry, **options) if has_meta else None
        survival = SurvivalAnalysis.of(problem, estimates, settings, run.hparams.fraction_bits, retry)
        performance = Performance.of(problem, estimates)
        with record.lock(wait=True):  # a second command waits and then reads the result
            if run.force:
                (run.folder / "result.json").unlink(missing_ok=True)
            elif result := record.result(GlmResult):
                return result
            record.save_config(run.yaml)
            return _write(run, problem, estimates, meta, survival, performance, watch.lap())


def for_inference(run: GlmRun) -> Task:
    """Return the task without validation rows, with its offset as a feature."""
    if isinstance(run.task, ModelTerms):
        return run.task.for_inference(run.glm.exposure)
    require(run.glm.exposure is None, "glm.exposure", run.glm.exposure, "null for a task without a table")
    return run.task.cross_validated()


def check_method(run: GlmRun) -> None:
    """Raise UserError if the standard errors of the method would not hold."""
    psi, method = run.regularizer.name, run.glm.method
    if method == "wald" and psi != "none":
        raise UserError(
            f"glm.method: got wald, must be debiased with regularizer={psi}, since Wald tests of features that the "
            "same rows have selected reject too often; or use regularizer=none with features that were chosen before"
        )
    allowed = "wald with regularizer=none: unpenalized estimates are not debiased; or regularizer=l1"
    require(method != "debiased" or psi != "none", "glm.method", method, allowed)
    if run.is_remote:
        allowed = "an experiment without standard errors, which need exact sums: federation.evaluation_noise is set"
        require(not run.has_noise, "experiment", "glm", allowed)
        least = getattr(run.federation, "min_sites", None)
        allowed = "null with experiment=glm: estimates need the rows of all sites"
        require(least is None, "federation.min_sites", least, allowed)
    balanced = getattr(run.task, "class_weight", None)
    allowed = "null with experiment=glm: standard errors do not hold for reweighted classes"
    require(balanced is None, "task.class_weight", balanced, allowed)


def _check_hessians(problem: Problem) -> None:
    """Raise UserError if a site refuses Hessians of that many parameters."""
    size = problem.layout.size
    if isinstance(problem.data, RemoteRows) and (reason := problem.data.why_no_hessian(size)):
        raise UserError(f"experiment: got glm, which needs Hessians, but {reason}; drop columns at the sites")


def _why_no_meta(problem: Problem) -> str | None:
    """Return the reason for which fewer than two clients have fits of their own; None if two have."""
    data = problem.data
    if data.clients < 2:
        return "there is one client"
    reasons = [data.why_no_estimates(m) for m in range(data.clients)] if isinstance(data, RemoteRows) else []
    known = [reason for reason in reasons if reason is not None]
    return known[0] if known and data.clients - len(known) < 2 else None


def _write(
    run: GlmRun,
    problem: Problem,
    estimates: Estimates,
    meta: MetaAnalysis | None,
    survival: SurvivalAnalysis | None,
    performance: Performance,
    seconds: float,
) -> dict[str, Any]:
    """Write all files, `result.json` last, and return the result."""
    folder, result = run.folder, _result(run, problem, estimates, meta, seconds)
    if survival is not None:
        result = result | survival.result | {"notes": result["notes"] + survival.notes}
        survival.write(folder)
    result["card"] = _card(run, problem, estimates, performance, result)
    result = without_nonfinite(result)
    performance.write(folder)
    title = caption(result)
    write_atomically(folder / "model_card.md", as_markdown(result["card"], title).encode())
    write_atomically(folder / "coefficients.png", coefficients_png(result))
    write_atomically(folder / "coefficients.csv", csv_of_lines(result["coefficients"]))
    for name, text in coefficient_files(result).items():
        write_atomically(folder / name, text.encode())
    if result["terms"]:
        write_atomically(folder / "terms.csv", csv_of_lines(result["terms"]))
    matrices = {kind: estimates.covariance(kind) for kind in estimates.kinds}
    arrays = {"estimates": estimates.coefficients, **matrices}
    write_atomically(folder / "covariance.npz", as_npz(arrays))
    if meta is not None and meta.clients:
        write_atomically(folder / "clients.csv", csv_of_lines(meta.client_lines()))
    if meta is not None and meta.pooled:
        write_atomically(folder / "meta.csv", csv_of_lines(result["meta"]))
        write_atomically(folder / "forest.png", forest_png(result, meta.client_lines()))
    if not estimates.is_debiased:
        model = estimates.design.start.copy()
        model[estimates.design.columns] = estimates.weights
        run.task.export(problem, model, folder)
    text = json.dumps(result | {"files": listed_files(folder)}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "result.json", text.encode())
    return json.loads(text)


def _result(
    run: GlmRun, problem: Problem, estimates: Estimates, meta: MetaAnalysis | None, seconds: float
) -> dict[str, Any]:
    settings, design, kind = run.glm, estimates.design, run.glm.covariance
    degrees = estimates.degrees(kind)
    lines = coefficient_lines(
        design.names, estimates.coefficients, estimates.covariance(kind), settings.level, degrees, estimates.loss
    )
    terms = [{"term": name, **test._asdict()} for name, test in estimates.term_tests.items()]
    return {
        "status": "finished",
        "kind": "glm",
        "run_id": run.run_id,
        "identity": asdict(run.identity),
        "task": run.task.name,
        "loss": estimates.loss,
        "regularizer": run.regularizer.name,
        "strength": getattr(run.regularizer, "strength", None),
        "method": "debiased" if estimates.is_debiased else "wald",
        "covariance": kind,
        "level": settings.level,
        "degrees": degrees,
        "weighting": problem.weighting,
        "rows": estimates.rows,
        "clients": estimates.clients,
        "rounds": estimates.rounds,
        "dispersion": estimates.dispersion,
        "deviance": estimates.deviance,
        "null_deviance": estimates.null_deviance,
        "test": None if estimates.test is None else estimates.test._asdict(),
        "coefficients": lines,
        "units": _plot_units(problem, design.names),
        "terms": terms,
        "selected": estimates.selected,
        "meta": [] if meta is None else meta.pooled_lines(),
        "clients_without_fit": {} if meta is None else meta.without,
        "notes": _notes(run, problem, estimates, meta),
        "seed": run.seed,
        "seconds": round(seconds, 3),
        **software(run.plugins),
    }


def _plot_units(problem: Problem, names: list[str]) -> dict[str, float]:
    """Return the units of the plot of coefficients: standard deviations of numbers other than codes of two categories.

    Zeros and ones have the variance mean (1 - mean), at least half of it if up to half of them are filled by the mean.
    Other neighboring whole numbers, such as 1 and 2, are known by their variance if no value is missing.
    """
    description = problem.description
    preparation = description.preparation if isinstance(description, LinearModel) else None
    if preparation is None or not preparation.mean or preparation.terms:
        return {}
    units = {}
    for name, mean, scale in zip(preparation.features, preparation.mean, preparation.scale, strict=True):
        largest = mean * (1 - mean)
        share = mean % 1
        is_indicator = largest / 2 <= scale**2 <= largest * (1 + 1e-9)
        is_indicator |= math.isclose(scale**2, share - share**2, rel_tol=1e-9)
        if name in names and name in preparation.columns and not is_indicator:
            units[name] = float(scale)
    return units


def _card(
    run: GlmRun, problem: Problem, estimates: Estimates, performance: Performance, result: dict[str, Any]
) -> list[Line]:
    """Return the lines of the model card."""
    description = problem.description
    preparation = description.preparation if isinstance(description, LinearModel) else None
    columns = run.task.columns if isinstance(run.task, Tabular) else None
    estimation = "debiased lasso" if estimates.is_debiased else "maximum likelihood, from sums over the clients"
    method = [("estimation", estimation), ("penalty", run.regularizer.name)]
    method.append(
        ("standard errors", f"{COVARIANCE_NAMES[result['covariance']]}, {100 * result['level']:g} % intervals")
    )
    if run.glm.drop:
        method.append(("left out", format_list(run.glm.drop, 50)))
    method += [("remark", note) for note in result["notes"] if note != EQUAL_WEIGHTS]
    not_done = ["Validation on rows that were not used in the fit: see experiment=path, and held-out rows of a run."]
    if not performance.metrics and not isinstance(problem.loss, Cox):
        not_done.append("Performance: rows at sites are not predicted, and debiased estimates are no prediction model.")
    if not result["meta"]:
        not_done.append("Heterogeneity between clients: there is no meta-analysis.")
    if not (isinstance(run.task, ModelTerms) and run.task.formula):
        not_done.append("Non-linear effects and interactions: columns enter linearly (task.formula).")
    lines = [{**line, "how": ON_FIT} for line in performance.metrics]
    lines += [{**line, "how": ON_FIT} for line in result.get("concordance", []) if line.get("rows") is not None]
    parameters = len(estimates.design.names) - len(estimates.design.intercepts)
    events = number_of_events(problem.data) if problem.loss.censored_labels else None
    return card_lines(run.resolved, result, columns, preparation, lines, parameters, method, not_done, events)


def _notes(run: GlmRun, problem: Problem, estimates: Estimates, meta: MetaAnalysis | None) -> list[str]:
    """Return remarks on the estimates."""
    design, notes = estimates.design, [EQUAL_WEIGHTS]
    if problem.data.row_weights is not None:
        notes = ["rows count by their weights, scaled to mean 1; with sampling weights use glm.covariance=hc1"]
    if design.references:
        notes.append(f"reference categories: {', '.join(design.references)}")
    if design.constant:
        notes.append(f"left out, since constant: {', '.join(design.constant)}")
    if isinstance(problem.loss, Cox):
        method = f"{problem.loss.ties.title()}'s method"
        notes.append(f"stratified by client: every client has its own baseline hazard; ties by {method}")
    if run.glm.covariance == "cluster" and estimates.clients < FEW_CLIENTS:
        notes.append(f"{estimates.clients} clients are few: cluster-robust standard errors are too small")
    if estimates.is_debiased:
        notes.append(
            f"debiased lasso: {len(estimates.selected)} of {len(design.names)} weights non-zero before debiasing"
        )
    if run.glm.meta and not estimates.is_debiased and estimates.clients > 1 and (reason := _why_no_meta(problem)):
        notes.append(f"no meta-analysis (glm.meta=false): {reason}")
    if meta is not None and meta.without:
        names = ", ".join(list(meta.without)[:10]) + (", ..." if len(meta.without) > 10 else "")
        notes.append(f"{len(meta.without)} of {estimates.clients} clients have no fit of their own: {names}")
    return notes
