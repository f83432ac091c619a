"""Malformed messages: a site or a coordinator refuses them with one line or computes a valid result.

Real runs between sites in this process are recorded. Every request to a site and every response to the coordinator is
mutated; the receiver is the real one. `make test` tries some mutations, `make test-all` thousands.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.config import Run
from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError
from fco_cli.federation import settings
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.sites import Sites
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.federation.policy import preset
from fco_cli.federation.response_schema import RESPONSES
from fco_cli.federation.site.audit import read_entries
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site
from fco_cli.path.select import Selection, select
from fco_cli.problem.data import QuadraticQuestion
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.evaluate import evaluate_test
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import DamagedMemory
from tests.federation.conftest import NAMES
from tests.federation.coordinator.test_clients import task_of
from tests.federation.mutations import mutations
from tests.federation.test_path import FEW

VICTIM = "north"
OCCURRENCES = 2  # of similar requests
FEW_RESPONSES, FEW_REQUESTS = 16, 40  # of a run, in `make test`
ON_DISK = ("save", "load", "forget")


class Diverted(Exception):
    """The run sends other requests than the recorded one; its results so far are checked."""


@dataclass
class Exchange:
    """Request and its responses."""

    content: bytes
    responses: dict[str, bytes]

    @property
    def kind(self) -> str:
        return Message.unpacked(self.content).kind


@dataclass
class Recorded:
    """Link to sites that records, or replays a recording with one response replaced."""

    sites: Callable[[], dict[str, Site]] | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    before: Callable[[dict[str, Site], list[str], bytes], None] = lambda *_: None  # every request
    replaced: tuple[int, bytes] | None = None
    at: int = 0

    def connect(self) -> Recorded:
        if self.sites is not None:
            self.now = self.sites()
        return self

    def request(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        if self.sites is not None:
            self.before(self.now, sites, content)
            responses = {name: self.now[name].handle(content) for name in sites}
            self.exchanges.append(Exchange(content, responses))
            return responses
        exchange = self.exchanges[self.at] if self.at < len(self.exchanges) else None
        if exchange is None or exchange.kind != Message.unpacked(content).kind or list(exchange.responses) != sites:
            raise Diverted
        responses = dict(exchange.responses)
        if self.replaced is not None and self.replaced[0] == self.at:
            responses[VICTIM] = self.replaced[1]
        self.at += 1
        return responses

    def last_contacts(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


@dataclass(frozen=True)
class Scenario:
    """Run between sites, with the folder and options of the sites."""

    run: Callable[[Sites, list[Any]], None]  # appends its results
    folder: Path
    ending: str = "npz"
    options: dict[str, Any] = field(default_factory=dict)
    all_credentials: dict[str, Any] = field(default_factory=dict)

    def sites(self, home: Path) -> dict[str, Site]:
        made = {}
        for name in NAMES:
            (home / name).mkdir(parents=True, exist_ok=True)
            file = SiteFile(self.folder / f"{name}.{self.ending}", name, Columns(), home / name / "secret")
            made[name] = Site(name, file, preset("demo"), home / name, self.all_credentials.get(name))
        return made

    def connection(self, link: Recorded) -> Sites:
        return Sites(NAMES, link.connect, **self.options)


def simulated(algo: str, loss: str, resumed: bool = False, rate: bool = False, **changes: Any):
    """Return two rounds of a stack of two jobs, with held-out and test rows."""

    def run(sites: Sites, made: list[Any]) -> None:
        task = CustomAtSites.of(task_of(Path(), loss, test="rows", **changes), sites)
        algorithm, psi = all_algorithms()[algo](), L1(strength=0.05)
        bits = sites.mask_bits
        hparams = Hparams(0.05, 0.7, 2, 3, 100 if loss == "cox" else 4, 1, weighting="examples", fraction_bits=bits)
        problem = task.data(0, "float64").to_problem(psi, weighting="examples")
        if rate:
            made.append(problem.data.smoothness(0, 4))
        setup = Setup(task, problem, hparams, 0, algorithm, clients=remote_clients(problem.data, hparams, 0))
        varying = Varying.from_rates(algorithm, psi, np.array([0.05, 0.02]), np.ones(2))
        jobs = [Job(), Job()]
        made.extend(jobs)
        simulation = Simulation(setup, jobs, varying)
        simulation.advance()
        if resumed:
            saved = [dataclasses.replace(job) for job in simulation.snapshot()]
            sites.disconnect()
            simulation = Simulation(setup, saved, varying)
            made.extend(saved)
        while simulation.advance():
            pass
        for job in jobs:
            if job.model is not None and job.diverged is None:
                made.append(evaluate_test(task, problem, job.model))

    return run


def tables(folder: Path) -> Path:
    """Write CSV files with categories and missing values."""
    random = np.random.default_rng(5)
    for name, rows in zip(NAMES, (18, 22, 19), strict=True):
        lines = [f"{random.normal():.3f},{random.choice(['red', 'blue', ''])},{k % 2}" for k in range(rows)]
        (folder / f"{name}.csv").write_text("\n".join(["age,color,y", *lines]))
    return folder


def named_classes(folder: Path) -> Path:
    """Write files with three named classes."""
    random = np.random.default_rng(0)
    for name in NAMES:
        y = np.arange(21) % 3
        x = random.normal(size=(21, 3))
        np.savez(folder / f"{name}.npz", x=x, y=y, client=np.full(21, name), classes=["maybe", "no", "yes"])
    return folder


@pytest.fixture(scope="module")
def scenarios(hospitals, signed, path_run, tmp_path_factory) -> dict[str, Scenario]:
    def path(sites: Sites, made: list[Any]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(settings, "_connection", lambda *_: sites)
            where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]", "task.test=rows")
            run: Run = path_run(*FEW, "task.loss=cox", *where)
        made.append(select(run, run.path, lambda: None))

    def hessians(sites: Sites, made: list[Any]) -> None:
        task = CustomAtSites.of(task_of(Path(), "logistic", holdout="none"), sites)
        data, _, folds = task.with_folds(0, "float64", 2, "rows")
        problems = [one.to_problem(L1(strength=0.1)) for one in (data, *folds)]
        w = np.random.default_rng(0).normal(size=(3, 6))
        asked = [
            QuadraticQuestion(one.data, one.weights, w, k, None if k else np.array([0, 5]))  # type: ignore[arg-type]
            for k, one in enumerate(problems)
        ]
        made.extend({"test_loss": float(one.value.max())} for one in data.training.curvature(asked))

    all_credentials = {name: signed(name) for name in NAMES}
    exact = {"standardize": False, "fill": "refuse"}
    return {
        "memory": Scenario(simulated("zhj", "logistic", resumed=True), hospitals("logistic")),
        "personal": Scenario(simulated("ditto", "logistic"), hospitals("logistic")),
        "smoothness": Scenario(simulated("feddualavg", "squared", rate=True), hospitals("squared")),
        "poisson": Scenario(simulated("fedmid", "poisson"), hospitals("poisson")),
        "tables": Scenario(simulated("fedmid", "logistic", fill="median"), tables(tmp_path_factory.mktemp("t")), "csv"),
        "classes": Scenario(simulated("fedmid", "softmax"), named_classes(tmp_path_factory.mktemp("w"))),
        "masks": Scenario(
            simulated("feddualavg", "logistic"),
            hospitals("logistic"),
            options={"mask_bits": 40},
            all_credentials=all_credentials,
        ),
        "masked tables": Scenario(
            simulated("fedmid", "logistic", fill="median"), tables(tmp_path_factory.mktemp("m")), "csv",
            options={"mask_bits": 40}, all_credentials=all_credentials,
        ),
        "noise": Scenario(
            simulated("feddualavg", "logistic", **exact), hospitals("logistic"),
            options={"noise": EvaluationNoise(1.0, 0.01)},
        ),
        "cox": Scenario(simulated("fedmid", "cox"), hospitals("cox")),
        "path": Scenario(path, hospitals("cox")),
        "hessians": Scenario(hessians, hospitals("logistic")),
        "masked hessians": Scenario(
            hessians, hospitals("logistic"), options={"mask_bits": 40}, all_credentials=all_credentials
        ),
    }  # fmt: skip


SCENARIOS = (
    "memory",
    "personal",
    "smoothness",
    "poisson",
    "tables",
    "classes",
    "masks",
    "masked tables",
    "noise",
    "cox",
    "path",
    "hessians",
    "masked hessians",
)


@pytest.fixture(scope="module")
def recordings(scenarios, tmp_path_factory) -> Callable[[str], list[Exchange]]:
    made: dict[str, list[Exchange]] = {}

    def record(name: str) -> list[Exchange]:
        if name not in made:
            home = tmp_path_factory.mktemp(name)
            link = Recorded(lambda: scenarios[name].sites(home))
            outcome: list[Any] = []
            scenarios[name].run(scenarios[name].connection(link), outcome)
            check_valid(outcome, name)
            made[name] = link.exchanges
        return made[name]

    return record


def chosen(exchanges: list[Exchange]) -> list[int]:
    """Return the first `OCCURRENCES` of requests with equal kind, keys and arrays."""
    seen: dict[Any, int] = {}
    places = []
    for place, exchange in enumerate(exchanges):
        message = Message.unpacked(exchange.content)
        alike = (message.kind, *sorted(message.arrays), *(str(message.head.get(key)) for key in ("part", "spread")))
        seen[alike] = seen.get(alike, 0) + 1
        if seen[alike] <= OCCURRENCES and VICTIM in exchange.responses:
            places.append(place)
    return places


def sample(items: list[Any], count: int, random: np.random.Generator) -> list[Any]:
    if count >= len(items):
        return items
    return [items[index] for index in sorted(random.choice(len(items), count, replace=False))]


def shares(places: list[int], total: int) -> dict[int, int]:
    """Return the number of mutations of each message for a total."""
    counts = np.bincount(np.linspace(0, len(places) - 1, total).round().astype(int), minlength=len(places))
    return dict(zip(places, counts.tolist(), strict=True))


# Responses at the coordinator.


def check_valid(made: list[Any], name: str, warned: bool = False) -> None:
    """Check the results of a run: finite, shares from 0 to 1, and diverged jobs marked.

    A loss on held-out rows may be infinite if a warning names the site.
    """
    noise = name == "noise"
    for one in made:
        if isinstance(one, Job):
            if one.diverged is None and one.model is not None:
                assert np.isfinite(one.model).all()
            for metric in one.history:
                check_numbers(metric, one.history[metric], noise, warned)
        elif isinstance(one, dict):
            for metric, value in one.items():
                check_numbers(metric, [value], noise, warned)
        elif isinstance(one, Selection):
            check_numbers("cv_loss", one.curve.mean, noise, warned)
            check_numbers("cv_loss", one.curve.mean[list(one.chosen.values())], noise)
            assert np.isfinite(one.refitted.models).all()
            for line in [*one.clients, *one.tests.values()]:
                for metric, value in line.items():
                    if isinstance(value, float):
                        check_numbers(metric, [value], noise, warned)
        else:
            check_numbers("loss", [one], noise)


def check_numbers(metric: str, values: Any, noise: bool, warned: bool = False) -> None:
    values = np.asarray(values, float)
    if warned and metric.startswith(("cv_", "validation_", "test_", "own_", "loss", "rmse", "r2", "d2", "auc", "con")):
        values = values[np.isfinite(values)]
    assert np.isfinite(values).all(), (metric, values)
    if not noise and metric.endswith(("accuracy", "auc", "concordance")):
        assert (values >= 0).all(), (metric, values)
        assert (values <= 1).all(), (metric, values)
    if not noise and metric.endswith("loss"):
        assert (values >= 0).all(), (metric, values)
    if noise and metric.endswith("accuracy"):
        assert (np.abs(values) <= 100).all(), (metric, values)


class Warnings(logging.Handler):
    """Capture log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def coordinator_outcome(scenario: Scenario, name: str, exchanges: list[Exchange], place: int, content: bytes) -> str:
    """Run with one response replaced; return a description of the failure, or None."""
    link, warnings = Recorded(exchanges=exchanges, replaced=(place, content)), Warnings()
    made: list[Any] = []
    logging.getLogger("fco_cli.federation").addHandler(warnings)
    try:
        scenario.run(scenario.connection(link), made)
    except (UserError, DamagedMemory) as problem:
        line = str(problem)
        return "" if line and "\n" not in line and line.isprintable() else f"not one line: {line!r}"
    except Diverted:
        pass
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    finally:
        logging.getLogger("fco_cli.federation").removeHandler(warnings)
    try:
        check_valid(made, name, any(f"site {VICTIM!r}: the loss" in line for line in warnings.lines))
    except AssertionError as problem:
        return f"recorded: {str(problem).splitlines()[0]}"
    return ""


