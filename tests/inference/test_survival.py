"""Cox models, curves, concordance and the test of proportional hazards, compared with R's survival."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fco_cli.inference.estimate import estimate
from fco_cli.inference.survival_checks import concordance_lines, proportional_hazards_lines
from fco_cli.inference.survival_curves import FittedCox, kaplan_meier
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses.survival import TIES, Cox
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.risk_sets import coarse_times, coarse_times_until, hazard_steps, risk_table

PROGRAM = r"""
suppressMessages(library(survival))
tables <- list(
  lung = with(na.omit(lung[, c("inst", "time", "status", "age", "sex", "ph.ecog")]),
              data.frame(client = inst, time = time, event = as.numeric(status == 2), a = age, b = sex, c = ph.ecog)),
  veteran = with(veteran, data.frame(client = as.numeric(celltype), time = time, event = status, a = karno, b = age,
                                     c = trt)))
d <- tables[[TABLE]]
d <- d[order(d$client), ]
out <- list(client = d$client, time = d$time, event = d$event, x = as.matrix(d[, c("a", "b", "c")]))
tight <- coxph.control(eps = 1e-14, iter.max = 100)
for (ties in c("breslow", "efron")) {
  fit <- coxph(Surv(time, event) ~ a + b + c + strata(client), d, ties = ties, control = tight, x = TRUE)
  robust <- coxph(Surv(time, event) ~ a + b + c + strata(client), d, ties = ties, control = tight, robust = TRUE)
  group <- coxph(Surv(time, event) ~ a + b + c + strata(client), d, ties = ties, control = tight, cluster = client)
  base <- basehaz(fit, centered = FALSE)
  score <- concordance(fit)
  zph <- lapply(c(km = "km", identity = "identity", rank = "rank", log = "log"),
                function(g) unname(cox.zph(fit, transform = g)$table[, 1]))
  out[[ties]] <- list(coef = unname(coef(fit)), var = unname(vcov(fit)), robust = unname(robust$var),
                      cluster = unname(group$var), loglik = fit$loglik, hazard = base$hazard, time = base$time,
                      concordance = unname(score$concordance), error = unname(sqrt(score$var)), zph = zph)
}
km <- survfit(Surv(time, event) ~ client, d, conf.type = "log-log")
out$km <- list(time = km$time, at_risk = km$n.risk, events = km$n.event, survival = km$surv,
               error = km$surv * km$std.err, low = km$lower, high = km$upper)
options(digits = 17)
flat <- function(v) {
  if (is.list(v)) return(paste0("{", paste0("\"", names(v), "\":", sapply(v, flat), collapse = ","), "}"))
  texts <- ifelse(is.finite(v), format(as.vector(v), digits = 17, trim = TRUE), "null")
  paste0("[", paste(texts, collapse = ","), "]")
}
cat(flat(out))
"""


@cache
def from_r(table: str) -> dict:
    """Return the rows of a table of R's survival and the results of R."""
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed")
    program = PROGRAM.replace("TABLE", f'"{table}"')
    done = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, timeout=60, check=False)
    if "there is no package called" in done.stderr:
        pytest.skip("R's survival is not installed")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers(values) -> np.ndarray:
    return np.array(values, dtype=float)


def problem_of(x, y, client, ties="efron") -> Problem:
    sizes = np.unique(client, return_counts=True)[1]
    data = ClientData(x, y, np.append(0, np.cumsum(sizes)))
    names = [f"{name:g}" for name in np.unique(client)]
    task = TaskData(data, Linear(x.shape[1]), Cox(ties), clients=names, features=("a", "b", "c"))
    return task.to_problem(all_regularizers()["none"](), weighting="examples")


def r_problem(theirs: dict, ties: str) -> Problem:
    x = numbers(theirs["x"]).reshape(3, -1).T
    times, events = numbers(theirs["time"]), numbers(theirs["event"])
    return problem_of(np.ascontiguousarray(x), np.where(events > 0, times, -times), numbers(theirs["client"]), ties)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("table", ["veteran", pytest.param("lung", marks=pytest.mark.ci)])
