"""Tests of formulas: terms, knots and moments from sums over clients, against patsy, formulaic and R."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from fco_cli.data.format import FederatedData
from fco_cli.data.formula import parse
from fco_cli.data.preparation import Preparation, Recipe
from fco_cli.data.splines import b_splines, natural_splines
from fco_cli.data.terms import prepared_by_formula
from fco_cli.errors import UserError

ROWS = 120
PLAIN = Recipe(standardize=False, min_count=1)


def table(missing: bool = False) -> tuple[FederatedData, pd.DataFrame]:
    """Return rows of three clients with two columns of categories, and the same rows as a data frame."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"u": random.standard_normal(ROWS), "v": random.exponential(2, ROWS), "a": random.integers(0, 3, ROWS),
         "b": random.integers(0, 2, ROWS)}
    )  # fmt: skip
    x = frame.to_numpy(dtype=float)
    if missing:
        x[::7, 0], x[3::11, 2] = np.nan, np.nan
    clients = np.array(["one", "two", "three"])[random.integers(0, 3, ROWS)]
    data = FederatedData(
        "t.csv", x, np.zeros(ROWS), clients, features=np.array(["u", "v", "a", "b"]),
        categories=np.array(["a0", "a1", "a2", "b0", "b1"]), category_of=np.array([2, 2, 2, 3, 3]),
    )  # fmt: skip
    frame["a"], frame["b"] = "a" + frame["a"].astype(str), "b" + frame["b"].astype(str)
    return data, frame


