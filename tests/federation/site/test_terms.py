"""Terms of formulas at a site: what an analyst could smuggle in is refused, and the rest answered."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.data.formula import parse
from fco_cli.data.preparation import Recipe, agree
from fco_cli.data.statistics import Summary
from fco_cli.data.terms import expand
from fco_cli.federation.policy import preset
from tests.federation.site.conftest import refusal

pytest.importorskip("formulaic")


@pytest.fixture
def ask(attack, tmp_path):
    """Return a function that requests the summary of the terms of a formula, with a site of 90 rows."""
    random = np.random.default_rng(0)
    lines = ["age,dose,sex,y"]
    for k in range(90):
        sex = "f" if k % 2 else "m"
        lines.append(f"{40 + k * 0.37:.2f},{random.gamma(2):.4f},{sex},{int(random.random() < 0.5)}")
    (tmp_path / "north.csv").write_text("\n".join(lines) + "\n")

    def make(formula: str, policy=None):
        attacker = attack(policy or preset("strict", max_equations_per_value=None), tmp_path / "north.csv")
        prepared = attacker.prepare(formula=formula)
        assert prepared.kind == "prepare", prepared.head
        base = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
        base.terms.extend(expand(parse(formula), base, {}))
        answer = attacker.send("terms", {"terms": {"fit": 0, "preparation": base.as_json()}})
        return attacker, answer

    return make


@pytest.mark.parametrize(
    "formula",
    ["age + dose", "age * sex", "I(age**2)", "log(dose)", "I(dose / 7)", "I((age - 55)**2)", "I((age + 1000) / 10)"],
)
def test_usual_terms_are_answered(ask, formula):
    _, answer = ask(formula)
    assert answer.kind == "terms", answer.head
    assert answer.head["summary"]["rows"] == 90


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("I(exp(-1000 * (age - 51.1)**2))", r"a term .* with (another value|large values of few rows)"),
        ("I(exp(-20 * (age - 51.1)**2))", "with large values of few rows requested"),
        ("I((age / 75)**200)", "with large values of few rows requested"),
        ("log(age - 41)", r"with log of an expression requested; .* allows columns as arguments"),
        ("sqrt(60 - age)", "with sqrt of an expression requested"),
        ("I(1 / (age - 51.1))", "with divide of an expression requested"),
        ("I((age - 51.1)**0.5)", "with power of an expression requested"),
        ("I((age - 51.1)**dose)", "with power of an expression requested"),
        ("I((age - 51.3 + 1e17) - 1e17)", "that rounds its columns requested"),  # 16 where age is above 59.3, else 0
        ("I((age * 1e-9 + 1) ** 1000)", "that rounds its columns requested"),
    ],
)
def test_terms_that_mark_rows_are_refused(ask, formula, reason):
    import re

    _, answer = ask(formula)
    assert re.search(reason, refusal(answer)), answer.head


def test_refusals_that_depend_on_rows_are_counted_and_name_no_row(ask):
    """The refusal of a term that overflows for some rows discloses that there are such rows."""
    policy = preset("strict", max_steep_models=1, max_equations_per_value=None)
    attacker, answer = ask("I(exp(20 * age))", policy)
    assert refusal(answer) == "terms: a term is not finite for a row of the site; change the formula"
    assert attacker.site.disclosure.ledger.read().steep_models == 1
    _, answer = ask("I(exp(21 * age))", policy)
    assert "max_steep_models" in refusal(answer)


def test_demo_sites_answer_about_all_finite_terms(ask):
    _, answer = ask("I(exp(-20 * (age - 51.1)**2))", preset("demo"))
    assert answer.kind == "terms"


def test_names_are_needed(attack, tmp_path, ask):
    ask("age")
    attacker = attack(preset("demo", share_names=False), tmp_path / "north.csv")
    lines = (tmp_path / "north.csv").read_text().replace(",f,", ",1,").replace(",m,", ",0,")
    (tmp_path / "numbers.csv").write_text(lines)
    attacker = attack(preset("demo", share_names=False), tmp_path / "numbers.csv")
    assert "need names of columns (site.yaml: share_names)" in refusal(attacker.prepare(formula="age"))


def test_offsets_that_are_invalid_name_no_row(attack, tmp_path, ask):
    ask("age")
    attacker = attack(preset("demo"), tmp_path / "north.csv")
    assert refusal(attacker.prepare(loss="squared", offset="sex")).startswith("task.offset: the column is absent")
    assert refusal(attacker.prepare(loss="poisson", offset="dose")).startswith(
        "task.offset: must be null for the poisson"
    )
