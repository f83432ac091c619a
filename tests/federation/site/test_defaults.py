"""Requests that a site with the default policy refuses, and noise that is too small to replace its rules."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.policy import preset
from fco_cli.federation.site.evaluation import SiteEvaluator
from fco_cli.simulation.engine import Setup
from fco_cli.simulation.problems import smoothness_for
from tests.federation.conftest import NAMES
from tests.federation.coordinator.test_clients import run, task_of
from tests.federation.site.conftest import refusal


def ready(attacker, **task):
    attacker.apply(attacker.prepare(**task))
    return attacker


def test_batch_1(attack):
    attacker = ready(attack())
    attacker.stack()
    assert "a batch of 1 row requested" in refusal(attacker.train(batch_size=1, steps=1))


def test_folds_below_the_minimum(attack):
    """Ten folds of 60 rows hold out 6 rows."""
    deal = {"folds": 10, "by": "rows", "classes": False, "seed": 0, "draw": 0}
    reason = refusal(attack().prepare(fold={"deal": deal, "number": 0}))
    expected = "a part (held-out rows) of 6 rows requested; the site's policy allows 10 or more (site.yaml: min_rows)"
    assert reason == f"{expected}; use fewer path.folds"


def test_the_10_000th_evaluation(attack, tmp_path, monkeypatch):
    """A file so large that the budget of numbers allows it; answers are replaced, since only the counts matter."""
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "large.npz", x=random.normal(size=(6000, 3)), y=random.integers(0, 2, 6000).astype(float),
        client=np.full(6000, "north"),
    )  # fmt: skip
    attacker = ready(attack(data=tmp_path / "large.npz"))
    monkeypatch.setattr(attacker.site.disclosure, "check_curvature", lambda *_: None)
    monkeypatch.setattr(attacker.site.data.models, "check", lambda *_, **__: None)
    monkeypatch.setattr(SiteEvaluator, "_evaluate_rows", lambda _, __, models, *rest: {"value": np.zeros(models.jobs)})
    kinds = [attacker.evaluate(np.zeros((100, 4)), gradient=False).kind for _ in range(99)]
    assert kinds == ["evaluate"] * 50 + ["refused"] * 49
    reason = refusal(attacker.evaluate(gradient=False))
    assert reason == "1 evaluated models requested; 0 of 5,000 are left over all runs (site.yaml: max_evaluations)"


@pytest.fixture
def masked_run(tmp_path, make_sites, psi_for, make_hparams, signed):
    """Return a function that prepares a masked run between three default sites."""

    def make() -> tuple[Setup, Varying]:
        random = np.random.default_rng(2)
        for name in NAMES:
            x = random.normal(size=(60, 3))
            np.savez(tmp_path / f"{name}.npz", x=x, y=(random.random(60) < 0.5) * 1.0, client=np.full(60, name))
        credentials = {name: signed(name) for name in NAMES}
        sites = make_sites(tmp_path, policy=preset("strict"), mask_bits=40, all_credentials=credentials)
        task = CustomAtSites.of(task_of(tmp_path, "logistic", path="", holdout="none", exact_sums=True), sites)
        hparams = make_hparams(clients_per_round=3, batch_size=100, rounds=1, fraction_bits=40)
        algorithm, psi = all_algorithms()["fedavg"](), psi_for("fedavg")
        problem = task.data(0, "float64").to_problem(psi)
        setup = Setup(task, problem, hparams, 0, algorithm, clients=remote_clients(problem.data, hparams, 0))
        return setup, Varying.from_rates(algorithm, psi, np.full(1, 0.05), np.ones(1))

    return make


@pytest.mark.parametrize(("kind", "key"), [("train", "factors"), ("evaluate", "weights")])
def test_weights_of_one_site(masked_run, kind, key):
    setup, varying = masked_run()
    connection = setup.task.connection
    exchange, changed = connection.exchange, []

    def with_weights(sent, head, *rest, **options):
        if sent == kind:
            ones = {name: float(name == "north") for name in NAMES}
            head = copy.deepcopy(head)
            if key == "factors":
                head[key] = {name: [one] for name, one in ones.items()}
            else:
                head["fits"][0][key] = ones
            changed.append(head)
        return exchange(sent, head, *rest, **options)

    connection.exchange = with_weights
    with pytest.raises(UserError, match=r"weights: not those that follow from the agreed numbers of rows \(training\)"):
        run(setup, varying)
    assert changed


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_steep_models_with_masks(masked_run, kind):
    """True weights and many steep models gave most rows of three sites."""
    setup, varying = masked_run()
    connection = setup.task.connection
    exchange, changed = connection.exchange, []

    def with_steep_models(sent, head, arrays, *rest, **options):
        if sent == kind:
            arrays = {name: np.full_like(values, 1e7) for name, values in arrays.items()}
            changed.append(arrays)
        return exchange(sent, head, arrays, *rest, **options)

    connection.exchange = with_steep_models
    with pytest.raises(UserError, match="a model with the curvature of few rows requested; the site's policy allows"):
        run(setup, varying)
    assert changed


def test_a_repeated_key_request(masked_run):
    """Another group in the same session would give the sum over the other sites."""
    setup, varying = masked_run()
    run(setup, varying)
    link = setup.task.connection.link
    heads = {}
    for content in link.sent:
        message = Message.unpacked(content)
        heads.setdefault(message.kind, message.head)
    site, last = link.sites["north"], Message.unpacked(link.sent[-1]).head["number"]
    reasons = {
        "key": "the mask keys of this session are exchanged already",
        "keys": "the group of sites is fixed for this session",
    }
    for number, (kind, reason) in enumerate(reasons.items(), last + 1):
        answer = site.handle(Message(kind, heads[kind] | {"number": number}).packed())
        assert refusal(Message.unpacked(answer)) == reason


@pytest.mark.parametrize(("limit", "is_known"), [(None, True), (0.01, False)])
def test_no_estimate_for_a_warning_where_sites_refuse_it(hospitals, make_sites, psi_for, make_hparams, limit, is_known):
    """A run with a given client_lr needs no curvature, and does not end because a site refuses it."""
    folder = hospitals("logistic")
    sites = make_sites(folder, policy=preset("demo", max_parameters_per_row=limit))
    task = CustomAtSites.of(task_of(folder, "logistic", path="", holdout="none"), sites)
    problem = task.data(0, "float64").to_problem(psi_for("fedavg"))
    run = SimpleNamespace(algo=all_algorithms()["fedavg"](), has_noise=False, seed=0, hparams=make_hparams())
    assert (smoothness_for(run, problem) is not None) == is_known


# Noise that is too small.


def transform_numbers(options: dict[str, Any]) -> np.ndarray:
    """Return the transform's array of a stack with one job."""
    return np.array([list(all_transforms()[options["name"]](**options).numbers[0].item())])


