"""Paths between sites: folds, models and choice equal the simulation's."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fco_cli.commands.federation_demo import Loopback
from fco_cli.config import PathRun
from fco_cli.errors import UserError
from fco_cli.federation import settings
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.policy import preset
from fco_cli.federation.site.audit import read_entries
from fco_cli.federation.site.evaluation import SiteEvaluator
from fco_cli.path import working_set
from fco_cli.path.record import run_path
from fco_cli.path.select import Selection, select
from fco_cli.problem.data import FoldAssignment, HeldOut
from fco_cli.simulation.process import Stop
from tests.federation.coordinator.test_clients import NAMES, task_of

FEW = [
    "path.strengths=2", "path.folds=2", "path.ratio=0.2", "path.tolerance=0.2", "hparams.tolerance=0.1",
    "hparams.client_lr=0.1", "path.algo=fista",
]  # fmt: skip


@pytest.fixture(scope="module")
def composed(path_run) -> Callable[..., PathRun]:
    return lambda *overrides: path_run(*FEW, *overrides)


@pytest.fixture
def at_sites(composed, hospitals, make_sites, monkeypatch) -> Callable[..., PathRun]:
    """Return a function that composes a run between sites in this process."""

    def make(loss: str, *overrides: str, **options: object) -> PathRun:
        sites = make_sites(hospitals(loss), **options)
        monkeypatch.setattr(settings, "_connection", lambda *_: sites)
        where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]")
        return composed(f"task.loss={loss}", *where, *overrides)

    return make


@pytest.fixture
def both(composed, at_sites, hospitals) -> Callable[..., tuple[Selection, Selection]]:
    def make(loss: str, *overrides: str) -> tuple[Selection, Selection]:
        local = composed(f"task.loss={loss}", f"task.path={hospitals(loss) / 'pooled.npz'}", *overrides)
        remote = at_sites(loss, *overrides)
        return tuple(select(run, run.path, lambda: None) for run in (local, remote))  # type: ignore[return-value]

    return make


@pytest.mark.parametrize("by", ["rows", pytest.param("each_client", marks=pytest.mark.ci)])
def test_a_path_equals_the_simulation(both, by):
    local, remote = both(
        "logistic", f"path.by={by}", "path.subsamples=1", "task.test=rows", "hparams.weighting=examples"
    )
    assert local.chosen == remote.chosen
    np.testing.assert_array_equal(local.values, remote.values)
    np.testing.assert_array_equal(local.path.models, remote.path.models)
    np.testing.assert_array_equal(local.refitted.models, remote.refitted.models)
    np.testing.assert_array_equal(local.curve.mean, remote.curve.mean)
    np.testing.assert_array_equal(local.stability.frequency, remote.stability.frequency)
    for ours, theirs in zip([*local.clients, local.tests["min"]], [*remote.clients, remote.tests["min"]], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if name in ("loss", "loss_error", "observed"):
                np.testing.assert_allclose(theirs[name], value, rtol=1e-9, err_msg=name)
            elif name in ("auc", "predicted"):  # 512 bins
                np.testing.assert_allclose(theirs[name], value, atol=0.01, err_msg=name)
            elif name in ("rows", "client", "choice"):
                assert theirs[name] == value
    assert [bin["rows"] for bin in local.bins] == [bin["rows"] for bin in remote.bins]


@pytest.mark.ci
def test_with_masks(composed, at_sites, hospitals, signed):
    """The fixed-point simulation chooses the same model; metrics are those of all sites together."""
    overrides = ("hparams.fraction_bits=40", "path.by=rows", "task.test=rows")
    local = composed("task.loss=logistic", f"task.path={hospitals('logistic') / 'pooled.npz'}", *overrides)
    all_credentials = {name: signed(name) for name in NAMES}
    remote = at_sites("logistic", "federation.masks=true", *overrides, all_credentials=all_credentials, mask_bits=40)
    one, other = (select(run, run.path, lambda: None) for run in (local, remote))
    assert one.chosen == other.chosen
    np.testing.assert_allclose(one.refitted.models, other.refitted.models, atol=1e-9)
    assert [line["client"] for line in other.clients] == ["all clients"] * 2
    for ours, theirs in ((one.clients[0], other.clients[0]), (one.tests["min"], other.tests["min"])):
        assert ours["rows"] == theirs["rows"]
        np.testing.assert_allclose(theirs["loss"], ours["loss"], atol=1e-9)
        np.testing.assert_allclose(theirs["loss_error"], ours["loss_error"], atol=1e-6)
    remote = at_sites("logistic", *overrides, "path.by=each_client", all_credentials=all_credentials, mask_bits=40)
    with pytest.raises(UserError, match=r"^federation.masks: got True, must be false: some sites have no rows"):
        select(remote, remote.path, lambda: None)


@pytest.mark.ci
@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_other_losses(both, loss):
    """A simulation sums squares as a matrix product, a site by rows: results agree up to rounding."""
    local, remote = both(loss)
    assert local.chosen == remote.chosen
    if loss == "softmax":
        np.testing.assert_array_equal(local.refitted.models, remote.refitted.models)
    np.testing.assert_allclose(local.refitted.models, remote.refitted.models, rtol=1e-9, atol=1e-10)
    for ours, theirs in zip(local.clients, remote.clients, strict=True):
        assert ours.keys() == theirs.keys()
        for name in set(ours) - {"client", "choice"}:
            np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-6, err_msg=name)


@pytest.mark.ci
def test_cox(both, at_sites, tmp_path):
    """Sites count pairs of rows within a fold; the simulation also compares rows of a client in different folds."""
    local, remote = both("cox", "task.test=rows")
    assert local.chosen == remote.chosen
    np.testing.assert_array_equal(local.refitted.models, remote.refitted.models)
    for ours, theirs in zip([*local.clients, local.tests["min"]], [*remote.clients, remote.tests["min"]], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["rows"] == theirs["rows"]
        assert 0.5 < theirs["concordance"] <= 1
    assert local.tests == remote.tests  # pairs of rows of one client
    result = run_path(at_sites("cox", f"output_dir={tmp_path}"), Stop())
    assert result["status"] == "finished"


def test_cox_with_masks(at_sites, signed):
    all_credentials = {name: signed(name) for name in NAMES}
    overrides = ("federation.masks=true", "hparams.fraction_bits=40", "path.by=rows", "task.test=rows")
    masked = select_at(at_sites("cox", *overrides, all_credentials=all_credentials, mask_bits=40))
    plain = select_at(at_sites("cox", *overrides[1:]))
    for one, other in ((masked.clients[0], plain.clients[0]), (masked.tests["min"], plain.tests["min"])):
        assert one == other


def select_at(run: PathRun) -> Selection:
    return select(run, run.path, lambda: None)


@pytest.mark.parametrize(
    ("algo", "lost_request"), [("prox_newton", 9), pytest.param("fista", 80, marks=pytest.mark.ci)]
)
def test_a_path_resumes_after_a_lost_site(at_sites, tmp_path, algo, lost_request):
    """A lost site ends the connection; finished parts are kept, and results are bitwise those of an undisturbed run."""
    folders = []
    for calm in (True, False):
        run = at_sites("logistic", f"path.algo={algo}", f"output_dir={tmp_path}/{calm}")
        sites, connect, sent = run.task.connection, run.task.connection.connect, iter(range(10**6))

        def connected(connect=connect, calm=calm, sent=sent):
            link = connect()
            send = link.request

            def losing(names, content, timeout):
                lost = not calm and next(sent) == lost_request
                return {} if lost else send(names, content, timeout)

            link.request = losing
            return link

        sites.connect = connected
        sites.disconnect()
        assert run_path(run, Stop())["status"] == "finished"
        folders.append(run.folder)
    for name in ("path.csv", "clients.csv", "min/model.npz"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


@pytest.fixture(scope="module")
def real_sites(tmp_path_factory, hospitals) -> Iterator[Loopback]:
    """Start a coordinator and three sites as processes."""
    pytest.importorskip("nvflare")
    data = {name: hospitals("logistic") / f"{name}.npz" for name in NAMES}
    with Loopback(tmp_path_factory.mktemp("parties"), data) as made:
        made.up()
        yield made


@pytest.fixture
def fco_run(real_sites, tmp_path) -> Callable[[str], list[str]]:
    """Return a function that returns the arguments of a path between the real sites."""

    def make(output: str) -> list[str]:
        home, sites = real_sites.home("coordinator"), ",".join(NAMES)
        where = ["federation=flare", f"federation.home={home}", f"federation.sites=[{sites}]", "federation.timeout=5"]
        return ["experiment=path", "task.loss=logistic", *EXACT, *where, f"output_dir={tmp_path / output}"]

    return make


INTERRUPTED = """
import os, pathlib, signal, sys, time
from fco_cli.commands.run import main
from fco_cli.path import method, solve

