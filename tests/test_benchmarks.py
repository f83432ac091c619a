"""The benchmarks' plain loop computes what the engine computes; otherwise the ratios would mean nothing."""

from pathlib import Path

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams

ROUNDS, RATE = 4, 0.03


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks import plain

    return plain


def by_the_engine(problem):
    """All clients, one batch each: nothing is random."""
    clients, batch = problem.data.clients, int(problem.data.sizes.max())
    hparams = Hparams(RATE, 1.0, ROUNDS, clients, batch, local_epochs=2, eval_every=1, dtype="float64")
    algorithm = all_algorithms()["feddualavg"]()
    varying = Varying.from_rates(algorithm, problem.regularizer, np.array([RATE]), np.ones(1))
    simulation = Simulation(Setup(None, problem, hparams, 0, algorithm), [job := Job()], varying)
    while simulation.advance():
        pass
    return job.model


def by_the_loop(plain, problem, gradient, prox):
    clients = [(client.x, client.y) for client in map(problem.data.client, range(problem.data.clients))]
    start, batch = problem.model.initial(), int(problem.data.sizes.max())
    return plain.feddualavg(
        clients, start, gradient, prox, lambda w: None, RATE, ROUNDS, per_round=len(clients), batch=batch, epochs=2
    )


@pytest.fixture(autouse=True)
def _no_task(monkeypatch):
    def nothing(task, problem, models, parameters):
        return {"objective": np.zeros(len(models))}

    monkeypatch.setattr("fco_cli.simulation.engine.evaluate", nothing)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_lasso(plain, make_problem, loss):
    problem = make_problem(all_regularizers()["l1"](strength=0.2), loss=loss)
    loop = by_the_loop(plain, problem, getattr(plain, f"{loss}_gradient"), plain.soft_threshold(0.2))
    np.testing.assert_allclose(loop, by_the_engine(problem), rtol=1e-10, atol=1e-13)


def test_nuclear_norm(plain, make_problem):
    problem = make_problem(all_regularizers()["nuclear"](strength=0.3), weights_shape=(2, 3))
    loop = by_the_loop(plain, problem, plain.squared_gradient, plain.singular_threshold(0.3, (2, 3)))
    np.testing.assert_allclose(loop, by_the_engine(problem), rtol=1e-10, atol=1e-13)


@pytest.mark.slow
@pytest.mark.machine_code
def test_softmax_in_a_ball(plain, make_problem):
    problem = make_problem(all_regularizers()["l1_ball"](radius=0.1), loss="softmax", outputs=3)
    balls = plain.l1_balls(0.1, [problem.layout.slices["weights"]])
    loop = by_the_loop(plain, problem, plain.network_gradient(problem.model.widths.tolist()), balls)
    np.testing.assert_allclose(loop, by_the_engine(problem), rtol=1e-10, atol=1e-13)
    assert np.abs(loop[problem.layout.slices["weights"]]).sum() == pytest.approx(0.1)


@pytest.mark.parametrize("task", ["lasso", "nuclear"])
def test_jax_computes_the_same_rounds(plain, task):
    """Independent code, the same cohorts, the same dual states to rounding."""
    pytest.importorskip("jax", reason="the optional peer of the benchmarks: pip install jax")
    from benchmarks.cases import composed
    from benchmarks.jax_peer import rounds_of

    run = composed(f"task={task}", "task.clients=12")
    problem = run.task.build(0, "float64").to_problem(run.regularizer)
    work = rounds_of(problem, task == "nuclear", 3, 4)
    work()
    hparams, rates = Hparams(1.0, 1.0, 5, 10, 10, 1), 1e-5 * np.geomspace(0.1, 1, 3)
    algorithm = all_algorithms()["feddualavg"]()
    varying = Varying.from_rates(algorithm, problem.regularizer, rates, np.ones(3))
    simulation = Simulation(Setup(run.task, problem, hparams, 0, algorithm), [Job() for _ in rates], varying)
    for _ in range(4):
        simulation.advance()
    np.testing.assert_allclose(work.state[0], simulation.state["z"], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["text", "grouped"])
def test_pooled_problems_have_the_objective_of_other_software(monkeypatch, name):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks import pooled

    made = pooled.text(40, 2_500, 8) if name == "text" else pooled.grouped(20, 60, 5)
    w = np.linspace(-1, 1, made.problem.layout.size)
    psi = made.problem.psi(w[None], made.problem.regularizer.numbers)[0]
    value = made.problem.risk(w[None]).value[0] + psi
    assert made.objective(w) == pytest.approx(value / 2)


def test_table_of_pooled_solvers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks import pooled

    lines = [["a", "x", 0.5, 1e-3], ["b", "x", None, None], ["a", "y", 0.25, 1e-2]]
    assert pooled.table(["a", "b"], lines) == [["x", 0.5, "more"], ["y", 0.25, "–"]]


def test_the_tables_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks import results

    assert len(results.results()) >= 4
    for path, text in results.texts().items():
        assert path.read_text() == text, f"{path.name}: run python -m benchmarks.results"


def test_a_result_is_saved_with_its_origin_and_other_rows_are_kept(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks import results

    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "write_tables", lambda: None)
    columns = ["what", "cost", "slope"]
    results.save("sizes", "measure", columns, [["a", [[1, 2.0, 30]], 0.5], ["b", [[1, 1.0]], 1.0]])
    points = [[10, 2.0], [1000, 200.0]]
    results.save("sizes", "measure", columns, [["b", points, results.slope(points)]], only_some=True)
    (result,) = results.results().values()
    assert [row[0] for row in result["rows"]] == ["a", "b"]
    table, origin = results.as_markdown(result).split("\n\n")
    assert table.splitlines()[2:] == ["| a | 1: 2 (30 MB) | 0.5 |", "| b | 10: 2, 1,000: 200 | 1 |"]
    assert result["date"] in origin
    assert result["commit"] in origin
    assert result["machine"] in origin