@pytest.mark.parametrize("multiplier", [0.0, 1e-6, 0.99])
def test_rows_are_not_clipped_without_enough_noise(attack, multiplier):
    attacker = ready(attack())
    options = {"name": "row_clip_noise", "noise_multiplier": multiplier}
    rule = "the site's policy allows 1 or more (site.yaml: refuse_differences)"
    stacked = attacker.stack(transform=options, numbers=transform_numbers(options))
    assert refusal(stacked) == f"transform row_clip_noise with noise multiplier {multiplier:g} requested; {rule}"
    noise = {"most": 1e-9, "deviation": multiplier * 1e-9, "rows": 60.0, "by_row": True, "shares": 1}
    if multiplier:
        assert f"an evaluation with noise multiplier {multiplier:.3g} requested; {rule}" in refusal(
            attacker.evaluate(noise=noise)
        )


def test_enough_noise_replaces_the_rules_about_batches(attack):
    """Sampled batches have any number of rows; the numbers of local steps stay limited."""
    attacker = ready(attack())
    options = {"name": "row_clip_noise", "noise_multiplier": 1.0}
    assert attacker.stack(transform=options, numbers=transform_numbers(options)).kind == "stack"
    assert attacker.train(batch_size=20).kind == "train"
    expected = "1,800 local steps of one round requested; the site's policy allows 1,000"
    assert expected in refusal(attacker.train(batch_size=20, local_epochs=600))


def test_a_job_without_noise_beside_one_with_noise(attack):
    attacker = ready(attack())
    options = {"name": "row_clip_noise", "noise_multiplier": 2.0}
    numbers = np.repeat(transform_numbers(options), 2, axis=0)
    numbers[1, 1] = 0.0  # noise_multiplier
    head = {
        "stack": 1, "fit": 0, "jobs": 2, "algo": {"name": "fedavg"}, "regularizer": {"name": "none"},
        "mirror": {"name": "euclidean"}, "transform": options,
    }  # fmt: skip
    two = np.ones(2)
    arrays = {"client_lr": two, "server_lr": two, "psi": np.zeros((2, 1)), "options": np.zeros((2, 1))}
    assert "with noise multiplier 0 requested" in refusal(attacker.send("stack", head, **arrays, transform=numbers))


def attack_by_narrow_ranges(attacker) -> float:
    """Return the 30th value of the first column: clipped to a narrow range, sums count the values above it."""
    columns, low, high = attacker.prepare().head["summary"]["columns"], -4.0, 4.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        preparation = {
            "version": 1, "columns": columns, "fill": [0.0] * 3, "flagged": [], "constant": [], "categories": {},
            "mean": [middle] * 3, "scale": [1e-12] * 3,
        }  # fmt: skip
        response = attacker.send("moments", {"fit": 0, "preparation": json.dumps(preparation), "noise": 1e-6})
        if response.kind == "refused":
            assert "moments with noise multiplier 1e-06 requested; the site's policy allows 1 or more" in refusal(
                response
            )
            return np.nan
        low, high = (low, middle) if response.arrays["sums.0"][0, 0] < 0.5 else (middle, high)
    return high


def test_moments_with_little_noise_count_values(attack, rows):
    """A search over ranges finds a patient's value; a default site answers none of its requests."""
    assert np.isnan(attack_by_narrow_ranges(attack()))
    found = attack_by_narrow_ranges(attack(preset("demo")))
    assert np.abs(rows[0][:, 0] - found).min() < 1e-4


def test_noisy_moments_are_counted(attack):
    attacker = attack(preset("strict", max_counts=1))
    columns = attacker.prepare().head["summary"]["columns"]
    preparation = {
        "version": 1, "columns": columns, "fill": [0.0] * 3, "flagged": [], "constant": [], "categories": {},
        "mean": [0.0] * 3, "scale": [4.0] * 3,
    }  # fmt: skip
    head = {"fit": 0, "preparation": json.dumps(preparation), "noise": 1.0}
    assert attacker.send("moments", head).kind == "moments"
    assert "0 of 1 are left over all runs (site.yaml: max_counts)" in refusal(attacker.send("moments", head))