action, folder, rounds = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)), iter(range(10**6))
made, solve.STORE_SECONDS = method.evaluator, 0.0

def interrupted(bits):
    evaluate = made(bits)
    def round(requests):
        if next(rounds) == 4:
            if action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            (folder / "paused").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)
        return evaluate(requests)
    return round

method.evaluator = interrupted
main()
"""


def record_of(folder: Path) -> Path:
    (result,) = folder.rglob("result.json")
    return result.parent


def hessians(federation: Loopback) -> int:
    entries = read_entries((federation.home("north") / "audit.jsonl").read_text())
    return sum(entry.kind == "hessian" and entry.outcome == "answered" for entry in entries)


@pytest.mark.ci
@pytest.mark.parametrize("killed", ["fco-run", "north", "coordinator"])
def test_a_party_is_killed_inside_a_path_with_hessians(real_sites, fco_run, at_sites, hospitals, tmp_path, killed):
    """The fifth round is the first one after SIGKILL; the path resumes there, with the bits of the simulation."""
    action = "kill" if killed == "fco-run" else "pause"
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, action, tmp_path, *fco_run("killed")]) as analyst:
        if killed == "fco-run":
            assert analyst.wait(120) == -signal.SIGKILL
            before = hessians(real_sites)
            subprocess.run([sys.executable, "-m", "fco_cli.commands.run", *fco_run("killed")], check=True, timeout=300)
        else:
            real_sites.wait((tmp_path / "paused").exists, "four rounds")
            before = hessians(real_sites)
            real_sites.stop(killed)
            start = (lambda: real_sites.join("north")) if killed == "north" else real_sites.serve
            start()
            (tmp_path / "go").touch()
            assert analyst.wait(300) == 0
    after = hessians(real_sites) - before
    overrides = [*fco_run("simulated")[:2], *EXACT, f"task.path={hospitals('logistic') / 'pooled.npz'}"]
    command = [sys.executable, "-m", "fco_cli.commands.run", *overrides, f"output_dir={tmp_path}/simulated"]
    subprocess.run(command, check=True)
    ours, theirs = record_of(tmp_path / "killed"), record_of(tmp_path / "simulated")
    for name in ("path.csv", "path.npz", "min/model.npz", "1se/model.npz"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    undisturbed = at_sites("logistic", *EXACT)
    kinds = counted(undisturbed)
    select_at(undisturbed)
    # The first of the four rounds uses answers about the null model, which only fco-run has lost.
    repeated = after - (kinds["hessian"] - 3)
    assert repeated == 0 if killed == "fco-run" else repeated < 0


def test_a_fold_of_too_few_rows_is_refused_by_the_site(at_sites):
    """The difference of two sums would disclose so few rows."""
    run = at_sites("logistic", "path.folds=3", policy=preset("demo", min_rows=7))
    reason = r"^south: a part \(held-out rows\) of 6 rows requested; .* allows 7 or more .* use fewer path.folds"
    with pytest.raises(UserError, match=reason):
        select(run, run.path, lambda: None)


def counted(run: PathRun) -> Counter[str]:
    """Return a counter of the kinds of requests that a run between sites will send."""
    sites, kinds = run.task.connection, Counter[str]()
    connect = sites.connect

    def connected():
        link = connect()
        send = link.request

        def request(names, content, timeout):
            kinds[Message.unpacked(content).kind] += 1
            return send(names, content, timeout)

        link.request = request
        return link

    sites.connect = connected
    sites.disconnect()
    return kinds


EXACT = (
    "path.algo=auto",
    "path.tolerance=null",
    "hparams.tolerance=1e-8",
    "path.strengths=8",
    "path.folds=3",
    "path.ratio=0.01",
)


@pytest.mark.parametrize(("loss", "method", "most"), [("logistic", "prox_newton", 25), ("squared", "moments", 5)])
@pytest.mark.parametrize("by", ["rows", "each_client"])
def test_hessians_make_a_path_exact_in_few_round_trips(composed, at_sites, hospitals, loss, method, most, by):
    """Models equal the simulation's bitwise; all folds, the choice, refits and lines by site are included."""
    overrides = (f"task.loss={loss}", f"path.by={by}", *EXACT)
    local = select_at(composed(*overrides, f"task.path={hospitals(loss) / 'pooled.npz'}"))
    run = at_sites(loss, *overrides)
    kinds = counted(run)
    remote = select_at(run)
    assert remote.method.name == method
    assert sum(kinds.values()) <= most, kinds
    assert set(kinds) == {"describe", "prepare", "apply", "hessian", "evaluate"}
    assert local.chosen == remote.chosen
    assert remote.refitted.converged.all()
    np.testing.assert_array_equal(local.values, remote.values)
    np.testing.assert_array_equal(local.path.models, remote.path.models)
    np.testing.assert_array_equal(local.refitted.models, remote.refitted.models)
    np.testing.assert_array_equal(local.path.train_losses, remote.path.train_losses)
    np.testing.assert_array_equal(local.curve.mean, remote.curve.mean)
    assert [line["client"] for line in remote.clients] == ["all clients", *NAMES] * 2


