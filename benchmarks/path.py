"""Regularization paths with cross-validation against other software: `python -m benchmarks.path [FOLDER] [SHAPES]`.

Three tables: the published heart disease (from FOLDER/heart_disease), 5,875 rows of 42 clients with 19 features whose
correlations reach 0.99999998, and 72 rows of four clients with 7,129 features. All solve 100 strengths and 10 folds of
the same prepared rows, folds and weights, in turns in one script; numbers are processor seconds, the least of two, and
largest KKT residuals relative to the strength. glmnet and adelie run with default tolerances and with smaller ones.
glmnet needs Rscript with the package glmnet, adelie and skglm need an interpreter that has them (PEERS=python;
PEER_NAMES=adelie for one of them).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.cases import REAL_DATA
from fco_cli.config import PathRun
from fco_cli.config.compose import compose
from fco_cli.path.method import solve_fits
from fco_cli.path.select import Selector, limited_threads, select
from fco_cli.problem.layout import Array, stack_numbers
from fco_cli.problem.problem import TaskData

TURNS = 2
ACCURATE_GLMNET, ACCURATE_ADELIE = "glmnet, thresh=1e-16", "adelie, tol=1e-18"
LOOSE = 3e-3  # tolerance with KKT residuals like those of glmnet and adelie with default tolerances
GLMNET = """
suppressMessages(library(glmnet))
folder <- commandArgs(TRUE)[1]
read <- function(name, rows) matrix(readBin(file.path(folder, name), "double", 1e9), nrow=rows, byrow=TRUE)
n <- length(readBin(file.path(folder, "y"), "double", 1e9))
x <- read("x", n); y <- read("y", n)[,1]; w <- read("w", n)[,1]; fold <- read("fold", n)[,1] + 1
lambda <- readBin(file.path(folder, "lambda"), "double", 1e9)
family <- readLines(file.path(folder, "family"))
thresh <- as.numeric(commandArgs(TRUE)[2])
result <- commandArgs(TRUE)[3]
if (family == "binomial") y <- factor(y)
glmnet.control(fdev=0, devmax=1)
t <- system.time(m <- cv.glmnet(x, y, family=family, lambda=lambda, weights=w, foldid=fold, standardize=FALSE,
    thresh=thresh, maxit=1e7))
weights <- as.matrix(coef(m$glmnet.fit, s=lambda))
writeBin(as.vector(weights[c(2:nrow(weights), 1),]), file.path(folder, result))
cat(t[["user.self"]] + t[["sys.self"]], "\\n")
"""
PEER = """
import sys, time, warnings, json
import numpy as np
warnings.simplefilter("ignore")
folder, name, result, options = sys.argv[1:5]
y, w, fold, lam = (np.fromfile(f"{folder}/{one}") for one in ("y", "w", "fold", "lambda"))
x = np.asfortranarray(np.fromfile(f"{folder}/x").reshape(len(y), -1))
family = open(f"{folder}/family").read().strip()
def path(rows):
    if name == "adelie":
        import adelie as ad
        weights = w[rows] / w[rows].sum()
        kind = ad.glm.binomial if family == "binomial" else ad.glm.gaussian
        glm = kind(y[rows], weights=weights)
        m = ad.grpnet(
            np.asfortranarray(x[rows]), glm, lmda_path=lam, progress_bar=False, early_exit=False, n_threads=1,
            **json.loads(options)
        )
        return np.column_stack([m.betas.toarray(), m.intercepts])
    else:
        from skglm.datafits import Logistic, WeightedQuadratic
        from skglm.penalties import L1
        from skglm.solvers import AndersonCD, ProxNewton
        from skglm import GeneralizedLinearEstimator
        model, models = None, []
        for one in lam:
            if family == "binomial":
                fit = GeneralizedLinearEstimator(Logistic(), L1(one), ProxNewton(warm_start=True))
            else:
                fit = GeneralizedLinearEstimator(WeightedQuadratic(w[rows]), L1(one), AndersonCD(warm_start=True))
            if model is not None:
                fit.coef_, fit.intercept_ = model.coef_, model.intercept_
            model = fit.fit(x[rows], 2 * y[rows] - 1 if family == "binomial" else y[rows])
            models.append(np.append(model.coef_.ravel(), model.intercept_))
        return np.array(models)
times = []
for _ in range(2):
    start = time.process_time()
    for k in range(-1, int(fold.max()) + 1):
        models = path(fold != k)
        if k == -1:
            models.astype(float).tofile(f"{folder}/{result}")
    times.append(time.process_time() - start)
