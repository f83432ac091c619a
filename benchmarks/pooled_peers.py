"""Solvers of pooled lasso and group lasso problems by other software; benchmarks/pooled.py runs this file.

`python pooled_peers.py FOLDER TURNS` reads the problems of FOLDER and writes the processor seconds of every solver that
is installed, at the loosest of its tolerances that reaches the required objective. It does not import fco_cli, because
other software may need another interpreter.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from threadpoolctl import threadpool_limits

TOLERANCES = [10.0**-k for k in range(2, 15)]
Model = tuple[np.ndarray, float]  # weights and bias
Solver = Callable[[Any, np.ndarray, float, int, float], Model]  # rows, labels, strength, group size, tolerance


def estimator(module: str, name: str, **options: Any) -> Solver:
    """Return an estimator of scikit-learn's kind; for group lasso, the one that takes the size of the groups."""

    def solve(x: Any, y: np.ndarray, strength: float, group: int, tolerance: float) -> Model:
        kind = getattr(__import__(module, fromlist=[name]), name)
        groups = {"groups": group} if "Group" in name else {}
        model = kind(alpha=strength, tol=tolerance, **groups, **options).fit(x, y)
        return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])

    return solve


def adelie(x: Any, y: np.ndarray, strength: float, group: int, tolerance: float) -> Model:
    import adelie as ad

    matrix = ad.matrix.sparse(scipy.sparse.csc_matrix(x), n_threads=1) if scipy.sparse.issparse(x) else x
    size = x.shape[1]
    penalty = np.ones(size // group)  # its default is the square root of the size of a group
    path = list(strength * 2.0 ** np.arange(6, -1, -1))
    model = ad.grpnet(
        matrix, ad.glm.gaussian(y), groups=np.arange(0, size, group), penalty=penalty, lmda_path=path, tol=tolerance,
        progress_bar=False, early_exit=False, n_threads=1,
    )  # fmt: skip
    return model.betas.toarray()[-1], float(model.intercepts[-1])


LASSO = {
    "scikit-learn": estimator("sklearn.linear_model", "Lasso", max_iter=10**5),
    "scikit-learn, `precompute=True`": estimator("sklearn.linear_model", "Lasso", max_iter=10**5, precompute=True),
    "celer": estimator("celer", "Lasso", max_iter=1000),
    "skglm": estimator("skglm", "Lasso", max_iter=1000),
    "adelie": adelie,
}
GROUP_LASSO = {
    "celer": estimator("celer", "GroupLasso", max_iter=1000),
    "skglm": estimator("skglm", "GroupLasso", max_iter=1000),
    "adelie": adelie,
}


def objective(x: Any, y: np.ndarray, strength: float, group: int, model: Model) -> float:
    """Return half of the mean squared error plus the strength times the sum of the norms of groups."""
    w, bias = model
    error = x @ w + bias - y
    return float(error @ error / (2 * len(y)) + strength * np.linalg.norm(w.reshape(-1, group), axis=1).sum())


def fastest(attempt: Callable[[float], tuple[float, float]], required: float) -> tuple[float, float] | None:
    """Return the seconds and the loosest tolerance whose objective is the required one, or None."""
    for tolerance in TOLERANCES:
        seconds, value = attempt(tolerance)
        if value <= required:
            return seconds, tolerance
    return None


def measure(
    solve: Solver, x: Any, y: np.ndarray, strength: float, group: int, required: float, turns: int
) -> tuple[float, float] | tuple[None, None]:
    """Return the seconds and the tolerance of the fastest turn."""

    def attempt(tolerance: float) -> tuple[float, float]:
        start = time.process_time()
        model = solve(x, y, strength, group, tolerance)
        return time.process_time() - start, objective(x, y, strength, group, model)

    attempt(1.0)  # compiles
    return min(filter(None, (fastest(attempt, required) for _ in range(turns))), default=(None, None))


def main(folder: Path, turns: int) -> None:
    warnings.simplefilter("ignore")  # of solvers that stop before their tolerance
    for path in sorted(folder.glob("*.json")):
        settings, y = json.loads(path.read_text()), np.load(path.with_suffix(".y.npy"))
        name, strength, group, required = (settings[key] for key in ("name", "strength", "group", "required"))
        sparse = path.with_suffix(".x.npz")
        # Columns are contiguous before the solvers are timed, since all of these read columns.
        x = scipy.sparse.load_npz(sparse).tocsc() if sparse.exists() else np.load(path.with_suffix(".x.npy"))
        x = x if sparse.exists() else np.asfortranarray(x)
        for solver, solve in (LASSO if group == 1 else GROUP_LASSO).items():
            if sparse.exists() and "precompute" in solver:
                continue
            try:
                result = measure(solve, x, y, strength, group, required, turns)
            except ImportError:
                continue
            print(json.dumps([name, solver, *result]), flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(Path(sys.argv[1]), int(sys.argv[2]))