def test_a_working_set_gives_the_bits_of_the_simulation(composed, at_sites, hospitals, monkeypatch):
    """Sites send gradients of the working set, and complete ones where it may have to grow."""
    monkeypatch.setattr(working_set, "FULL_HESSIAN", 3)
    monkeypatch.setattr(working_set, "EXTENSION", 1)
    widths = set()
    quadratic = SiteEvaluator._quadratic

    def counting(self, models, data, w, weight):
        arrays = quadratic(self, models, data, w, weight)
        widths.add((models.narrow, arrays["gradient"].shape[1] < w.shape[1]))
        return arrays

    monkeypatch.setattr(SiteEvaluator, "_quadratic", counting)
    overrides = ("task.loss=logistic", *EXACT, "path.strengths=4", "path.folds=2")
    local = select_at(composed(*overrides, f"task.path={hospitals('logistic') / 'pooled.npz'}"))
    remote = select_at(at_sites("logistic", *overrides))
    assert (True, True) in widths
    assert (False, False) in widths
    assert remote.path.converged.all()
    np.testing.assert_array_equal(local.path.models, remote.path.models)
    np.testing.assert_array_equal(local.path.residuals, remote.path.residuals)
    np.testing.assert_array_equal(local.curve.mean, remote.curve.mean)


