"""Inference between sites: estimates, covariance matrices and tests equal the simulation's; disclosure rules."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.commands.federation_demo import Loopback
from fco_cli.config import GlmRun
from fco_cli.config.schemas import register
from fco_cli.errors import UserError
from fco_cli.federation import settings
from fco_cli.federation.message import Message
from fco_cli.federation.policy import preset
from fco_cli.inference.record import run_glm
from fco_cli.problem.data import QuadraticQuestion
from fco_cli.simulation.process import Stop
from tests.federation.conftest import NAMES

ROWS = (70, 90, 60)
COARSENED = "times of curves and tests are coarsened: at least 3 events in every interval"
TABLES = ("survival.csv", "baseline.csv", "proportional_hazards.csv", "calibration.csv")
LOSSES = ("logistic", "squared", "poisson", "softmax", "cox")


def labels(loss: str, scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if loss == "logistic":
        return (random.random(len(scores)) < 1 / (1 + np.exp(-scores))).astype(float)
    if loss == "poisson":
        return random.poisson(np.exp(scores)).astype(float)
    if loss == "softmax":
        noise = random.gumbel(size=(len(scores), 3))
        return np.argmax(np.stack([0 * scores, scores, 0.5 - scores]).T + noise, axis=1).astype(float)
    if loss == "cox":
        times, limits = random.exponential(np.exp(-scores)), random.exponential(2, len(scores))
        return np.where(times < limits, times, -limits)
    return scores + random.standard_normal(len(scores))


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that creates the tables of three sites and pooled.npz, for a loss; likelihoods have maxima."""
    made: dict[str, Path] = {}

    def make(loss: str) -> Path:
        if loss not in made:
            folder, random, parts = tmp_path_factory.mktemp(loss), np.random.default_rng(5), []
            for name, rows in zip(NAMES, ROWS, strict=True):
                x = random.normal(random.normal(0, 0.3, 4), 1 + random.random(), (rows, 4))
                y = labels(loss, x @ np.array([0.6, -0.4, 0.2, 0]) + 0.2, random)
                np.savez(folder / f"{name}.npz", x=x, y=y, client=np.full(rows, name))
                parts.append((x, y, np.full(rows, name)))
            x, y, client = (np.concatenate(column) for column in zip(*parts, strict=True))
            np.savez(folder / "pooled.npz", x=x, y=y, client=client)
            made[loss] = folder
        return made[loss]

    return make


@pytest.fixture(scope="module")
def composed() -> Iterator[Callable[..., GlmRun]]:
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        yield lambda *overrides: GlmRun.of(compose("config", overrides=["experiment=glm", *overrides]))


@pytest.fixture
def simulated(composed, hospitals, tmp_path) -> Callable[..., Path]:
    def make(loss: str, *overrides: str) -> Path:
        pooled = hospitals(loss) / "pooled.npz"
        run = composed(f"task.loss={loss}", f"task.path={pooled}", f"output_dir={tmp_path}/simulated", *overrides)
        run_glm(run, Stop())
        return run.folder

    return make


@pytest.fixture
def at_sites(composed, hospitals, make_sites, monkeypatch, tmp_path) -> Callable[..., GlmRun]:
    """Return a function that composes a run between sites in this process."""

    def make(loss: str, *overrides: str, **options: object) -> GlmRun:
        sites = make_sites(hospitals(loss), **options)
        monkeypatch.setattr(settings, "_connection", lambda *_: sites)
        where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]", f"output_dir={tmp_path}/sites")
        return composed(f"task.loss={loss}", *where, *overrides)

    return make


@pytest.fixture
def masked(at_sites, signed) -> Callable[..., GlmRun]:
    def make(loss: str, *overrides: str, **options: object) -> GlmRun:
        credentials = {name: signed(name) for name in NAMES}
        own = ("federation.masks=true", "hparams.fraction_bits=40", *overrides)
        return at_sites(loss, *own, all_credentials=credentials, mask_bits=40, **options)

    return make


def run(one: GlmRun) -> Path:
    run_glm(one, Stop())
    return one.folder


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def matrices_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "covariance.npz") as arrays:
        return dict(arrays)


