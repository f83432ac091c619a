from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation import evaluate as module
from fco_cli.simulation.evaluate import (
    MAX_SNAPSHOT_BYTES,
    MAX_SNAPSHOTS,
    History,
    evaluate,
    evaluate_own,
    snapshot_rounds,
    summarize_own,
)
from fco_cli.simulation.record import Record

COLUMNS = {"round": [0, 2, 4], "objective": [3.0, 2.0, 1.0]}


def test_local_models_are_summarized_by_median_and_quartiles(make_setup):
    setup = make_setup("lasso", "local")
    problem = setup.problem
    models = np.random.default_rng(0).standard_normal((2, 5, problem.layout.size))
    numbers = stack_numbers([L1(strength=0.5), L1(strength=2.0)])
    metrics = evaluate(setup.task, problem, models, numbers)
    for j in range(2):
        each = evaluate(setup.task, problem, models[j], np.repeat(numbers[j : j + 1], 5))
        for name, values in each.items():
            assert metrics[name][j] == np.median(values)
            assert metrics[f"{name}_q25"][j] == np.quantile(values, 0.25)
            assert metrics[f"{name}_q75"][j] == np.quantile(values, 0.75)


def test_metrics_of_every_run(make_setup, regularizer):
    setup = make_setup("lasso", "fedavg")
    problem = setup.problem
    w = np.random.default_rng(0).standard_normal((1, problem.layout.size))
    metrics = evaluate(setup.task, problem, w, regularizer("l1", strength=0.5).numbers)
    psi = 0.5 * np.abs(w[0, :-1]).sum()
    np.testing.assert_allclose(metrics["objective"] - metrics["train_loss"], psi)
    np.testing.assert_allclose(metrics["validation_objective"] - metrics["validation_loss"], psi)
    data = problem.data  # equal clients: F is the mean over all rows
    np.testing.assert_allclose(metrics["train_loss"], np.mean((data.x @ w[0, :-1] + w[0, -1] - data.y) ** 2))
    assert metrics["kkt_residual"][0] > 0
    assert "train_accuracy" not in metrics


# Personal models.


def rows_of(data, m):
    own = data.client(m)
    return np.hstack([own.x, np.ones((len(own.y), 1))]), own.y


@pytest.mark.parametrize("chunk_bytes", [1, 2**30])
def test_personal_models_are_evaluated_on_their_clients_rows(make_problem, monkeypatch, chunk_bytes):
    """Two jobs and unequal clients; of three held-out clients one was not trained, the others are 2 and 0."""
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    plain = make_problem(loss="logistic", sizes=(7, 4, 9), features=2)
    held_out = make_problem(loss="logistic", sizes=(3, 5, 2), features=2, seed=1).data
    problem = replace(plain, held_out=replace(held_out, trained_as=np.array([2, -1, 0])))
    models = np.random.default_rng(0).standard_normal((3, 2, 3))  # [M, J, P]
    own = evaluate_own(problem, 2, lambda clients: models[clients])
    expected = {
        "own_train": [(plain.data, m, m) for m in range(3)],
        "own_validation": [(held_out, 0, 2), (held_out, 2, 0)],
    }
    for prefix, places in expected.items():
        assert own[f"{prefix}_loss"][0].tolist() == [owner for _, _, owner in places]
        for i, (data, m, owner) in enumerate(places):
            x, y = rows_of(data, m)
            scores = x @ models[owner].T  # [n, J]
            losses = (np.logaddexp(0, scores) - y[:, None] * scores).mean(axis=0)
            np.testing.assert_allclose(own[f"{prefix}_loss"][1][i], losses, rtol=1e-12)
            hits = ((scores > 0) == (y[:, None] > 0.5)).mean(axis=0)
            np.testing.assert_allclose(own[f"{prefix}_accuracy"][1][i], hits, rtol=1e-12)


def test_a_summary_has_the_worst_decile(make_problem):
    """A tenth of the clients has a larger loss or a smaller accuracy than the worst decile."""
    values = np.arange(11.0)[:, None] * [1, 10]
    metrics = summarize_own({"own_train_loss": (np.arange(11), values), "own_train_accuracy": (np.arange(11), values)})
    values = {name: metric.tolist() for name, metric in metrics.items()}
    common = {"": [5, 50], "_q25": [2.5, 25], "_q75": [7.5, 75]}
    assert values == {
        **{f"own_train_loss{end}": numbers for end, numbers in common.items()},
        "own_train_loss_worst_decile": [9, 90],
        **{f"own_train_accuracy{end}": numbers for end, numbers in common.items()},
        "own_train_accuracy_worst_decile": [1, 10],
    }
    for none in (np.nan, np.inf):
        values = np.append(np.ones(20), none)[:, None]
        summary = summarize_own({"own_train_loss": (np.arange(21), values)})
        assert all(np.isnan(value) for value in summary.values())


def test_personal_metrics_of_the_local_baseline(make_setup, simulate):
    """The medians over the pooled data are recorded as well."""
    setup = make_setup("lasso", "local")
    setup = replace(setup, problem=replace(setup.problem, held_out=None, training=first_rows(setup.problem.data)))
    (job,) = simulate(setup, [0.01], rounds=setup.hparams.rounds)
    clients, losses = job.own["own_train_loss"]
    assert clients.tolist() == [0, 1, 2, 3, 4, 5]
    for m in clients:
        x, y = rows_of(setup.problem.data, m)
        np.testing.assert_allclose(losses[m], np.mean((x @ job.model[m] - y) ** 2), rtol=1e-10)
    assert job.history["own_train_loss"][-1] == pytest.approx(np.median(losses))
    assert job.history["train_loss"][-1] > job.history["own_train_loss"][-1]