def fuzz_answers(scenarios, recordings, name: str, total: int) -> None:
    exchanges, failures, tried = recordings(name), [], 0
    for place, count in shares(chosen(exchanges), total).items():
        random = np.random.default_rng([zlib.crc32(name.encode()), place])
        candidates = mutations(exchanges[place].responses[VICTIM], random)
        for what, content in sample(candidates, count, random):
            tried += 1
            if outcome := coordinator_outcome(scenarios[name], name, exchanges, place, content):
                failures.append(f"{exchanges[place].kind} ({place}), {what}: {outcome}")
    print(f"{name}: {tried} responses, {len(failures)} failures")
    assert not failures, f"{len(failures)} of {tried}:\n" + "\n".join(failures[:60])


@pytest.mark.parametrize("name", SCENARIOS)
def test_responses(scenarios, recordings, name):
    fuzz_answers(scenarios, recordings, name, 4 if name == "path" else FEW_RESPONSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_thousands_of_responses(scenarios, recordings, name):
    fuzz_answers(scenarios, recordings, name, 100 if name == "path" else 600)


# Requests at a site.


class Snapshot:
    """Copy of a site's state, restored after a mutated request that was answered."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder, self.copy = site, folder / "memory", folder / "before"
        self.parts = (site, site.data, site.trainer, site.trainer.memory, site.masks)
        self.state = [
            {key: dict(value) if isinstance(value, dict) else value for key, value in vars(part).items()}
            for part in self.parts
        ]
        self.rows = dict(site.trainer.memory.rows)

    def save_disk(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        if self.folder.exists():
            shutil.copytree(self.folder, self.copy)

    def restore_disk(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.copy.exists():
            shutil.copytree(self.copy, self.folder)

    def restore(self) -> None:
        for part, state in zip(self.parts, self.state, strict=True):
            vars(part).clear()
            vars(part).update(state)
        self.site.trainer.memory.rows = dict(self.rows)


def site_outcome(site: Site, content: bytes) -> str:
    """Send a request; return a description of the failure, or None."""
    try:
        response = Message.unpacked(site.handle(content))
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    *_, last = read_entries(site.audit.path.read_text())
    if response.kind == "refused":
        reason = response.head["reason"]
        audits = last.outcome == f"refused: {reason}" and reason and reason.isprintable()
        return "" if audits else f"{last.outcome} ({reason})"
    if last.outcome != "answered":
        return f"answered, but the audit file says {last.outcome}"
    try:
        response.head_as(RESPONSES[response.kind])
    except Exception as problem:
        return f"an invalid response: {problem}"
    return ""


def fuzz_questions(scenarios, recordings, name: str, home: Path, total: int) -> None:
    failures: list[str] = []
    counts, place, tried = shares(chosen(recordings(name)), total), -1, 0

    def before(sites: dict[str, Site], who: list[str], content: bytes) -> None:
        nonlocal place, tried
        place += 1
        if place not in counts:
            return
        site, kind = sites[VICTIM], Message.unpacked(content).kind
        random = np.random.default_rng([zlib.crc32(name.encode()), place])
        snapshot = Snapshot(site, home / VICTIM)
        if kind in ON_DISK:
            snapshot.save_disk()
        for what, changed in sample(mutations(content, random), counts[place], random):
            tried += 1
            if outcome := site_outcome(site, changed):
                failures.append(f"{kind} ({place}), {what}: {outcome}")
            snapshot.restore()
        if kind in ON_DISK:
            snapshot.restore_disk()

    link = Recorded(lambda: scenarios[name].sites(home), before=before)
    made: list[Any] = []
    scenarios[name].run(scenarios[name].connection(link), made)
    check_valid(made, name)
    print(f"{name}: {tried} requests, {len(failures)} failures")
    assert not failures, f"{len(failures)} of {tried}:\n" + "\n".join(failures[:60])


@pytest.mark.parametrize("name", SCENARIOS)
def test_requests(scenarios, recordings, name, tmp_path):
    fuzz_questions(scenarios, recordings, name, tmp_path, FEW_REQUESTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_thousands_of_requests(scenarios, recordings, name, tmp_path):
    fuzz_questions(scenarios, recordings, name, tmp_path, 2000)