def assert_same_bytes(one: Path, other: Path, *files: str) -> None:
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def requests(one: GlmRun) -> Counter[tuple[str, tuple[str, ...]]]:
    """Return a counter of the requests that a run will send, by kind and sites."""
    sites, sent = one.task.connection, Counter[tuple[str, tuple[str, ...]]]()
    connect = sites.connect

    def connected():
        link = connect()
        send = link.request

        def request(names, content, timeout):
            sent[Message.unpacked(content).kind, tuple(names)] += 1
            return send(names, content, timeout)

        link.request = request
        return link

    sites.connect = connected
    sites.disconnect()
    return sent


@pytest.mark.parametrize(
    "loss",
    ["logistic", "cox", *(pytest.param(loss, marks=pytest.mark.ci) for loss in ("squared", "poisson", "softmax"))],
)
def test_sites_equal_the_simulation(simulated, at_sites, loss):
    """Coefficients, all covariance matrices, tests of columns, and the sites' own fits are equal in all bits."""
    local, remote = simulated(loss), run(at_sites(loss))
    files = ("covariance.npz", "coefficients.csv", "terms.csv", "clients.csv", "meta.csv", "linear_model.npz")
    assert_same_bytes(local, remote, *files)
    matrices = matrices_of(remote)
    assert list(matrices) == ["estimates", "model", "hc0", "hc1", "cluster"]
    ours, theirs = result(local), result(remote)
    for key in ("deviance", "null_deviance", "test", "terms", "rounds", "rows", "clients", "meta"):
        assert ours[key] == theirs[key], key
    curves = [] if loss != "cox" else [COARSENED]
    assert theirs["notes"] == ours["notes"] + curves
    assert len(theirs["terms"]) == 4


def test_a_debiased_lasso_equals_the_simulation(simulated, at_sites):
    words = ("regularizer=l1", "regularizer.strength=0.03")
    local, remote = simulated("logistic", *words), run(at_sites("logistic", *words))
    assert_same_bytes(local, remote, "covariance.npz", "coefficients.csv")
    assert result(remote)["method"] == "debiased"


@pytest.mark.parametrize("loss", ["logistic", pytest.param("cox", marks=pytest.mark.ci)])
def test_masked_sums_are_those_of_fixed_point(simulated, masked, loss):
    """Masked sums equal the fixed-point simulation in all bits, and exact sums to the precision of 40 bits."""
    words = ("glm.covariance=cluster", "glm.meta=false")
    exact, local = simulated(loss, *words), simulated(loss, *words, "hparams.fraction_bits=40")
    remote = run(masked(loss, *words))
    assert_same_bytes(local, remote, "covariance.npz", "coefficients.csv", "terms.csv")
    ours, theirs = matrices_of(exact), matrices_of(remote)
    assert list(ours) == list(theirs)
    for name in ours:
        assert not np.array_equal(ours[name], theirs[name])
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-7, atol=1e-9, err_msg=name)


def test_masks_hide_the_sites_estimates_and_gradients(masked):
    """There is no meta-analysis; products of the sites' gradients are requested for glm.covariance=cluster only."""
    folder = run(masked("logistic"))
    matrices = matrices_of(folder)
    assert list(matrices) == ["estimates", "model", "hc0", "hc1"]
    reason = "with federation.masks only sums over the sites are known"
    assert f"no meta-analysis (glm.meta=false): {reason}" in result(folder)["notes"]
    policy = preset("demo", share_estimates=False)
    one = masked("logistic", "glm.covariance=cluster", policy=policy)
    refused = r"^east: products of this site's gradient in a masked sum requested; .*share_estimates\); use another"
    with pytest.raises(UserError, match=refused):
        run(one)
    assert not one.folder.exists()