def test_personal_metrics_of_remembered_models(make_setup, simulation_of):
    """Personal models are evaluated in every round and stored at the end; w is evaluated as for other methods."""
    simulation = simulation_of(make_setup("lasso", "ditto", rounds=4), [0.01, 0.02])
    jobs = list(simulation.running)
    while simulation.advance():
        pass
    for job in jobs:
        models, (clients, losses) = simulation.personal_models(job), job.own["own_train_loss"]
        assert clients.tolist() == [0, 1, 2, 3, 4, 5]
        for m in clients:
            x, y = rows_of(simulation.setup.problem.data, m)
            np.testing.assert_allclose(losses[m], np.mean((x @ models[m] - y) ** 2), rtol=1e-10)
        low, median, high, decile = np.quantile(losses, [0.25, 0.5, 0.75, 0.9])
        for name, value in {"": median, "_q25": low, "_q75": high, "_worst_decile": decile}.items():
            assert job.history[f"own_train_loss{name}"][-1] == value
        x, y = simulation.setup.problem.data.x, simulation.setup.problem.data.y
        pooled = np.mean((x @ job.model[:-1] + job.model[-1] - y) ** 2)
        np.testing.assert_allclose(job.history["train_loss"][-1], pooled, rtol=1e-10)
    assert not np.array_equal(simulation.personal_models(jobs[0]), simulation.personal_models(jobs[1]))


def test_personal_models_may_diverge_alone(make_setup, simulate):
    """The personal models diverge although the shared model does not."""
    (tame,) = simulate(make_setup("lasso", "ditto"), [0.01])
    (wild,) = simulate(make_setup("lasso", "ditto", options={"personal_rate": 1e60, "strength": 0.0}), [0.01])
    assert tame.diverged is None
    assert wild.diverged is not None
    assert not wild.own
    for name in ("objective", "own_train_loss_worst_decile"):
        assert np.isfinite(wild.history[name]).all()
    assert wild.history["objective"] == tame.history["objective"][: len(wild.history["objective"])]


def first_rows(data, rows=3):
    some = [np.arange(low, low + rows) for low in data.offsets[:-1]]
    return ClientData(data.x[np.concatenate(some)], data.y[np.concatenate(some)], np.arange(len(some) + 1) * rows)


def test_columns_are_read_by_name_and_rows_are_appended():
    history = History(tuple(COLUMNS))
    for row in zip(*COLUMNS.values(), strict=True):
        history.rows.append(row)
    assert history == History.of(COLUMNS) == COLUMNS
    assert list(history) == ["round", "objective"]
    assert len(history) == 2
    assert "loss" not in history
    with pytest.raises(KeyError, match="loss"):
        history["loss"]


def test_columns_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        History.of(COLUMNS | {"objective": [3.0]})


@pytest.mark.parametrize("size", [10, 1025, 39913])
@pytest.mark.parametrize("every", [1, 7, 100])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 39, 40, 41, 300, 500, 5000])
def test_snapshots_are_few_small_and_of_evaluated_rounds(rounds, every, size):
    kept = sorted(snapshot_rounds(rounds, every, size))
    evaluated = {*range(0, rounds, every), rounds}
    assert set(kept) <= evaluated
    assert (kept[0], kept[-1]) == (0, rounds)
    assert len(kept) == min(MAX_SNAPSHOTS, len(evaluated), MAX_SNAPSHOT_BYTES // (2 * size))
    assert len(kept) * size * 2 <= MAX_SNAPSHOT_BYTES


def test_a_model_too_large_for_two_snapshots_keeps_none():
    assert snapshot_rounds(500, 1, 10**6) == frozenset()


def test_the_snapshots_go_from_the_start_to_the_final_model(make_setup, simulate, tmp_path):
    setup = replace(make_setup("lasso", "feddualavg", rounds=60), record_path=True)
    whole, diverged = simulate(setup, [0.01, 1e30])
    assert list(whole.path) == sorted(snapshot_rounds(60, 1, setup.problem.layout.size))
    np.testing.assert_array_equal(whole.path[60], whole.model.astype(np.float16))
    np.testing.assert_array_equal(whole.path[0], np.zeros_like(whole.path[60]))

    record = Record(tmp_path / "run")
    record.create()
    record.save_checkpoint(whole, "code")
    assert list(record.checkpoint("code").path) == list(whole.path)
    record.finish(whole, setup.problem.layout, {})
    with np.load(record.folder / "path.npz", allow_pickle=False) as path:
        assert path["round"].tolist() == list(whole.path)
        np.testing.assert_array_equal(path["weights"][-1], whole.path[60][:-1])
    (halfway,) = simulate(setup, [0.01], rounds=20)
    (continued,) = simulate(setup, [0.01], [halfway])
    assert list(continued.path) == list(whole.path)

    record = Record(tmp_path / "diverged")
    record.create()
    record.finish(diverged, setup.problem.layout, {})
    assert not (record.folder / "path.npz").exists()  # not needed after a divergence