@pytest.mark.ci
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_hessians_with_masks(composed, at_sites, hospitals, signed, loss):
    """Sums of Hessians in fixed point give the models of the fixed-point simulation, bitwise."""
    overrides = (f"task.loss={loss}", "hparams.fraction_bits=40", *EXACT, "hparams.tolerance=1e-6")
    local = select_at(composed(*overrides, f"task.path={hospitals(loss) / 'pooled.npz'}"))
    credentials = {name: signed(name) for name in NAMES}
    run = at_sites(loss, "federation.masks=true", *overrides, all_credentials=credentials, mask_bits=40)
    kinds = counted(run)
    remote = select_at(run)
    assert sum(kinds.values()) <= 30, kinds
    assert kinds["hessian"] > 0
    assert local.chosen == remote.chosen
    np.testing.assert_array_equal(local.values, remote.values)
    np.testing.assert_array_equal(local.path.models, remote.path.models)
    np.testing.assert_array_equal(local.refitted.models, remote.refitted.models)
    np.testing.assert_array_equal(local.curve.mean, remote.curve.mean)


def test_many_fits_are_prepared_in_order(hospitals, make_sites, signed):
    """Masked sums of more than ten fits: each fit has its own preparation, bitwise that of exact sums."""
    folder = hospitals("logistic")
    task = replace(task_of(folder, "logistic", holdout="none"), exact_sums=True)
    folds = [HeldOut(FoldAssignment(2, "rows", True, 0, draw), 0) for draw in range(12)]
    credentials = {name: signed(name) for name in NAMES}
    remote = CustomAtSites.of(task, make_sites(folder, all_credentials=credentials, mask_bits=40))
    data = task.data(0, "float64")
    pairs = zip(task.split_folds(data, 0, "float64", folds), remote.split_folds(data, 0, "float64", folds), strict=True)
    means = set()
    for k, (ours, theirs) in enumerate(pairs):
        assert ours.description.preparation.as_json() == theirs.description.preparation.as_json()
        assert theirs.training.fit == k
        means.add(theirs.description.preparation.mean[0])
    assert len(means) == 12


WITHOUT_HESSIANS = ["describe", "prepare", "apply", "evaluate", "stack", "train", "smoothness"]


@pytest.mark.parametrize("limit", [{"max_parameters_per_row": 0.1}, {"messages": WITHOUT_HESSIANS}])
def test_sites_that_refuse_hessians_send_gradients(at_sites, limit):
    """The site says so with its numbers of rows; the path continues with gradients."""
    run = at_sites("logistic", "path.algo=auto", policy=preset("demo", **limit))
    kinds = counted(run)
    made = select_at(run)
    assert made.method.name == "quasi_newton"
    assert re.search(r"sends Hessians of at most \d parameters \(site.yaml\), the model has 6", made.method.reason)
    assert kinds["hessian"] == 0
    assert kinds["train"] > 0
    with pytest.raises(UserError, match=r"^path.algo: got 'prox_newton', must be another for this problem: east sends"):
        select_at(at_sites("logistic", "path.algo=prox_newton", policy=preset("demo", **limit)))


def test_message_sizes_do_not_depend_on_the_rows(at_sites):
    run, largest = at_sites("logistic", "path.subsamples=1"), 0
    link = None

    def seen(name: str, response: bytes) -> bytes:
        nonlocal largest
        largest = max(largest, *(values.shape[-1] for values in Message.unpacked(response).arrays.values()), 0)
        return response

    sites = run.task.connection
    connect = sites.connect

    def connected():
        nonlocal link
        link = connect()
        link.changed = seen
        return link

    sites.connect = connected
    sites.disconnect()
    select(run, run.path, lambda: None)
    assert largest == 1024  # the bins of a histogram; the model has 6 numbers, the largest site 31 rows
