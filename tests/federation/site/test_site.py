"""Refusals of a site, each with a one-line reason and an audit entry, and of invalid responses by the coordinator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.data.preparation import Recipe, agree
from fco_cli.data.statistics import Summary
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import RemoteClients
from fco_cli.federation.coordinator.clients import remote_clients as remote_clients_factory
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Policy, preset
from fco_cli.federation.site.data import sent_task
from fco_cli.federation.site.site import Site
from fco_cli.problem.data import QuadraticQuestion
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.engine import Setup
from tests.federation.coordinator.test_clients import NAMES, run, task_of

SESSION = "f" * 32


@pytest.fixture
def open_site(make_site, hospitals) -> Callable[..., Callable[..., dict[str, Any]]]:
    """Return a function that sends handwritten messages to a site."""

    def make(policy: Policy | None = None, loss: str = "logistic"):
        site: Site = make_site("north", hospitals(loss), policy)
        number = iter(range(1, 1000))

        def send(kind: str, head: dict | None = None, session: str = SESSION, **arrays: np.ndarray) -> Message:
            content = Message(kind, {"session": session, "number": next(number), **(head or {})}, arrays).packed()
            send.last = content
            return Message.unpacked(site.handle(content))

        send.site = site
        return send

    return make


def prepared(send, **changes):
    task = sent_task(task_of(Path(), "logistic", standardize=False, holdout="none"))
    send("describe")
    head = {"task": task, "sites": NAMES, "seed": 0, "dtype": "float64", "classes": None, "summary": True}
    return send("prepare", head | {"folds": [None]} | changes)


def start_stack(send, **changes):
    summary = Summary.from_plain(prepared(send).head["fits"][0]["summary"])
    agreed = agree(summary, Recipe(standardize=False)).as_json()
    send("apply", {"preparations": [agreed], "outputs": 1, "start": None})
    head = {
        "fit": 0, "stack": 1, "jobs": 1, "algo": {"name": "zhj"}, "regularizer": {"name": "l1", "strength": 0.1},
        "mirror": {"name": "euclidean"}, "transform": {"name": "none"},
    }  # fmt: skip
    numbers = {"client_lr": np.ones(1), "server_lr": np.ones(1), "psi": np.ones((1, 1)), "options": np.zeros((1, 1))}
    numbers["transform"] = np.zeros((1, 1))
    return send("stack", head | changes, **numbers)


TRAIN = {
    "stack": 1, "tokens": ["0" * 32], "outcomes": {}, "round": 0, "seed": 0, "batch_size": 4, "local_epochs": 1,
    "steps": None, "last_batch": "keep",
}  # fmt: skip
MODELS = {"fit": 0, "jobs": 1, "weights": None}
EVALUATE = {"fits": [MODELS], "part": "training", "gradient": True, "sums": True, "spread": False}
DECLARED = b'{"kind": "describe", "head": {}, "arrays": {"w": ["float64", 1000000000]}}'
BILLION = len(DECLARED).to_bytes(8, "big") + DECLARED
STATE = {"z.0": np.zeros((1, 6)), "c.0": np.zeros((1, 6)), "t.0": np.zeros(1)}


def refused(response: Message, reason: str) -> None:
    assert response.kind == "refused"
    assert reason in response.head["reason"]
    assert not response.arrays


def last_outcome(send) -> str:
    return json.loads((send.site.audit.path).read_text().splitlines()[-1])["outcome"]


def test_an_honest_request_is_answered(open_site):
    send = open_site()
    assert start_stack(send).kind == "stack"
    response = send("train", TRAIN, **STATE)
    assert response.kind == "train"
    assert all(values.shape == (1, 6) for values in response.arrays.values())
    assert last_outcome(send) == "answered"


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, b"\xff" * 100, (2**40).to_bytes(8, "big") + b"{}", b"\0" * 7 + b"\x02[]", b"\0" * 7 + b"\x02{}"],
)
def test_bytes_that_are_not_a_message(open_site, content):
    send = open_site()
    refused(Message.unpacked(send.site.handle(content)), "head")
    assert last_outcome(send).startswith("refused")


def test_declared_sizes_are_not_allocated(open_site):
    refused(Message.unpacked(open_site().site.handle(BILLION)), "declares more numbers than it contains")


@pytest.mark.parametrize("dtype", ["object", "<U5", "complex128", "float64]", None, 3])
def test_arrays_of_other_types(open_site, dtype):
    text = json.dumps({"kind": "describe", "head": {}, "arrays": {"w": [dtype, 1]}}).encode()
    refused(Message.unpacked(open_site().site.handle(len(text).to_bytes(8, "big") + text + b"\0" * 64)), "invalid type")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"z.0": np.zeros((1, 7))}, "z.0 is float64 [1, 7], must be float64 [1, 6]"),
        ({"z.0": np.zeros((1, 6), np.float32)}, "z.0 is float32 [1, 6], must be float64 [1, 6]"),
        ({"z.0": np.zeros((2, 6))}, "must be float64 [1, 6]"),
    ],
)
def test_a_state_of_the_wrong_shape_or_type(open_site, changes, reason):
    send = open_site()
    start_stack(send)
    refused(send("train", TRAIN, **(STATE | changes)), reason)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_state_that_is_not_finite(open_site, value):
    """An honest coordinator removes diverged jobs from the stack."""
    send = open_site()
    start_stack(send)
    refused(send("train", TRAIN, **(STATE | {"z.0": np.full((1, 6), value)})), "the array z.0 is not finite")
    assert send.site.trainer.memory.rows == {}


def test_a_replayed_message(open_site):
    send = open_site()
    send("describe")
    first = send.last
    prepared(send)
    refused(Message.unpacked(send.site.handle(first)), "replayed or out-of-order")
    assert last_outcome(send) == "refused: replayed or out-of-order message"


def test_another_coordinator(open_site):
    send = open_site()
    prepared(send)
    refused(send("evaluate", EVALUATE, session="e" * 32, **{"w.0": np.zeros((1, 6))}), "another coordinator")


@pytest.mark.parametrize("kind", ["shell", "_prepare", "__init__", "rows", ""])
def test_unknown_kinds(open_site, kind):
    refused(open_site()(kind), "unknown kind of message")


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({"path": "/etc/passwd"}, None),  # ignored: a site reads its own file
        ({"loss": "os.system"}, "task.loss"),
        ({"loss": 3}, "task.loss"),
        ({"code": "import os"}, "no such key"),
        ({"standardize": "${oc.env:HOME}"}, "task.standardize"),
    ],
)
def test_tasks_that_a_coordinator_may_not_send(open_site, task, reason):
    send = open_site()
    usual = sent_task(task_of(Path(), "logistic", standardize=False, holdout="none"))
    response = prepared(send, task=usual | task)
    if reason is None:
        assert response.head["fits"][0]["training"] == 31
    else:
        refused(response, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algo": {"name": "subprocess.Popen"}}, "algo.name"),
        ({"algo": {"name": "optimum"}}, "is not a federated algorithm"),
        ({"algo": {"name": "zhj", "local_steps": "x"}}, "no such key"),
        ({"regularizer": {"name": "l1", "strength": -1.0}}, "regularizer.strength"),
        (
            {"regularizer": {"name": "group_lasso", "strength": 1.0, "group_size": 1, "groups": "/etc/passwd"}},
            "mapping",
        ),
        ({"mirror": {"name": "euclid"}}, "mirror.name"),
        ({"transform": {"name": "pickle"}}, "transform.name"),
        ({"plugins": {"algo": "0" * 32}}, "algo: the plug-in's code differs"),
        ({"jobs": 0}, "jobs: expected int >= 1"),
        ({"jobs": 10**9}, "max_numbers"),
    ],
)
def test_stacks_that_are_refused(open_site, changes, reason):
    refused(start_stack(open_site(), **changes), reason)


@pytest.mark.parametrize("token", ["../../../tmp/x", "/etc", "0" * 31, "", "0" * 31 + "/"])
def test_a_path_as_token_is_refused(open_site, token, tmp_path):
    send = open_site()
    start_stack(send)
    refused(
        send("save", {"stack": 1, "tokens": [token], "outcomes": {}, "round": 1}), "tokens[0]: expected str matching"
    )
    refused(send("forget", {"tokens": [token]}), "tokens[0]: expected str matching")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (
            preset("demo", min_rows=40),
            r"a file of 23 rows requested; the site's policy allows 40 or more \(site.yaml: min_rows\)",
        ),
        (preset("demo", losses=["squared"]), "losses: squared"),
        (preset("demo", algorithms=["fedavg"]), "algorithms: fedavg"),
        (preset("demo", regularizers=["l1_ball"]), "regularizers: l1_ball"),
        (preset("demo", messages=["describe", "prepare", "apply", "stack"]), "does not allow evaluate"),
        (
            preset("demo", max_rounds=3),
            r"1 trained models requested; 0 of 3 are left over all runs \(site.yaml: max_rounds\)",
        ),
        (preset("demo", max_evaluations=3), r"0 of 3 are left over all runs \(site.yaml: max_evaluations\)"),
        (preset("demo", max_numbers=5), r"policy allows 5 \(site.yaml: max_numbers\)"),
    ],
)
def test_a_policy_is_enforced_and_reported(hospitals, make_sites, make_hparams, policy, reason):
    folder = hospitals("logistic")

    def whole_run() -> None:
        task = CustomAtSites.of(task_of(folder, "logistic"), make_sites(folder, policy=policy))
        psi, algorithm = L1(strength=0.1), all_algorithms()["zhj"]()
        hparams = make_hparams(rounds=5, clients_per_round=3)
        problem = task.data(0, "float64").to_problem(psi)
        clients = remote_clients_factory(problem.data, hparams, 0)
        rate = np.array([0.1])
        run(
            Setup(task, problem, hparams, 0, algorithm, clients=clients), Varying.from_rates(algorithm, psi, rate, rate)
        )

    with pytest.raises(UserError, match=reason) as caught:
        whole_run()
    assert str(caught.value).startswith(tuple(f"{name}: " for name in NAMES))
    assert "\n" not in str(caught.value)


def test_the_audit_file_has_every_question(open_site):
    send = open_site()
    start_stack(send)
    entries = [json.loads(line) for line in send.site.audit.path.read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["describe", "prepare", "apply", "stack"]
    assert entries[1]["question"]["task"]["loss"] == "logistic"
    assert entries[3]["question"]["arrays"]["psi"] == [[1.0]]
    assert {entry["session"] for entry in entries} == {SESSION}


def test_response_sizes_do_not_depend_on_the_rows(open_site, monkeypatch):
    """The size of a response depends on the model only."""
    send = open_site()
    start_stack(send)
    for response in (send("train", TRAIN, **STATE), send("evaluate", EVALUATE, **{"w.0": np.zeros((1, 6))})):
        assert response.kind != "refused"
        assert all(values.size <= 6 for values in response.arrays.values())


DROPPED = object()


def changing(connect: Callable[[], Any], changed: Callable[[str, bytes], bytes]) -> Callable[[], Any]:
    """Return a function that connects and changes all responses."""

    def connected() -> Any:
        link = connect()
        link.changed = changed
        return link

    return connected


def test_a_path_as_groups_of_a_block_is_refused(open_site):
    group = {"name": "group_lasso", "strength": 1.0, "group_size": 1, "groups": "/etc/passwd"}
    refused(start_stack(open_site(), regularizer={"name": "blockwise", "blocks": {"weights": group}}), "mapping")


@pytest.mark.parametrize("number", [-1.0, np.nan, np.inf])
def test_parameters_of_jobs_are_validated(open_site, number):
    send = open_site()
    start_stack(send)
    head = {
        "fit": 0, "stack": 2, "jobs": 2, "algo": {"name": "zhj"}, "regularizer": {"name": "l1", "strength": 0.1},
        "mirror": {"name": "euclidean"}, "transform": {"name": "none"},
    }  # fmt: skip
    ones, zeros = np.ones(2), np.zeros((2, 1))
    numbers = {"client_lr": ones, "server_lr": ones, "psi": np.array([[1.0], [number]])}
    refused(send("stack", head, **numbers, options=zeros, transform=zeros), "strength" if number < 0 else "psi")


class TestResponses:
    """Validation of responses by the coordinator."""

    @pytest.fixture
    def session(self, hospitals, make_sites, make_hparams, make_algorithm):
        folder = hospitals("logistic")
        task = CustomAtSites.of(task_of(folder, "logistic"), make_sites(folder))
        problem = task.data(0, "float64").to_problem(L1(strength=0.1))
        algorithm = make_algorithm("feddualavg", problem)
        hparams = make_hparams(clients_per_round=3)
        clients = RemoteClients(problem.data, problem, algorithm, 1, hparams, 0)
        return task.connection, clients, algorithm, problem, hparams

    def trained(self, session):
        _, clients, algorithm, problem, hparams = session
        state = algorithm.initial_state(problem.initial_models(algorithm.varying.psi))
        return clients.round(algorithm, state, Sampler(problem.data.sizes, hparams, 0).cohort(0))

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            (np.zeros((1, 7)), "must be float64 [1, 6]"),
            (np.zeros((1, 6), np.float32), "must be float64 [1, 6]"),
            (np.zeros((1, 6), np.int64), "must be float64 [1, 6]"),
            (np.zeros((10**6,)), "must be float64 [1, 6]"),
        ],
    )
    def test_wrong_shape_or_type(self, session, values, reason):
        def changed(name, response):
            message = Message.unpacked(response)
            if name == "north" and message.kind == "train":
                return Message("train", message.head, dict.fromkeys(message.arrays, values)).packed()
            return response

        session[0].link.changed = changed
        with pytest.raises(UserError) as caught:
            self.trained(session)
        assert str(caught.value).startswith("site 'north': invalid response to 'train': ")
        assert reason in str(caught.value)

    @pytest.mark.parametrize("response", [b"", b"x" * 1000, Message("train", {"number": 1}).packed(), BILLION])
    def test_no_response_to_this_request(self, session, response):
        session[0].link.changed = lambda name, own: response if name == "north" else own
        with pytest.raises(UserError, match=r"^site 'north': invalid response to 'train': "):
            self.trained(session)

    @pytest.mark.parametrize(
        ("kind", "key", "value"),
        [
            ("describe", "version", 3), ("describe", "code", None), ("describe", "digest", "../x"),
            ("describe", "names_digest", 5), ("describe", "split", "val"), ("describe", "features", -1),
            ("describe", "names", ["a"]), ("describe", "classes", "yes"), ("describe", "digest", DROPPED),
            ("prepare", "training", -3), ("prepare", "held_out", "7"), ("prepare", "test", 2**62),
            ("prepare", "held_out", DROPPED), ("prepare", "outputs", 0), ("prepare", "outputs", 10**30),
            ("prepare", "outputs", 2), ("prepare", "summary", None), ("prepare", "summary", {"rows": 3}),
            ("prepare", "max_parameters", -1), ("prepare", "fits", []), ("prepare", "fits", DROPPED),
        ],
    )  # fmt: skip
    def test_an_invalid_head(self, hospitals, make_sites, kind, key, value):
        def changed(name, response):
            message = Message.unpacked(response)
            if name == "north" and message.kind == kind:
                owner = message.head if key in message.head else message.head["fits"][0]
                if value is DROPPED:
                    del owner[key]
                else:
                    owner[key] = value
                return Message(kind, message.head).packed()
            return response

        folder = hospitals("logistic")
        sites = make_sites(folder)
        sites.connect = changing(sites.connect, changed)
        with pytest.raises(UserError) as caught:
            CustomAtSites.of(task_of(folder, "logistic"), sites).data(0, "float64")
        assert str(caught.value).startswith(f"site 'north': invalid response to '{kind}': ")
        assert key in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("array", "value"),
        [
            ("gradient", np.nan), ("gradient", np.inf), ("gradient", 1e308), ("value", -1.0), ("value", 1e308),
            ("hits", 6e306), ("hits", 1000.0), ("hits", -1.0), ("hits", 0.5), ("hits", np.nan),
        ],
    )  # fmt: skip
    def test_an_evaluation_out_of_range(self, session, array, value):
        def changed(name, response):
            message = Message.unpacked(response)
            if name == "north" and message.kind == "evaluate":
                arrays = message.arrays | {f"{array}.0": np.full_like(message.arrays[f"{array}.0"], value)}
                return Message("evaluate", message.head, arrays).packed()
            return response

        session[0].link.changed = changed
        with pytest.raises(UserError, match=rf"^site 'north': invalid response to 'evaluate': the array {array}[ .]"):
            session[3].risk(np.zeros((1, 6)))

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda packed: -packed, "hessian must have positive semidefinite matrices"),
            (lambda packed: packed * np.where(np.arange(21) == 1, -1e3, 1), "hessian must have positive semidefinite"),
            (lambda packed: packed * np.nan, "hessian must have numbers up to 1e+150"),
            (lambda packed: packed + 1e200, "hessian must have numbers up to 1e+150"),
            (lambda packed: packed[:, :-1], "hessian.0 is float64 [2, 20], must be float64 [2, 21]"),
            (lambda packed: packed[:1], "hessian.0 is float64 [1, 21], must be float64 [2, 21]"),
        ],
    )
    def test_a_matrix_that_is_no_hessian(self, session, change, reason):
        def changed(name, response):
            message = Message.unpacked(response)
            if name == "north" and message.kind == "hessian":
                arrays = message.arrays | {"hessian.0": change(message.arrays["hessian.0"])}
                return Message("hessian", message.head, arrays).packed()
            return response

        problem, w = session[3], np.random.default_rng(0).normal(size=(2, 6))
        exact = problem.curvature(w)
        assert np.linalg.eigvalsh(exact.hessian).min() >= 0
        session[0].link.changed = changed
        with pytest.raises(UserError) as caught:
            problem.curvature(w)
        assert str(caught.value).startswith("site 'north': invalid response to 'hessian': the array ")
        assert reason in str(caught.value)

    @pytest.mark.parametrize(("columns", "weight"), [([1, 5], 3), ([1, 3], 1)])
    def test_a_narrow_request_that_would_change_the_scores(self, session, columns, weight):
        """A weight outside the columns is not 0, or the columns lack the bias."""
        problem, w = session[3], np.zeros((1, 6))
        w[0, weight] = 1
        asked = QuadraticQuestion(problem.data, problem.weights, w, 1, np.array(columns), True)
        with pytest.raises(UserError, match="narrow: needs one output, the bias as the last column, and zeros"):
            problem.data.curvature([asked])

    def test_a_loss_that_overflows_is_not_recorded_and_warned_about(self, session, caplog):
        """An honest site sends an infinite loss for a diverged model."""

        def changed(name, response):
            message = Message.unpacked(response)
            arrays = message.arrays | {"value.0": np.full(1, np.inf)}
            return Message(message.kind, message.head, arrays).packed() if name == "north" else response

        session[0].link.changed = changed
        assert session[3].risk(np.zeros((1, 6))).value == np.inf
        assert "site 'north': the loss of a model on its training rows is not finite" in caplog.text

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_messages_that_are_not_finite_are_dropped(self, session, value):
        def changed(name, response):
            message = Message.unpacked(response)
            if name == "north" and message.kind == "train":
                arrays = {key: np.full_like(values, value) for key, values in message.arrays.items()}
                return Message("train", message.head, arrays).packed()
            return response

        session[0].link.changed = changed
        made = self.trained(session)
        assert made.dropped.tolist() == [1]
        assert all(np.isfinite(values).all() for values in made.state.values())

    def test_another_version(self, hospitals, make_sites, monkeypatch):
        monkeypatch.setattr("fco_cli.federation.coordinator.sites.code_digest", lambda: "0" * 16)
        sites = make_sites(hospitals("logistic"))
        with pytest.raises(UserError, match=r"east: its fco-cli is .* all parties must install the same"):
            sites.descriptions()

    def test_other_features(self, hospitals, make_sites, tmp_path):
        folder = tmp_path / "data"
        folder.mkdir()
        for name in NAMES:
            arrays = dict(np.load(hospitals("logistic") / f"{name}.npz"))
            arrays["features"] = np.array(["a", "b", "c", "d", "f" if name == "south" else "e"])
            np.savez(folder / f"{name}.npz", **arrays)
        task = CustomAtSites.of(task_of(folder, "logistic"), make_sites(folder))
        with pytest.raises(UserError, match="south: its features differ from those of east"):
            task.data(0, "float64")


def test_labels_are_indices_into_the_union_of_classes(make_sites, tmp_path):
    folder: Path = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, labels in zip(NAMES, (["no", "yes"], ["maybe", "yes"], ["no", "yes"]), strict=True):
        y = np.arange(18) % 2
        np.savez(folder / f"{name}.npz", x=random.normal(size=(18, 3)), y=y, client=np.full(18, name), classes=labels)
    task = CustomAtSites.of(task_of(folder, "softmax"), make_sites(folder))
    made = task.data(0, "float64")
    assert made.description.classes == ["maybe", "no", "yes"]
    assert made.model.widths[-1] == 3