def test_sites_that_share_no_estimates(at_sites):
    """The federated fit needs no request to a single site; one line states why there is no meta-analysis."""
    one = at_sites("logistic", policy=preset("demo", share_estimates=False))
    sent = requests(one)
    folder = run(one)
    assert {names for _, names in sent} == {tuple(NAMES)}
    assert sum(sent.values()) <= 12, sent
    note = "no meta-analysis (glm.meta=false): east shares no estimates of its own (site.yaml: share_estimates)"
    assert note in result(folder)["notes"]
    assert not (folder / "meta.csv").exists()
    problem = one.task.cross_validated().data(0, "float64").to_problem(one.regularizer, weighting="examples")
    rows = problem.training.client(1)
    with pytest.raises(UserError, match=r"^north: estimates from this site's rows alone requested; .*glm.meta=false"):
        rows.curvature([QuadraticQuestion(rows, np.ones(1), np.zeros((1, 5)), 1, None)])


def test_tests_and_robust_errors_can_be_left_out(at_sites):
    full, few = (
        at_sites("logistic", "glm.meta=false", *words) for words in ((), ("glm.tests=false", "glm.robust=false"))
    )
    sizes = []
    for one in (full, few):
        ledger = one.task.connection.connect().sites["east"].disclosure.ledger
        before = ledger.read().numbers
        folder = run(one)
        sizes.append(ledger.read().numbers - before)
    assert list(matrices_of(folder)) == ["estimates", "model"]
    assert result(folder)["terms"] == []
    assert sizes[1] < sizes[0] / 3
    with pytest.raises(UserError, match=r"^glm.covariance: got 'hc1', must be model with glm.robust=false"):
        at_sites("logistic", "glm.robust=false", "glm.covariance=hc1")


def test_a_strict_site(at_sites):
    """A fit without tests is within twice the default budget of numbers; the next one is refused."""
    words, policy = ("glm.tests=false", "glm.meta=false"), preset("strict", max_equations_per_value=1.0)
    assert len(result(run(at_sites("logistic", *words, policy=policy)))["coefficients"]) == 5
    again = at_sites("logistic", *words, "seed=1", policy=policy)
    with pytest.raises(
        UserError, match=r"^south: [\d,.]+ numbers requested; .* over all runs \(site.yaml: max_equations"
    ):
        run(again)


def test_parameters_per_row(at_sites):
    policy = preset("strict", max_parameters_per_row=0.05)
    reason = (
        r"^experiment: got glm, which needs Hessians, but east sends Hessians of at most 3 parameters \(site.yaml\)"
    )
    with pytest.raises(UserError, match=reason):
        run(at_sites("logistic", policy=policy))


def test_wrong_settings(at_sites):
    for words, reason in (
        (("federation.min_sites=2",), r"^federation.min_sites: got 2, must be null with experiment=glm"),
    ):
        with pytest.raises(UserError, match=reason):
            run(at_sites("logistic", *words))


def test_a_lost_site_repeats_one_round(simulated, at_sites):
    """The round is repeated after the connection is back; results are those of an undisturbed run."""
    one = at_sites("logistic")
    sites, connect, sent = one.task.connection, one.task.connection.connect, iter(range(10**6))

    def connected():
        link = connect()
        send = link.request
        link.request = lambda names, content, timeout: {} if next(sent) == 6 else send(names, content, timeout)
        return link

    sites.connect = connected
    sites.disconnect()
    assert_same_bytes(simulated("logistic"), run(one), "covariance.npz", "coefficients.csv", "clients.csv")