print(min(times))
"""


def correlated_table(folder: Path) -> list[str]:
    """Write 5,875 rows of 42 clients with 19 features in groups of nearly equal ones; return the overrides."""
    random = np.random.default_rng(0)
    base = random.standard_normal((5875, 6))
    x = base[:, np.arange(19) % 6] + random.standard_normal((5875, 19)) * np.where(np.arange(19) < 6, 0.3, 2e-4)
    x[:, 6:12] = x[:, :6] + 2e-4 * random.standard_normal((5875, 6))
    client = np.sort(random.integers(42, size=5875))
    y = x[:, 0] - 0.7 * x[:, 7] + 0.5 * x[:, 14] + 0.1 * client / 42 + random.standard_normal(5875)
    return _written(folder / "correlated.csv", x, y, client)


def wide_table(folder: Path) -> list[str]:
    """Write 72 rows of four clients with 7,129 features, 40 of them informative; return the overrides."""
    random = np.random.default_rng(1)
    x = 0.6 * random.standard_normal((72, 200))[:, np.arange(7129) % 200] + 0.8 * random.standard_normal((72, 7129))
    y = (x[:, :40] @ random.standard_normal(40) + 2 * random.standard_normal(72) > 0).astype(int)
    return _written(folder / "wide.csv", x, y, np.arange(72) % 4)


def _written(path: Path, x: Array, y: Array, client: Array) -> list[str]:
    header = ",".join([*(f"x{k}" for k in range(x.shape[1])), "y", "client"])
    np.savetxt(path, np.column_stack([x, y, client]), "%.17g", ",", header=header, comments="")
    return ["task=custom", f"task.path={path}", "task.client=client", "task.label=y"]


def write_rows(run: PathRun, folder: Path) -> Selector:
    """Write the prepared rows, weights, folds and strengths for other software."""
    selector = Selector(run, run.path, lambda: None)
    data, problem = selector.data.training, selector.problem
    is_binary = problem.loss.name == "logistic"
    fold = np.zeros(len(data.y))
    for k, held_out in enumerate(selector.deal):
        fold[held_out.rows(data)] = k
    weights = np.repeat(problem.weights / data.sizes, data.sizes) * len(data.y)
    strengths = selector.values if is_binary else selector.values / 2
    for name, array in {"x": data.x, "y": data.y, "w": weights, "fold": fold, "lambda": strengths}.items():
        np.ascontiguousarray(array, dtype=float).tofile(folder / name)
    (folder / "family").write_text("binomial\n" if is_binary else "gaussian\n")
    return selector


def ours(run: PathRun) -> Callable[[], float]:
    def measure() -> float:
        start = time.process_time()
        select(run, run.path, lambda: None)
        return time.process_time() - start

    return measure


def solutions_of(run: PathRun, selector: Selector, fits: list[TaskData], tolerance: float) -> Callable[[], float]:
    """Measure the solutions of all fits, whose rows are prepared, as those of other software are."""

    def measure() -> float:
        start = time.process_time()
        with limited_threads(1):
            solve_fits(run, selector.method, fits, selector.values, tolerance, lambda: None)
        return time.process_time() - start

    return measure


def command(*words: str) -> Callable[[], float]:
    def measure() -> float:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return float(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else float("nan")

    return measure


def scikit_learn(folder: Path) -> Callable[[], float]:
    from sklearn.linear_model import LassoCV, LogisticRegressionCV

    y, w, fold, strengths = (np.fromfile(folder / name) for name in ("y", "w", "fold", "lambda"))
    x = np.fromfile(folder / "x").reshape(len(y), -1)
    cv = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(int(fold.max()) + 1)]

    def measure() -> float:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (folder / "family").read_text().strip() == "binomial":
                model = LogisticRegressionCV(
                    Cs=1 / (strengths * len(y)), cv=cv, l1_ratios=[1.0], solver="liblinear", scoring="neg_log_loss"
                )
                model.fit(x, y, sample_weight=w)
            else:
                LassoCV(alphas=strengths, cv=cv).fit(x, y, sample_weight=w)
        return time.process_time() - start

    return measure


def agreement(run: PathRun, selector: Selector, folder: Path) -> str:
    """Return the largest KKT residual and difference of our weights from glmnet's at its smallest tolerance."""
    made = select(run, run.path, lambda: None)
    models, numbers = made.path.models, stack_numbers([replace(run.regularizer, strength=v) for v in made.values])
    kkt = selector.problem.kkt_residual(models, selector.problem.risk(models).gradient, numbers) / made.values
    rounds = max(int(one.rounds.max()) for one in (made.path, *(fold.solutions for fold in made.folds)))
    text = f"method {made.method.name}, {rounds} rounds, KKT of all strengths {kkt.max():.0e}"
    text += f", refit {made.refitted.residuals.max():.0e}"
    polished = np.array([_polished(selector, model, value) for model, value in zip(models, made.values, strict=True)])
    text += f", weights differ from the solution on the support by {np.abs(models - polished).max():.0e}"
    if (folder / ACCURATE_GLMNET).exists():
        theirs = models_of(folder / ACCURATE_GLMNET, len(models))
        differ = ((theirs != 0) != (models != 0))[:, :-1].any(axis=1).sum()
        text += f", weights differ from glmnet's by {np.abs(models - theirs).max():.0e}, glmnet's from the solution by "
        text += f"{np.abs(theirs - polished).max():.0e}, support at {differ} strengths"
        own, other = (_objective(selector, one, numbers) for one in (models, theirs))
        text += f", objective minus glmnet's {np.max(own - other):+.0e}"
    return text