FORMULAS = [
    "u + v + a",
    "u * a",
    "u:a",
    "a:b",
    "a * b * u",
    "a + a:b",
    "u:v + u:a:b",
    "log(v) + I(u**2) + u:I(v / 2 - 1)",
    "bs(u, df=5, lower_bound=-5, upper_bound=5) * b",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_columns_are_those_of_patsy(formula):
    """The order and names differ; knots from quantiles are compared below."""
    patsy = pytest.importorskip("patsy")
    data, frame = table()
    if "bs" in formula:
        formula = formula.replace("df=5", "knots=[-0.5, 0.7]")
    theirs = np.asarray(patsy.dmatrix(formula.replace("log", "np.log"), frame))[:, 1:]
    ours = prepared_by_formula(data, parse(formula), PLAIN).encode(data.raw)
    assert ours.shape == theirs.shape
    order = [int(np.argmin(np.abs(theirs - column[:, None]).max(axis=0))) for column in ours.T]
    assert sorted(order) == list(range(theirs.shape[1]))
    np.testing.assert_allclose(ours, theirs[:, order], rtol=1e-12, atol=1e-12)


def test_knots_are_quantiles_of_all_rows():
    data, frame = table()
    preparation = prepared_by_formula(data, parse("bs(v, df=6)"), PLAIN)
    breaks = preparation.terms[0].factors[0].breaks
    v = np.sort(frame["v"].to_numpy())
    expected = [v[0], *(v[-(-ROWS * k // 4) - 1] for k in (1, 2, 3)), v[-1]]
    np.testing.assert_allclose(breaks, expected, atol=np.ptp(v) * 2**-31)


def test_natural_splines_are_those_of_r():
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not here")
    points = np.linspace(-1.5, 6.5, 23)
    script = f"library(splines); x <- c({','.join(map(str, points))}); " + (
        "m <- ns(x, knots=c(1, 2.5, 4), Boundary.knots=c(0, 5)); cat(format(t(unclass(m)[, 1:4]), digits=17), sep=',')"
    )
    answer = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True, check=True).stdout
    theirs = np.array([float(one) for one in answer.split(",")]).reshape(-1, 4)
    from fco_cli.data.expressions import piecewise

    basis = natural_splines(np.array([1, 2.5, 4]), 0.0, 5.0)
    ours = np.stack([piecewise(points, basis.breaks, basis.coefficients[:, :, k]) for k in range(4)], axis=1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_b_splines_are_constant_beyond_the_boundary_knots():
    from fco_cli.data.expressions import piecewise

    basis = b_splines(np.array([1.0]), 0.0, 3.0, 3)
    for k in range(basis.coefficients.shape[2]):
        values = piecewise(np.array([-9.0, 0.0, 3.0, 8.0]), basis.breaks, basis.coefficients[:, :, k])
        np.testing.assert_allclose(values[[0, 3]], values[[1, 2]], atol=1e-14)


def test_polynomials_are_those_of_formulaic():
    formulaic = pytest.importorskip("formulaic")
    data, frame = table()
    theirs = np.asarray(formulaic.model_matrix("poly(v, 4)", frame))[:, 1:]
    ours = prepared_by_formula(data, parse("poly(v, 4)"), PLAIN).encode(data.raw)
    np.testing.assert_allclose(ours, theirs * np.sign((ours * theirs).sum(axis=0)), atol=1e-10)


def test_missing_values_are_filled_before_the_expansion():
    data, _ = table(missing=True)
    preparation = prepared_by_formula(data, parse("I(u**2) + u:a"), Recipe(min_count=1, flag_missing=True))
    x, names = preparation.encode(data.raw), preparation.features
    filled = np.where(np.isnan(data.x[:, 0]), np.nanmean(data.x[:, 0]), data.x[:, 0])
    np.testing.assert_allclose(x[:, 0], filled**2)
    shares = np.array([np.nanmean(data.x[:, 2] == k) / np.mean(~np.isnan(data.x[:, 2])) for k in range(3)])
    indicators = np.where(np.isnan(data.x[:, 2])[:, None], shares, data.x[:, 2][:, None] == np.arange(3))
    np.testing.assert_allclose(x[:, 1:4], filled[:, None] * indicators)
    assert names == ["I(u ** 2)", "u:a=a0", "u:a=a1", "u:a=a2", "u is missing", "a is missing"]
    standardized = preparation.apply(data.raw)
    np.testing.assert_allclose(standardized.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(standardized.std(axis=0), 1)


def test_the_preparation_survives_its_file_and_is_checked():
    data, _ = table()
    preparation = prepared_by_formula(data, parse("ns(v, df=3):a + log(v)"), PLAIN)
    text = preparation.as_json()
    assert Preparation.of_json(text, "r").as_json() == text
    np.testing.assert_array_equal(Preparation.of_json(text, "r").encode(data.raw), preparation.encode(data.raw))
    for change in (
        lambda term: term["factors"][0].update(breaks=[2.0, 1.0, 3.0]),
        lambda term: term["factors"][1].update(category="a9"),
        lambda term: term["factors"][0]["argument"].update(column="zzz"),
        lambda term: term["factors"][0].update(type="code"),
    ):
        plain = json.loads(text)
        change(plain["terms"][0])
        with pytest.raises(UserError, match=r"preparation.json: .*terms"):
            Preparation.of_json(json.dumps(plain), "r")


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("uu + v", "column 'uu' not found in t.csv; columns are u, v, a, b"),
        ("log(a)", "column 'a' holds categories, must hold numbers"),
        ("C(u)", "the column holds numbers; declare it in task.categorical"),
        ("log(u)", r"row \d+: 'log\(u\)' of the formula is not finite"),
        ("bs(log(u), df=4)", "of the formula is not finite"),
        ("bs(v, knots=[99])", "its knots, 99, must be different and between"),
        ("poly(u * 0, 2)", "all values are 0"),
        ("bs(v)", "must have df or knots"),
        ("bs(v, df=2)", "must have a whole number from 3 to 100 as df"),
        ("bs(v, degrees=3)", r"must be bs\(column, ...\) with numbers for df, degree, knots"),
        ("y ~ u", "must be the right side only, without ~"),
        ("0 + u", "must not remove the intercept"),
        ("u +", "is not a formula"),
        ("u | v", "it has several parts"),
        ("__import__('os')", "has '__import__', must have columns"),
        ("{exp(u).real}", "must have columns"),
    ],
)
def test_wrong_formulas_are_one_line(formula, words):
    data, _ = table()
    with pytest.raises(UserError, match=words) as error:
        prepared_by_formula(data, parse(formula), PLAIN)
    assert "\n" not in str(error.value)