@pytest.mark.parametrize(
    "words", [(), pytest.param(("task.cox_ties=efron", "glm.time_transform=log"), marks=pytest.mark.ci)]
)
def test_survival_analysis_equals_the_simulation(simulated, at_sites, words):
    """Curves, hazards, tests, calibration and concordance of the simulation with the sites' smallest cell."""
    words = ("glm.horizon=0.8", *words)
    local, remote = simulated("cox", "glm.min_cell=3", *words), run(at_sites("cox", *words))
    assert_same_bytes(local, remote, *TABLES)
    ours, theirs = result(local), result(remote)
    assert ours["concordance"] == theirs["concordance"]
    assert [line["client"] for line in theirs["concordance"]] == ["all clients", *NAMES]
    assert theirs["notes"][-2:] == [
        COARSENED,
        "calibration and concordance refer to the rows of the fit, which favors the model",
    ]
    for name in ("survival.png", "calibration.png"):
        assert (remote / name).read_bytes()[:4] == b"\x89PNG"
    with (remote / "survival.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert min(int(line["events"]) for line in lines) >= 3
    assert {line["client"] for line in lines} == set(NAMES)


def test_survival_analysis_with_larger_cells(simulated, at_sites):
    """Also where sites are too small for a table: their g(t) is 0."""
    words = ("glm.min_cell=15", "glm.horizon=0.8")
    local, remote = simulated("cox", *words), run(at_sites("cox", *words))
    assert_same_bytes(local, remote, *TABLES[:3])
    assert "no calibration: too few rows with and without events until the horizon" in result(remote)["notes"]
    (withheld,) = [note for note in result(remote)["notes"] if note.startswith("too few rows")]
    assert withheld in result(local)["notes"]
    assert 0 < withheld.count(",") + 1 < 3


def test_pairs_with_masks(simulated, masked):
    """The sum of the sites' pairs gives the concordance of all sites; curves need every site's own numbers."""
    words = ("glm.meta=false", "hparams.fraction_bits=40", "glm.min_cell=3")
    ours, theirs = result(simulated("cox", *words)), result(folder := run(masked("cox", *words[:1])))
    assert theirs["concordance"] == ours["concordance"][:1]
    assert theirs["concordance"][0]["client"] == "all clients"
    assert theirs["proportional_hazards"] == []
    assert not (folder / "survival.csv").exists()
    reason = "with federation.masks only sums over the sites are known"
    assert f"no survival curves and tests of proportional hazards: {reason}" in theirs["notes"]
    with pytest.raises(UserError, match=rf"^glm.horizon: got 0.8, must be null: {reason}"):
        run(masked("cox", "glm.meta=false", "glm.horizon=0.8", "seed=1"))


def test_sites_that_share_no_tables(at_sites):
    theirs = result(folder := run(at_sites("cox", policy=preset("demo", share_histograms=False))))
    assert not (folder / "survival.csv").exists()
    assert [line["client"] for line in theirs["concordance"]] == ["all clients", *NAMES]
    note = "no survival curves and tests of proportional hazards: the sites do not share histograms (site.yaml: "
    assert f"{note}share_histograms)" in theirs["notes"]


FORMULA = "task.formula='x0 * x3 + ns(x1, df=3) + poly(x2, 2) + bs(exp(x3), df=4)'"


@pytest.mark.parametrize(
    "words", [(), pytest.param(("task.fill=median", "task.standardize=false"), marks=pytest.mark.ci)]
)
def test_formulas_equal_the_simulation(simulated, at_sites, words):
    """Knots from the sites' counts, powers and moments of the terms: bits of the simulation."""
    pytest.importorskip("formulaic")
    local, remote = simulated("logistic", FORMULA, *words), run(at_sites("logistic", FORMULA, *words))
    assert_same_bytes(local, remote, "covariance.npz", "coefficients.csv", "terms.csv", "linear_model.npz")
    assert [line["term"] for line in result(remote)["terms"]][:2] == ["x0", "x3"]
    ours, theirs = (json.loads((one / "preparation.json").read_text()) for one in (local, remote))
    assert ours["terms"] == theirs["terms"]
    assert ours["scale"] == theirs["scale"]


def test_formulas_with_masks(simulated, masked, at_sites):
    """Terms are prepared from exact sums, and knots from sums of counts; extremes are not known."""
    pytest.importorskip("formulaic")
    words = ("task.formula='x0 + bs(x1, df=5, lower_bound=-9, upper_bound=9) + x2:x3'", "glm.meta=false")
    local, remote = simulated("logistic", *words, "hparams.fraction_bits=40"), run(masked("logistic", *words))
    assert_same_bytes(local, remote, "coefficients.csv", "terms.csv")
    with pytest.raises(UserError, match=r"^task.formula: ns\(x1, df=3\): extremes are not known with masks; use bs"):
        run(masked("logistic", "task.formula='ns(x1, df=3)'", "glm.meta=false"))


@pytest.mark.parametrize(
    "loss", ["poisson", pytest.param("cox", marks=pytest.mark.ci), pytest.param("logistic", marks=pytest.mark.ci)]
)
def test_offsets_equal_the_simulation(simulated, at_sites, loss):
    words = ("task.offset=x3", "task.formula='x0 + x1'") if loss == "logistic" else ("task.offset=x3",)
    local, remote = simulated(loss, *words), run(at_sites(loss, *words))
    assert_same_bytes(local, remote, "covariance.npz", "coefficients.csv", "terms.csv", "linear_model.npz")
    assert "x3" not in [line["term"] for line in result(remote)["terms"]]


def test_wrong_formulas_and_offsets(at_sites):
    for words, reason in (
        (
            ("task.formula=x0+x9",),
            r"^task.formula: got 'x0\+x9', must be a formula of the sites' columns, which have no 'x9'",
        ),
        (("task.offset=x9",), r"^task.offset: got 'x9', must be a column of the sites: x0, x1"),
        (("task.exposure=x1",), r"^task.exposure: got 'x1', must be null for the logistic loss|^east: task.exposure"),
        (("task.formula='log(x0)'",), r"^(east|north|south): terms: a term is not finite for a row of the site"),
    ):
        with pytest.raises(UserError, match=reason) as refusal:
            run(at_sites("logistic", *words))
        assert "\n" not in str(refusal.value)


@pytest.mark.ci
def test_real_sites_with_survival_times(hospitals, simulated, tmp_path):
    """Three sites as processes, over NVIDIA FLARE: curves and checks are the bytes of the simulation."""
    pytest.importorskip("nvflare")
    data = {name: hospitals("cox") / f"{name}.npz" for name in NAMES}
    words = ["task.loss=cox", "glm.horizon=0.8"]
    with Loopback(tmp_path / "parties", data) as federation:
        federation.up()
        home = federation.home("coordinator")
        where = ["federation=flare", f"federation.sites=[{','.join(NAMES)}]", f"federation.home={home}"]
        arguments = ["experiment=glm", *words, *where, f"output_dir={tmp_path}/real"]
        subprocess.run([sys.executable, "-m", "fco_cli.commands.run", *arguments], check=True, timeout=300)
    (made,) = (tmp_path / "real").rglob("result.json")
    local = simulated("cox", "glm.min_cell=3", *words[1:])
    assert_same_bytes(local, made.parent, "covariance.npz", *TABLES)
    assert result(local)["concordance"] == result(made.parent)["concordance"]


@pytest.mark.ci
def test_real_sites(hospitals, simulated, tmp_path):
    """Three sites as processes, over NVIDIA FLARE: the bytes of the simulation, exact and with masks, and table 1."""
    pytest.importorskip("nvflare")
    data = {name: hospitals("logistic") / f"{name}.npz" for name in NAMES}
    with Loopback(tmp_path / "parties", data) as federation:
        federation.up()
        home = federation.home("coordinator")
        where = ["federation=flare", f"federation.sites=[{','.join(NAMES)}]", f"federation.home={home}"]
        for words in ([], ["hparams.fraction_bits=40", "glm.covariance=cluster", "glm.meta=false"]):
            masks = ["federation.masks=true"] if words else []
            output = f"output_dir={tmp_path}/real{len(words)}"
            arguments = ["experiment=glm", "task.loss=logistic", *words, *where, *masks, output]
            subprocess.run([sys.executable, "-m", "fco_cli.commands.run", *arguments], check=True, timeout=300)
            (made,) = (tmp_path / f"real{len(words)}").rglob("result.json")
            assert_same_bytes(simulated("logistic", *words), made.parent, "covariance.npz", "coefficients.csv")
            assert (made.parent / "meta.csv").exists() == (not words)
        for name, rows in (("real", where), ("pooled", [f"task.path={hospitals('logistic') / 'pooled.npz'}"])):
            arguments = ["experiment=table1", "task.loss=logistic", *rows, f"output_dir={tmp_path}/table1/{name}"]
            subprocess.run([sys.executable, "-m", "fco_cli.commands.run", *arguments], check=True, timeout=300)
        ours, theirs = (result(made.parent)["lines"] for made in sorted(tmp_path.glob("table1/**/result.json")))
        assert [line["cells"] for line in ours] == [line["cells"] for line in theirs]