def models_of(path: Path, count: int) -> Array:
    """Return the models [J, P] that other software wrote, with the bias last."""
    return np.fromfile(path).reshape(count, -1)


def _polished(selector: Selector, model: Array, strength: float) -> Array:
    """Return the minimizer with the support and the signs of a model with an l1 penalty, by Newton's method."""
    problem, w = selector.problem, model.copy()
    columns = np.flatnonzero((model != 0) | ~problem.layout.regularized)
    penalty = strength * np.sign(model[columns]) * problem.layout.regularized[columns]
    for _ in range(5):
        risk = problem.curvature(w[None], columns)
        w[columns] -= np.linalg.solve(risk.hessian[0], risk.gradient[0, columns] + penalty)
    return w


def _objective(selector: Selector, models: Array, numbers: Array) -> Array:
    return selector.problem.risk(models, gradient=False).value + selector.problem.psi(models, numbers)


def compare(name: str, overrides: list[str], folder: Path) -> None:
    run = PathRun.of(compose(["experiment=path", *overrides]))
    (folder / "glmnet.R").write_text(GLMNET)
    (folder / "peer.py").write_text(PEER)
    selector = write_rows(run, folder)
    fits = [selector.data, *selector.folds]

    def glmnet(threshold: str, result: str) -> Callable[[], float]:
        return command("Rscript", str(folder / "glmnet.R"), str(folder), threshold, result)

    peers = {
        "fco": ours(run),
        "fco, prepared rows": solutions_of(run, selector, fits, selector.tolerance),
        f"fco, prepared rows, path.tolerance={LOOSE:g}": solutions_of(run, selector, fits, LOOSE),
        "glmnet": glmnet("1e-7", "glmnet"),
        ACCURATE_GLMNET: glmnet("1e-16", ACCURATE_GLMNET),
        "scikit-learn": scikit_learn(folder),
    }
    if python := os.environ.get("PEERS"):
        names = os.environ.get("PEER_NAMES", "adelie,skglm").split(",")
        peer = ["timeout", "120", python, str(folder / "peer.py"), str(folder)]
        peers |= {one: command(*peer, one, one, "{}") for one in names}
        if "adelie" in names:
            is_squared = (folder / "family").read_text() == "gaussian\n"
            options = {"tol": 1e-18} if is_squared else {"tol": 1e-18, "irls_tol": 1e-16}
            peers[ACCURATE_ADELIE] = command(*peer, "adelie", ACCURATE_ADELIE, json.dumps(options))
    for one in peers:
        (folder / one).unlink(missing_ok=True)  # of another table
    peers["fco"]()  # compile
    times: dict[str, list[float]] = {one: [] for one in peers}
    slow: set[str] = set()
    for _ in range(TURNS):
        for one, measure in peers.items():
            if one not in slow:
                times[one].append(measure())
                if times[one][-1] > 60:
                    slow.add(one)
    rows, size = selector.data.training.x.shape
    print(f"{name}, {rows} x {size}: " + json.dumps({one: round(min(all_), 3) for one, all_ in times.items()}))
    numbers, problem = stack_numbers([replace(run.regularizer, strength=v) for v in selector.values]), selector.problem
    for one in filter(lambda name: (folder / name).exists(), peers):
        models = models_of(folder / one, len(numbers))
        kkt = problem.kkt_residual(models, problem.risk(models).gradient, numbers) / selector.values
        print(f"  KKT of all strengths by {one}: {kkt.max():.0e}")
    print(f"  {agreement(run, selector, folder)}", flush=True)


def main(folder: Path, shapes: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        tables = {
            "heart": lambda: ["task=heart", f"task.data_dir={folder / 'heart_disease'}"],
            "correlated": lambda: correlated_table(Path(place)),
            "wide": lambda: wide_table(Path(place)),
        }
        for name in shapes or tables:
            compare(name, tables[name](), Path(place))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REAL_DATA, sys.argv[2:])
