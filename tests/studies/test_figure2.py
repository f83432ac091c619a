"""Tests of figure 2: the recorded models of the clients and their supports."""

from __future__ import annotations

import io

import numpy as np
import pytest

from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import collect
from fco_cli.studies.yuan2021.figures import draw_curse, read_supports, supports_of, supports_table

CLIENT_LR, STRENGTH, STEPS = 0.01, 0.5, 2  # 8 samples in batches of 4


def npz(compressed=False, **arrays) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def models_of(here, tmp_path):
    """Return a function that runs a tiny problem and returns the last round's client models and the server's model."""

    def run(algo: str) -> tuple[np.ndarray, np.ndarray]:
        here(
            "task=lasso", f"algo={algo}", "task.dimension=6", "task.ones=2", "task.clients=5", "task.samples=8",
            "hparams.clients_per_round=3", "hparams.batch_size=4", "hparams.rounds=3",
            f"hparams.client_lr={CLIENT_LR}", "hparams.server_lr=1", "record_clients=true", f"output_dir={tmp_path}",
        )  # fmt: skip
        (folder,) = (tmp_path / "lasso" / algo).iterdir()
        clients, model = np.load(folder / "clients.npz"), np.load(folder / "model.npz")
        block = model.files[0]
        return clients[block], model[block]

    return run


def test_fedmid_averages_models_and_the_server_then_takes_a_proximal_step(models_of):
    models, server = models_of("fedmid")
    clients, average = models[:-1], models[-1]
    assert clients.shape == (3, 6)
    assert average == pytest.approx(clients.mean(axis=0))
    threshold = STRENGTH * CLIENT_LR * STEPS  # eta_s eta_c K lambda, with eta_s = 1
    assert server == pytest.approx(np.sign(average) * np.maximum(np.abs(average) - threshold, 0))


def test_feddualavg_averages_duals_and_the_average_is_the_servers_model(models_of):
    models, server = models_of("feddualavg")
    assert models[-1] == pytest.approx(server)
    assert len({row.tobytes() for row in models}) == 4  # clients differ, from each other and from the average


def test_record_clients_changes_the_run_id():
    from hydra import compose, initialize_config_module

    from fco_cli.config import Run, register

    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        ids = {Run.of(compose("config", [f"record_clients={keep}"])).run_id for keep in ("true", "false")}
    assert len(ids) == 2


def test_figure_shows_supports_of_clients_and_average(records):
    folder = records.add("fedmid", task={"ones": 2})
    records.add("feddualavg", task={"ones": 2})  # without clients.npz it has no panel
    np.savez(folder / "clients.npz", weights=[[1, 0, 0.001, 0], [0, 1, 0, 0], [0.5, 0.5, 0.0005, 0]])
    (study,) = collect([records.root]).studies
    supports = read_supports(study.of("fedmid")[0])
    assert (supports.client_density, supports.average_density) == (0.25, 0.5)
    figure = draw_curse(study, supports_of(choose(study), []))
    (axis,) = figure.axes
    drawn = np.asarray(axis.images[0].get_array())
    assert [label.get_text() for label in axis.get_yticklabels()] == ["truth", "2 clients", "average"]
    assert drawn[0].tolist() == [1, 1, 0, 0]  # the task's two ones
    assert drawn[3:5].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert drawn[-1].tolist() == [1, 1, 0, 0]
    assert len(axis.lines) == 3  # around each client only: truth and average look like one row each
    assert axis.get_title("left") == "FedMiD: clients 25% non-zero, average 50%"
    assert "|w| > 0.01" in figure.get_suptitle()
    table = supports_table({"fedmid": supports})
    assert table["share_of_clients"].tolist() == [0.5, 0.5, 0, 0]


DAMAGED = {
    "nothing": b"",
    "nonsense": b"nonsense",
    "no weights": npz(bias=np.zeros((3, 2))),
    "text": npz(weights=np.array([["a", "b"], ["c", "d"]])),
    "one model": npz(weights=np.zeros((1, 2))),
    "a number": npz(weights=np.array(3.0)),
    "no columns": npz(weights=np.zeros((3, 0))),
    "a bomb": npz(compressed=True, weights=np.zeros((2, 2**16))),
    "half": npz(weights=np.zeros((3, 50)))[:-200],
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_client_models_are_listed_and_others_drawn(records, monkeypatch, content):
    monkeypatch.setattr("fco_cli.reporting.records.runs.MAX_TABLE_BYTES", 2**20)
    np.savez(records.add("fedmid") / "clients.npz", weights=np.eye(3))
    damaged = records.add("feddualavg")
    (damaged / "clients.npz").write_bytes(content)
    (study,) = collect([records.root]).studies
    problems: list = []
    assert list(supports_of(choose(study), problems)) == ["fedmid"]
    ((folder, reason),) = problems
    assert folder == damaged
    assert reason.startswith("clients.npz: ")


def test_without_clients_there_are_no_supports(records):
    records.add()
    (study,) = collect([records.root]).studies
    assert supports_of(choose(study), []) == {}