def test_r(table, ties):
    theirs = from_r(table)
    problem, own = r_problem(theirs, ties), theirs[ties]
    ours = estimate(problem)
    np.testing.assert_allclose(ours.coefficients, own["coef"], rtol=1e-8)
    for kind, name in (("model", "var"), ("hc0", "robust"), ("cluster", "cluster")):
        np.testing.assert_allclose(ours.covariance(kind).ravel(), own[name], rtol=1e-8, atol=1e-14)
    assert -ours.deviance / 2 == pytest.approx(own["loglik"][1], rel=1e-10)
    assert -ours.null_deviance / 2 == pytest.approx(own["loglik"][0], rel=1e-10)
    model = FittedCox(problem, ours)
    lines = model.baseline_lines()
    np.testing.assert_array_equal([line["time"] for line in lines], own["time"])
    np.testing.assert_allclose([line["cumulative_hazard"] for line in lines], own["hazard"], rtol=1e-10)
    first = concordance_lines(model)[0]
    assert first["concordance"] == pytest.approx(own["concordance"][0], rel=1e-12)
    assert first["error"] == pytest.approx(own["error"][0], rel=1e-10)
    for transform, statistics in own["zph"].items():
        tests = proportional_hazards_lines(model, transform)
        np.testing.assert_allclose([line["statistic"] for line in tests], statistics, rtol=1e-8)
        assert [line["term"] for line in tests] == ["a", "b", "c", "all terms"]
        assert tests[-1]["df"] == 3


@pytest.mark.parametrize("table", ["lung", "veteran"])
def test_kaplan_meier_of_r(table):
    theirs = from_r(table)
    problem = r_problem(theirs, "breslow")
    lines = FittedCox(problem, estimate(problem)).survival_lines(0.95)
    for name, values in theirs["km"].items():
        ours = numbers([line[name] for line in lines])
        np.testing.assert_allclose(ours, numbers(values), rtol=1e-10, atol=1e-14, err_msg=name)


def random_rows(rows: int = 240, seed: int = 0):
    random = np.random.default_rng(seed)
    x, client = random.standard_normal((rows, 3)), np.sort(random.integers(0, 4, rows)).astype(float)
    times = np.ceil(6 * random.exponential(np.exp(-0.5 * x[:, 0]))) / 6
    return x, np.where(random.random(rows) < 0.7, times, -times), client


def test_statsmodels():
    """Compare Efron's method with another implementation, also on machines without R."""
    PHReg = pytest.importorskip("statsmodels.api").PHReg
    x, y, client = random_rows()
    ours = estimate(problem_of(x, y, client))
    theirs = PHReg(np.abs(y), x, y > 0, ties="efron", strata=client.astype(int)).fit()
    np.testing.assert_allclose(ours.coefficients, theirs.params, rtol=1e-5)  # the limit of their optimizer
    np.testing.assert_allclose(np.sqrt(np.diag(ours.covariance("model"))), theirs.bse, rtol=1e-5)


def test_curves_by_definition():
    y = np.array([3.0, 1, -1, 2, 2, -4])
    table = risk_table(y)
    np.testing.assert_array_equal(table.at_risk, [6, 4, 2, 1])
    np.testing.assert_array_equal(table.events, [1, 2, 1, 0])
    curve = kaplan_meier(table, 0.95)
    np.testing.assert_allclose(curve.survival, np.cumprod([5 / 6, 2 / 4, 1 / 2, 1]))
    assert curve.error[0] == pytest.approx(np.sqrt(5 / 6 * 1 / 6 / 6))  # a binomial proportion
    assert hazard_steps(table, "efron")[1] == pytest.approx(1 / 4 + 1 / 3)
    assert hazard_steps(table, "breslow")[1] == pytest.approx(2 / 4)


@pytest.mark.parametrize("minimum", [2, 5, 10, 20])
@pytest.mark.parametrize("seed", range(4))
def test_coarse_times_have_large_cells(minimum, seed):
    _, y, _ = random_rows(150, seed)
    coarse = coarse_times(y, minimum)
    assert coarse is not None
    np.testing.assert_array_equal(np.sign(coarse), np.sign(y))
    assert (np.abs(coarse) >= np.abs(y)).all()
    table = risk_table(coarse)
    assert (table.events >= minimum).all()
    assert ((table.censored == 0) | (table.censored >= minimum)).all()
    order = np.argsort(np.abs(y), kind="stable")
    assert (np.diff(np.abs(coarse)[order]) >= 0).all()
    exact, rough = kaplan_meier(risk_table(y), 0.95), kaplan_meier(table, 0.95)
    for time, survival in zip(table.times, rough.survival, strict=True):
        own = exact.survival[np.searchsorted(risk_table(y).times, time, side="right") - 1]
        assert survival >= own - 1e-12  # censored rows stay at risk until the end of their interval


