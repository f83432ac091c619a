"""The path between sites: the simulation's folds, models and choice, from what sites response by sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fco_cli.config import Run
from fco_cli.errors import UserError
from fco_cli.federation import settings
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Policy
from fco_cli.path.record import recorded_selection
from fco_cli.path.select import Selection, select
from fco_cli.simulation.stop import Stop
from tests.federation.coordinator.test_clients import NAMES

FEW = [
    "path.strengths=2", "path.folds=2", "path.ratio=0.2", "path.tolerance=0.2", "hparams.tolerance=0.1",
    "hparams.client_lr=0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def composed(path_run) -> Callable[..., Run]:
    return lambda *words: path_run(*FEW, *words)


@pytest.fixture
def at_sites(composed, hospitals, make_sites, monkeypatch) -> Callable[..., Run]:
    """The run of these words between sites in this process."""

    def make(loss: str, *words: str, **options: object) -> Run:
        sites = make_sites(hospitals(loss), **options)
        monkeypatch.setattr(settings, "_connection", lambda *_: sites)
        where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]")
        return composed(f"task.loss={loss}", *where, *words)

    return make


@pytest.fixture
def both(composed, at_sites, hospitals) -> Callable[..., tuple[Selection, Selection]]:
    def make(loss: str, *words: str) -> tuple[Selection, Selection]:
        here = composed(f"task.loss={loss}", f"task.path={hospitals(loss) / 'pooled.npz'}", *words)
        apart = at_sites(loss, *words)
        return tuple(select(run, run.path, lambda: None) for run in (here, apart))  # type: ignore[return-value]

    return make


@pytest.mark.parametrize("by", ["rows", "each_client"])
def test_the_bits_are_the_simulations(both, by):
    here, apart = both("logistic", f"path.by={by}", "path.subsamples=1", "task.test=rows", "hparams.weighting=examples")
    assert here.chosen == apart.chosen
    np.testing.assert_array_equal(here.values, apart.values)
    np.testing.assert_array_equal(here.path.models, apart.path.models)
    np.testing.assert_array_equal(here.refitted.models, apart.refitted.models)
    np.testing.assert_array_equal(here.curve.mean, apart.curve.mean)
    np.testing.assert_array_equal(here.stability.frequency, apart.stability.frequency)
    for ours, theirs in zip([*here.clients, here.tests["min"]], [*apart.clients, apart.tests["min"]], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if name in ("loss", "loss_error", "observed"):
                np.testing.assert_allclose(theirs[name], value, rtol=1e-9, err_msg=name)
            elif name in ("auc", "predicted"):  # 512 bins
                np.testing.assert_allclose(theirs[name], value, atol=0.01, err_msg=name)
            elif name in ("rows", "client", "choice"):
                assert theirs[name] == value
    assert [bin["rows"] for bin in here.bins] == [bin["rows"] for bin in apart.bins]


@pytest.mark.ci
def test_through_masks(composed, at_sites, hospitals, signed):
    """The simulation in fixed point chooses the same, and what is told of the sites is told of all together."""
    words = ("hparams.fraction_bits=40", "path.by=rows", "task.test=rows")
    here = composed("task.loss=logistic", f"task.path={hospitals('logistic') / 'pooled.npz'}", *words)
    all_credentials = {name: signed(name) for name in NAMES}
    apart = at_sites("logistic", "federation.masks=true", *words, all_credentials=all_credentials, mask_bits=40)
    one, other = (select(run, run.path, lambda: None) for run in (here, apart))
    assert one.chosen == other.chosen
    np.testing.assert_allclose(one.refitted.models, other.refitted.models, atol=1e-9)
    assert [line["client"] for line in other.clients] == ["all clients"] * 2
    for ours, theirs in ((one.clients[0], other.clients[0]), (one.tests["min"], other.tests["min"])):
        assert ours["rows"] == theirs["rows"]
        np.testing.assert_allclose(theirs["loss"], ours["loss"], atol=1e-9)
        np.testing.assert_allclose(theirs["loss_error"], ours["loss_error"], atol=1e-6)
    apart = at_sites("logistic", *words, "path.by=each_client", all_credentials=all_credentials, mask_bits=40)
    with pytest.raises(UserError, match=r"^federation.masks: got True, must be false here: only some sites"):
        select(apart, apart.path, lambda: None)


@pytest.mark.ci
@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_other_losses(both, loss):
    """In a simulation squares are summed up as a matrix, at a site by rows: the digits agree, not the bits."""
    here, apart = both(loss)
    assert here.chosen == apart.chosen
    if loss == "softmax":
        np.testing.assert_array_equal(here.refitted.models, apart.refitted.models)
    np.testing.assert_allclose(here.refitted.models, apart.refitted.models, rtol=1e-9, atol=1e-10)
    for ours, theirs in zip(here.clients, apart.clients, strict=True):
        assert ours.keys() == theirs.keys()
        for name in set(ours) - {"client", "choice"}:
            np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-6, err_msg=name)


def test_cox(both, at_sites, tmp_path):
    """Sites send pairs of their own rows within a fold; the simulation's lines compare rows of all folds."""
    here, apart = both("cox", "task.test=rows")
    assert here.chosen == apart.chosen
    np.testing.assert_array_equal(here.refitted.models, apart.refitted.models)
    for ours, theirs in zip([*here.clients, here.tests["min"]], [*apart.clients, apart.tests["min"]], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["rows"] == theirs["rows"]
        assert 0.5 < theirs["concordance"] <= 1
    result = recorded_selection(at_sites("cox", f"output_dir={tmp_path}"), Stop())
    assert result["status"] == "finished"


def test_cox_through_masks(at_sites, signed):
    all_credentials = {name: signed(name) for name in NAMES}
    words = ("federation.masks=true", "hparams.fraction_bits=40", "path.by=rows", "task.test=rows")
    masked = select_at(at_sites("cox", *words, all_credentials=all_credentials, mask_bits=40))
    plain = select_at(at_sites("cox", *words[1:]))
    for one, other in ((masked.clients[0], plain.clients[0]), (masked.tests["min"], plain.tests["min"])):
        assert one == other


def select_at(run: Run) -> Selection:
    return select(run, run.path, lambda: None)


def test_a_path_goes_on_where_it_was_when_a_site_comes_back(at_sites, tmp_path):
    """A lost site ends the connection; the folds that are done are kept, and the bits are those of no loss."""
    folders = []
    for calm in (True, False):
        run = at_sites("logistic", f"output_dir={tmp_path}/{calm}")
        sites, connect, asked = run.task.connection, run.task.connection.connect, iter(range(10**6))

        def connected(connect=connect, calm=calm, asked=asked):
            link = connect()
            send = link.request

            def losing(who, content, timeout):
                lost = not calm and next(asked) == 80
                return {} if lost else ask(who, content, timeout)

            link.request = losing
            return link

        sites.connect = connected
        sites.disconnect()
        assert recorded_selection(run, Stop())["status"] == "finished"
        folders.append(run.folder)
    for name in ("path.csv", "clients.csv", "min/model.npz"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_a_fold_of_too_few_rows_is_refused_by_the_site(at_sites):
    """The difference of two sums would tell of so few."""
    run = at_sites("logistic", "path.folds=3", policy=Policy(min_rows=6))
    with pytest.raises(UserError, match=r"^south: too few rows would be held out, [45] \(min_rows: 6\); take fewer"):
        select(run, run.path, lambda: None)


def test_nothing_that_is_asked_or_answered_grows_with_the_rows(at_sites):
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
