"""Masked runs in which sites vanish: the sums of the others give the bits of a simulation without these messages."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.sites import Sites
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Refusal, preset
from fco_cli.federation.site.audit import read_entries
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site
from fco_cli.simulation.clients import ClientsLost
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.record import Record
from tests.federation.coordinator.test_clients import task_of

BITS = 40
TEN = [f"site{k}" for k in range(10)]
FOUR = TEN[:4]
Missing = dict[int, list[str]]  # round from 1 -> sites whose responses to the round do not arrive


class Line:
    """Link to sites in this process; the sites in `silent` receive requests of these kinds, but no response arrives."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites
        self.silent: dict[str, list[str]] = {}
        self.sent: list[bytes] = []
        self.dead: list[str] = []
        self.looks = 0

    def request(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        self.sent.append(content)
        kind = Message.unpacked(content).kind
        responses = {name: self.sites[name].handle(content) for name in sites}
        return {name: one for name, one in responses.items() if name not in self.silent.get(kind, ())}

    def last_contacts(self) -> dict[str, float]:
        self.looks += 1
        return {name: 0.0 if name in self.dead else float(self.looks) for name in self.sites}

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def ten_hospitals(tmp_path_factory) -> Path:
    folder, random, parts = tmp_path_factory.mktemp("ten"), np.random.default_rng(1), []
    for k, name in enumerate(TEN):
        x = random.normal(random.normal(0, 0.5, 4), 1, (20 + 3 * k, 4))
        parts.append((x, (x @ [1.0, -1, 0.5, 0] > 0).astype(float), np.full(len(x), name)))
        np.savez(folder / f"{name}.npz", x=parts[-1][0], y=parts[-1][1], client=parts[-1][2])
    for names in (TEN, FOUR):
        x, y, client = (np.concatenate(column) for column in zip(*parts[: len(names)], strict=True))
        np.savez(folder / f"pooled{len(names)}.npz", x=x, y=y, client=client)
    return folder


@pytest.fixture
def both(ten_hospitals, signed, psi_for, make_hparams, tmp_path) -> Callable[..., tuple[Setup, Setup, Varying]]:
    """Return setups of a fixed-point run of ten or four sites: simulated, and with masks."""

    def make(algo: str, names: list[str], min_sites: int, **changes: Any):
        def connect() -> Line:
            sites = {}
            for name in names:
                (tmp_path / name).mkdir(exist_ok=True)
                file = SiteFile(ten_hospitals / f"{name}.npz", name, Columns(), tmp_path / name / "secret")
                sites[name] = Site(name, file, preset("demo"), tmp_path / name, signed(name))
            return Line(sites)

        algorithm, psi = all_algorithms()[algo](), psi_for(algo)
        hparams = make_hparams(clients_per_round=len(names), batch_size=4, fraction_bits=BITS, **changes)
        path = str(ten_hospitals / f"pooled{len(names)}.npz")
        task = task_of(ten_hospitals, "logistic", path=path, exact_sums=True)
        remote = CustomAtSites.of(task, Sites(names, connect, mask_bits=BITS, min_sites=min_sites))
        setups = []
        for one in (task, remote):
            problem = one.data(0, hparams.dtype).to_problem(psi, weighting=hparams.weighting)
            setups.append(Setup(one, problem, hparams, 0, algorithm))
        setups[1] = dataclasses.replace(setups[1], clients=remote_clients(setups[1].problem.data, hparams, 0))
        rates = np.array([0.05, 0.02], hparams.dtype)
        return *setups, Varying.from_rates(algorithm, psi, rates, np.ones_like(rates))

    return make


def simulate(setup: Setup, varying: Varying, names: list[str], missing: Missing) -> list[Job]:
    """Simulate the run without the messages that are missing."""
    jobs = [Job(), Job()]
    simulation = Simulation(setup, jobs, varying)
    sample = simulation.sampler.cohort

    def cohort(round_index: int):
        made = sample(round_index)
        absent = np.isin(made.clients, [names.index(name) for name in missing.get(round_index + 1, [])])
        return dataclasses.replace(made, absent=absent)

    simulation.sampler.cohort = cohort
    while simulation.advance():
        pass
    return jobs


def federate(setup: Setup, varying: Varying, missing: Missing, kinds: tuple[str, ...]) -> list[Job]:
    """Run between sites and save every round; those missing in it do not answer requests of these kinds."""
    jobs = [Job(), Job()]
    simulation, connection = Simulation(setup, jobs, varying), setup.task.connection
    while True:
        connection.link.silent = dict.fromkeys(kinds, missing.get(simulation.round + 1, []))
        connection.group.next_try = 0.0
        if not simulation.advance():
            return jobs
        simulation.snapshot()


def assert_same(simulated: list[Job], made: list[Job], missing: Missing, incomplete: Missing | None = None) -> None:
    """Compare models and counters, and metrics of the rounds in which no site is missing (default: `missing`)."""
    for one, other in zip(simulated, made, strict=True):
        np.testing.assert_array_equal(one.model, other.model)
        np.testing.assert_array_equal(one.counters, other.counters)
        assert other.missing == {done: tuple(names) for done, names in missing.items()}
        complete = [done not in (incomplete or missing) for done in one.history["round"]]
        for name in ("train_loss", "kkt_residual", "validation_loss"):
            ours, theirs = (np.array(job.history[name])[complete] for job in (one, other))
            np.testing.assert_allclose(ours, theirs, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("algo", "kinds"),
    [
        ("zhj", ("train", "unmask", "offer", "evaluate")),
        ("feddualavg", ("unmask", "offer")),
        pytest.param("feddualavg", ("train", "unmask", "offer", "evaluate"), marks=pytest.mark.ci),
        pytest.param("zhj", ("unmask", "offer"), marks=pytest.mark.ci),
        pytest.param("feddualavg", ("train",), marks=pytest.mark.ci),
        pytest.param("zhj", ("train",), marks=pytest.mark.ci),
    ],
)
def test_three_of_ten_sites_vanish(both, algo, kinds):
    """They vanish before their response or after it; from the next round on, those that answer again take part.

    A response that was received counts, also if its site does not answer later: it is missing in no round.
    """
    local, remote, varying = both(algo, TEN, 7, rounds=4, weighting="examples")
    missing = {2: TEN[3:6], 3: [TEN[0], TEN[9]]}
    received = missing if "train" in kinds else {}
    made = federate(remote, varying, missing, kinds)
    assert_same(simulate(local, varying, TEN, received), made, received, incomplete=missing)


def test_one_of_four_sites_vanishes_for_ever(both, caplog):
    local, remote, varying = both("feddualavg", FOUR, 3, rounds=4)
    missing = {2: [FOUR[1]], 3: [FOUR[1]], 4: [FOUR[1]]}
    with caplog.at_level(logging.WARNING):
        made = federate(remote, varying, missing, ("train", "unmask", "offer", "evaluate"))
    assert_same(simulate(local, varying, FOUR, missing), made, missing)
    assert "site1: no response in round 2; the round continues without it" in caplog.text
    history = made[0].history
    assert np.isfinite(history["train_loss"]).all()
    assert 0 < history["validation_accuracy"][-1] <= 1


def test_metrics_without_a_site_are_those_of_the_others(both, psi_for):
    _, remote, varying = both("feddualavg", FOUR, 3, rounds=2, weighting="examples")
    made = federate(remote, varying, {2: [FOUR[3]]}, ("train", "unmask", "offer", "evaluate"))
    sites, w = remote.task.connection.link.sites, made[0].model[None]
    rows = [sites[name].data.fits[0].rows().training for name in FOUR[:3]]
    scores = [part.x @ w[0, :-1] + w[0, -1] for part in rows]
    losses = [np.logaddexp(0, -np.where(part.y > 0, 1, -1) * one) for part, one in zip(rows, scores, strict=True)]
    np.testing.assert_allclose(made[0].history["train_loss"][-1], np.concatenate(losses).mean(), atol=1e-9)


def test_a_killed_site_that_joins_again(both, monkeypatch):
    """A new session starts at a checkpoint; no round is repeated."""
    monkeypatch.setattr("fco_cli.federation.coordinator.masked.LOOK_SECONDS", 0.0)
    local, remote, varying = both("feddualavg", FOUR, 3, rounds=6)
    jobs, connection = [Job(), Job()], remote.task.connection
    simulation = Simulation(remote, jobs, varying)
    link = connection.link
    link.silent = {kind: [FOUR[1]] for kind in ("train", "unmask", "offer", "evaluate")}
    link.dead = [FOUR[1]]
    for _ in range(3):
        simulation.advance()
        simulation.snapshot()
        simulation.confirm_saved()
    link.dead = []
    simulation.confirm_saved()
    with pytest.raises(ClientsLost, match=r"^site1 joined again$"):
        simulation.confirm_saved()
    simulation = Simulation(remote, jobs, varying)
    assert connection.link is not link
    while simulation.advance():
        pass
    missing = {done: [FOUR[1]] for done in (1, 2, 3)}
    assert_same(simulate(local, varying, FOUR, missing), jobs, missing)


def test_below_the_threshold_the_round_is_repeated(both):
    local, remote, varying = both("zhj", FOUR, 3, rounds=3)
    jobs = [Job(), Job()]
    simulation = Simulation(remote, jobs, varying)
    simulation.advance()
    saved = [dataclasses.replace(job, history=copy.deepcopy(job.history)) for job in simulation.snapshot()]
    remote.task.connection.link.silent = {"train": FOUR[:2]}
    line = "no response from site0, site1; a masked sum needs 3 of 4 sites"
    with pytest.raises(ClientsLost, match=f"^{line}$"):
        simulation.advance()
    simulation = Simulation(remote, saved, varying)
    while simulation.advance():
        pass
    assert_same(simulate(local, varying, FOUR, {}), saved, {})


def test_a_site_that_missed_a_stack_rejoins(both):
    """A job that diverges changes the stack while a site is away."""
    local, remote, varying = both("feddualavg", FOUR, 3, rounds=6)
    varying = dataclasses.replace(varying, client_lr=np.array([0.01, 1e300]))
    missing: Missing = {done: [FOUR[2]] for done in (1, 2, 3)}
    simulated = simulate(local, varying, FOUR, missing)
    assert simulated[1].diverged is not None
    made = federate(remote, varying, missing, ("train", "unmask", "offer", "evaluate", "stack"))
    np.testing.assert_array_equal(simulated[0].model, made[0].model)
    assert made[1].diverged == simulated[1].diverged
    assert made[0].missing == {done: tuple(names) for done, names in missing.items()}


def test_the_record_names_the_missing_sites(both, tmp_path):
    """Also after the run was resumed from its checkpoint."""
    _, remote, varying = both("feddualavg", FOUR, 3, rounds=2)
    (job, _) = made = federate(remote, varying, {1: [FOUR[0]]}, ("train", "unmask", "evaluate"))
    record = Record(tmp_path)
    job.state = {"z": np.zeros(3)}
    record.save_checkpoint(job, "code")
    assert record.checkpoint("code").missing == {1: (FOUR[0],)}
    record.finish(made[0], remote.problem.layout, {})
    assert json.loads((tmp_path / "result.json").read_text())["missing"] == {"1": [FOUR[0]]}


class TestWeights:
    """Weights that do not follow from the agreed numbers of rows are refused and audited."""

    def refused(self, both, change: Callable[[str, dict[str, Any]], None], reason: str) -> None:
        _, remote, varying = both("fedavg", FOUR, 3, rounds=1)
        connection = remote.task.connection
        exchange = connection.exchange

        def changed(kind, head, *rest, **options):
            head = copy.deepcopy(head)
            change(kind, head)
            return exchange(kind, head, *rest, **options)

        connection.exchange = changed
        with pytest.raises(UserError, match=f"^site0: .*{reason}") as caught:
            federate(remote, varying, {}, ())
        assert "\n" not in str(caught.value)
        site = connection.link.sites["site0"]
        *_, last = read_entries(site.audit.path.read_text())
        assert last.outcome.startswith("refused: ")
        assert reason in last.outcome

    def test_a_round_of_one_site(self, both):
        def change(kind, head):
            if kind == "train":
                head["factors"] = {name: [float(name == "site2")] * 2 for name in FOUR}

        self.refused(both, change, "weights: not those that follow from the agreed numbers of rows")

    def test_an_evaluation_of_one_site(self, both):
        def change(kind, head):
            if kind == "evaluate":
                head["fits"][0]["weights"] = {name: float(name == "site2") for name in FOUR}

        self.refused(both, change, "weights: not those that follow from the agreed numbers of rows")

    def test_equal_weights_in_a_session_by_rows(self, both):
        """A request without weights has equal weights."""
        _, remote, varying = both("fedavg", FOUR, 3, rounds=1, weighting="examples")
        federate(remote, varying, {}, ())
        site = remote.task.connection.link.sites["site0"]
        assert site.data.weightings == {"examples"}
        with pytest.raises(Refusal, match="weights: not those that follow"):
            site.data.agreed.fits[0].check_weights("training", None)

    def test_a_round_without_factors(self, both):
        self.refused(both, lambda kind, head: head.update(factors=None) if kind == "train" else None, "no factors")

    def test_another_weighting_later_in_the_session(self, both):
        """Equal weights are those of this run; weights by rows would be a second equation for each site's numbers."""

        def change(kind, head):
            if kind == "train":
                rows = {name: 20 + 3 * k for k, name in enumerate(FOUR)}
                head["factors"] = {name: [count / sum(rows.values())] * 2 for name, count in rows.items()}

        self.refused(both, change, "weights: not those that follow")

    def test_false_numbers_of_rows(self, both):
        def change(kind, head):
            if kind == "apply":
                head["rows"][0]["training"]["site0"] += 1

        _, remote, _ = both("fedavg", FOUR, 3, rounds=1)
        with pytest.raises(
            UserError, match=r"^site0: rows: the site has \d+ rows of the part training, not the announced"
        ):
            self._apply_again(remote.task.connection, change)

    def test_other_numbers_for_other_sites(self, both):
        """A site that receives other numbers has another digest than the masked requests."""
        _, remote, _ = both("fedavg", FOUR, 3, rounds=1)
        with pytest.raises(UserError, match="rows: other numbers of rows were agreed on"):
            self._apply_again(
                remote.task.connection, lambda kind, head: head["rows"][0]["training"].update(site1=1, site2=1, site3=1)
            )

    def _apply_again(self, connection: Sites, change: Callable[[str, dict[str, Any]], None]) -> None:
        head = copy.deepcopy(dict(connection.agreement.requests)["apply"])
        change("apply", head)
        connection.exchange("apply", head, {}, ["site0"])


class TestPreparation:
    """Statistics of columns, counts for medians and the largest curvature are sums over the sites too."""

    def connection(self, folder: Path, signed, masked: bool) -> Sites:
        def connect() -> Line:
            sites = {}
            for name in FOUR:
                file = SiteFile(folder / f"{name}.csv", name, Columns(), folder / f"{name}.secret")
                (folder / name).mkdir(exist_ok=True)
                sites[name] = Site(name, file, preset("demo", masks=masked), folder / name, signed(name))
            return Line(sites)

        return Sites(FOUR, connect, mask_bits=BITS if masked else None)

    @pytest.fixture
    def tasks(self, tmp_path, signed) -> tuple[CustomAtSites, CustomAtSites]:
        """Return a task of tables with missing values and categories, without and with masks."""
        random, pooled = np.random.default_rng(4), []
        for k, name in enumerate(FOUR):
            rows = [
                f"{random.normal():.3f},{1e6 + random.normal():.3f},{random.choice(['1', '2.5', ''])},"
                f"{random.choice(['red', 'blue', f'hue{k}', ''])},{i % 2}"
                for i in range(20 + 3 * k)
            ]
            (tmp_path / f"{name}.csv").write_text("\n".join(["age,offset,size,color,y", *rows]))
            pooled += [f"{name},{row}" for row in rows]
        (tmp_path / "pooled.csv").write_text("\n".join(["client,age,offset,size,color,y", *pooled]))
        task = task_of(tmp_path, "logistic", path="", fill="median", exact_sums=True, min_count=5)
        plain, masked = (CustomAtSites.of(task, self.connection(tmp_path, signed, masked)) for masked in (False, True))
        return plain, masked

    def test_medians(self, tasks):
        one, other = (task.data(0, "float64").description.preparation for task in tasks)
        assert one == other
        counts = [content for content in tasks[1].connection.link.sent if Message.unpacked(content).kind == "count"]
        assert counts
        assert all(Message.unpacked(content).head["offers"].keys() == set(FOUR) for content in counts)

    @pytest.mark.parametrize("fill", ["mean", "median"])
    def test_it_is_bitwise_that_of_the_simulation(self, tasks, tmp_path, fill):
        simulated = task_of(
            tmp_path, "logistic", path=str(tmp_path / "pooled.csv"), fill=fill, exact_sums=True, min_count=5
        )
        remote = [dataclasses.replace(task, fill=fill) for task in tasks]
        for one, task in zip(remote, tasks, strict=True):
            one.__dict__["sites"] = task.connection
        expected = simulated.data(0, "float64").description.preparation
        assert "color=other" in expected.features
        for task in remote:
            assert (
                task.data(0, "float64").description.preparation.as_json()
                == dataclasses.replace(expected, table=Columns()).as_json()
            )

    def test_the_coordinator_receives_sums_only(self, tasks, monkeypatch):
        """A site's response to `prepare` has names and numbers of rows; its sums differ with every request."""
        answers: list[Message] = []
        handle = Site.handle

        def recorded(site: Site, content: bytes) -> bytes:
            response = handle(site, content)
            answers.append(Message.unpacked(response))
            return response

        monkeypatch.setattr(Site, "handle", recorded)
        tasks[1].data(0, "float64")
        tasks[1].data(0, "float64")  # again, in the same session
        prepared = [one for one in answers if one.kind == "prepare"]
        assert len(prepared) == 2 * len(FOUR)
        assert all(
            fit["summary"] is None and fit["categories"]["color"] for one in prepared for fit in one.head["fits"]
        )
        sums = [one.arrays for one in answers if one.kind == "summarize"]
        assert len(sums) == 4 * len(FOUR)
        words = [one["exact.0"].tobytes() for one in sums]
        assert len(set(words)) == len(words)
        for one in sums:
            ones = np.unpackbits(one["exact.0"].view(np.uint8)).mean()
            assert 0.45 < ones < 0.55  # uniform, although the numbers themselves are mostly zero bits

    def test_a_site_does_not_send_its_own_statistics(self, tasks):
        connection = tasks[1].connection
        tasks[1].data(0, "float64")
        head = dict(connection.agreement.requests)["prepare"]
        with pytest.raises(UserError, match="site0: masks: this site's own statistics of columns requested"):
            connection.exchange("prepare", head | {"exact": False}, {}, ["site0"])

    def test_a_policy_can_require_masks(self, tasks):
        link = tasks[1].connection.connect()
        plain = Sites(FOUR, lambda: link)
        for exact in (False, True):
            task = CustomAtSites.of(dataclasses.replace(tasks[0], exact_sums=exact), plain)
            with pytest.raises(UserError, match="site0: the site's policy requires masks"):
                task.data(0, "float64")
            plain.disconnect()
            link = tasks[1].connection.connect()

    def test_masked_numbers_are_counted(self, tasks):
        """Two sums of 3 numbers by column, and one cell per category, each number a quarter."""
        tasks[1].data(0, "float64")
        ledger = tasks[1].connection.link.sites["site0"].disclosure.ledger.read()
        columns, cells, counts, edges = 4, 6, 8, 16
        assert ledger.numbers == (2 * 3 * columns + cells + counts * columns * edges) / len(FOUR)

    def test_values_out_of_range_are_refused_in_one_line(self, tasks, tmp_path):
        table = tmp_path / "site2.csv"
        table.write_text(table.read_text().replace(",1,", ",1e170,", 1))
        line = r"^column 'size': its values are too large to be standardized; change its unit, or drop it \(drop\)$"
        for task in tasks:
            with pytest.raises(UserError, match=line):
                task.data(0, "float64")

    def test_the_largest_curvature(self, tasks):
        exact, rounded = (task.data(0, "float64").training.smoothness(0, 4) for task in tasks)
        assert exact <= rounded <= 1.05 * exact

    def test_a_site_is_missing(self, tasks):
        data = tasks[1].data(0, "float64").training
        tasks[1].connection.link.silent = {"smoothness": ["site2"]}
        with pytest.raises(ClientsLost, match="no response from site2"):
            data.smoothness(0, 4)