@pytest.mark.parametrize("minimum", [2, 10])
def test_coarse_times_end_at_the_horizon(minimum):
    """The number of events until the horizon does not change; later rows have one time."""
    _, y, _ = random_rows(150)
    for horizon in (0.5, 1.0, 2.0):
        coarse = coarse_times_until(y, minimum, horizon)
        early = np.abs(y) <= horizon
        np.testing.assert_array_equal(np.abs(coarse) <= horizon, early)
        assert (np.abs(coarse)[early] >= np.abs(y)[early] - 1e-12).all()
        assert np.abs(coarse)[early].max() == horizon
        np.testing.assert_array_equal(np.sign(coarse)[early], np.sign(y)[early])
        table = risk_table(coarse[early])
        assert (table.events >= minimum).all()
    assert coarse_times_until(y, minimum, 1e-9) is None
    assert coarse_times_until(y, minimum, np.sort(np.abs(y))[-minimum]) is None  # minimum - 1 later rows
    assert coarse_times_until(y, 1, 0.5) is y


def test_few_rows_have_no_coarse_times():
    assert coarse_times(np.array([1.0, 2, 3, -4]), 5) is None
    assert coarse_times(np.append(np.arange(1.0, 30), -40), 5) is None  # one censored row
    y = np.array([1.0, -2])
    assert coarse_times(y, 1) is y


def test_calibration():
    """Groups hold all rows; with a true model, the observed risks lie near the predicted ones."""
    random = np.random.default_rng(1)
    x, client = random.standard_normal((4000, 3)), np.sort(random.integers(0, 2, 4000)).astype(float)
    times = random.exponential(np.exp(-x[:, 0] - 0.3 * client))
    limits = random.exponential(3, 4000)
    problem = problem_of(x, np.where(times < limits, times, -limits), client)
    everything = FittedCox(problem, estimate(problem)).calibration_lines(0.7, 0.99)
    by_client = [[line for line in everything if line["client"] == name] for name in ("all clients", "0", "1")]
    lines = by_client[0]
    for own in by_client:
        assert [line["group"] for line in own] == list(range(1, 11))
    assert sum(line["rows"] for line in lines) == 4000 == sum(line["rows"] for own in by_client[1:] for line in own)
    assert sum(line["events"] for line in lines) == sum(line["events"] for own in by_client[1:] for line in own)
    predicted = [line["predicted"] for line in lines]
    assert predicted == sorted(predicted)
    assert all(line["low"] < line["predicted"] < line["high"] for line in lines)
    truth = 1 - np.exp(-0.7 * np.exp(x[:, 0] + 0.3 * client))
    assert np.mean(predicted) == pytest.approx(truth.mean(), abs=0.02)


def test_a_violation_of_proportional_hazards_is_detected():
    """The effect of the first feature reverses; that of the second does not change."""
    random = np.random.default_rng(2)
    x, client = random.standard_normal((600, 3)), np.repeat([0.0, 1], 300)
    early = random.exponential(np.exp(-1.5 * x[:, 0]))
    times = np.where(early < 0.5, early, 0.5 + random.exponential(np.exp(1.5 * x[:, 0])))
    problem = problem_of(x, times, client)
    first, second, _, everything = proportional_hazards_lines(FittedCox(problem, estimate(problem)), "km")
    assert first["p"] < 1e-6
    assert everything["p"] < 1e-6
    assert second["p"] > 0.001


def test_sparse_rows_give_the_same_tests():
    from scipy.sparse import csr_matrix

    from fco_cli.problem.data import SparseRows
    from fco_cli.problem.models.linear import SparseLinear

    x, y, client = random_rows()
    problem = problem_of(x, y, client)
    own = csr_matrix(x)
    sparse = SparseRows(own.data, own.indices.astype(np.int64), own.indptr.astype(np.int64), 3)
    other = replace(problem, training=replace(problem.training, x=sparse), model=SparseLinear(3))
    one, two = (proportional_hazards_lines(FittedCox(each, estimate(each)), "rank") for each in (problem, other))
    np.testing.assert_allclose([line["statistic"] for line in one], [line["statistic"] for line in two], rtol=1e-9)
