"""Real processes on this machine: a coordinator, three hospitals, an analyst, and attackers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fco_cli.algorithms.transforms.row_accounting import RowSums, row_epsilon
from fco_cli.commands.federation_demo import Loopback
from fco_cli.federation.flare.rights import LAUNCH
from fco_cli.federation.site.audit import read_entries
from tests.federation.coordinator.test_clients import NAMES

pytest.importorskip("nvflare")
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HERE = Path(__file__).parent
SAVING_OFTEN = """
from fco_cli.commands.run import main
from fco_cli.simulation import execute as execution
execution.CHECKPOINT_SECONDS = 0.2
main()
"""
RUN = [
    "task=custom", "task.loss=logistic", "regularizer.strength=0.05", "hparams.clients_per_round=2",
    "hparams.batch_size=4", "threads=1",
]  # fmt: skip

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def federation(tmp_path_factory, hospitals) -> Iterator[Loopback]:
    """Start all parties; the coordinator attacks the sites when the file ORDER exists (usurper/)."""
    data = {name: hospitals("logistic") / f"{name}.npz" for name in NAMES}
    folder = tmp_path_factory.mktemp("federation")
    with Loopback(folder, data) as made:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTHONPATH", str(HERE / "usurper"))
            environment.setenv("ORDER", str(folder / "order"))
            environment.setenv("OUTCOMES", str(folder / "outcomes"))
            environment.setenv("CA", str(made.home("coordinator") / "ca"))
            made.up()
        yield made


def refusals(federation: Loopback, party: str) -> list[str]:
    """Return the refusals in a party's audit file."""
    path = federation.home(party) / "audit.jsonl"
    entries = read_entries(path.read_text() if path.exists() else "")
    return [f"{entry.kind} {entry.outcome}" for entry in entries if entry.outcome.startswith("refused")]


def has_refused(federation: Loopback, party: str, *texts: str) -> Callable[[], bool]:
    """Return a function that is true if one refusal of the party contains all these texts."""
    return lambda: any(all(text in line for text in texts) for line in refusals(federation, party))


def fco_run(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fco_cli.commands.run", *map(str, arguments)]


def together(*commands: list[str]) -> None:
    """Run commands at the same time and check that all succeed."""
    with ExitStack() as running:
        processes = [running.enter_context(subprocess.Popen(command)) for command in commands]
        assert [process.wait(300) for process in processes] == [0] * len(commands)


def between_sites(federation: Loopback, output: Path, *arguments: str) -> list[str]:
    home = federation.home("coordinator")
    sites = f"federation.sites=[{','.join(NAMES)}]"
    return [*RUN, "federation=flare", sites, f"federation.home={home}", f"output_dir={output}", *arguments]


def simulated(hospitals, output: Path, *arguments: str) -> list[str]:
    return [*RUN, f"task.path={hospitals('logistic') / 'pooled.npz'}", f"output_dir={output}", *arguments]


def models(output: Path) -> dict[tuple[str, float], dict[str, np.ndarray]]:
    """Return the models of all records, by algorithm and learning rate."""
    by_run = {}
    for path in output.rglob("result.json"):
        result = json.loads(path.read_text())
        by_run[result["algo"], result["client_lr"]] = dict(np.load(path.with_name("model.npz")))
    return by_run


def assert_same_bits(one: Path, other: Path, runs: int) -> None:
    ours, theirs = models(one), models(other)
    assert len(ours) == runs
    assert ours.keys() == theirs.keys()
    for key in ours:
        for name, values in ours[key].items():
            np.testing.assert_array_equal(values, theirs[key][name])


def received(federation: Loopback, name: str) -> Counter[str]:
    """Return the numbers of messages that a site received, by kind."""
    path = federation.home(name) / "audit.jsonl"
    return Counter(entry.kind for entry in read_entries(path.read_text() if path.exists() else ""))


def test_a_masked_sweep_equals_the_simulation(federation, hospitals, tmp_path):
    """Both run in fixed point; the sites' keys are signed with their real certificates."""
    grid = ["-m", "algo=zhj,feddualavg", "hparams.client_lr=0.02,0.05", "hparams.rounds=5"]
    fixed = ["hparams.fraction_bits=40", "hparams.clients_per_round=all"]
    where = between_sites(federation, tmp_path / "sites", *fixed, "federation.masks=true")
    together(fco_run(*grid, *simulated(hospitals, tmp_path / "simulated", *fixed)), fco_run(*grid, *where))
    assert_same_bits(tmp_path / "sites", tmp_path / "simulated", runs=4)
    assert {received(federation, name)["keys"] for name in NAMES} == {1}


ROW_NOISE = [
    "algo=feddualavg", "hparams.client_lr=0.05", "hparams.rounds=3", "hparams.batch_size=100",
    "hparams.clients_per_round=all", "hparams.fraction_bits=40", "task.ranges={default:[-6,6]}",
    "transform=row_clip_noise", "transform.noise_shares=2",
]  # fmt: skip


def test_without_noise_masked_sums_of_clipped_rows_equal_the_simulation(federation, hospitals, tmp_path):
    """The weights of the sites differ from their shares of the noise, whose multiplier is 0."""
    where = between_sites(federation, tmp_path / "sites", "federation.masks=true")
    arguments = [*ROW_NOISE, "transform.noise_multiplier=0", "transform.clip_norm=0.4"]
    together(fco_run(*simulated(hospitals, tmp_path / "simulated"), *arguments), fco_run(*where, *arguments))
    assert_same_bits(tmp_path / "sites", tmp_path / "simulated", runs=1)


def test_sites_share_noise_in_masked_sums_and_report_epsilon(federation, hospitals, tmp_path):
    """Epsilon is that of the simulation; between sites it includes the noisy evaluations and the noisy moments."""
    where = between_sites(federation, tmp_path / "sites", "federation.masks=true", "federation.evaluation_noise=30")
    arguments = [*ROW_NOISE, "transform.noise_multiplier=8", "task.moments_noise=10"]
    together(fco_run(*simulated(hospitals, tmp_path / "simulated"), *arguments), fco_run(*where, *arguments))
    ours, theirs = (
        json.loads(next((tmp_path / folder).rglob("result.json")).read_text())["final"]
        for folder in ("sites", "simulated")
    )
    parts = RowSums(3, 1.0, 8.0), RowSums(1, 1.0, 10.0)
    assert ours["epsilon"] == pytest.approx(theirs["epsilon"])
    assert ours["epsilon"] == pytest.approx(row_epsilon(parts, 1e-5))
    assert ours["epsilon_run"] == pytest.approx(row_epsilon((*parts, RowSums(5, 1.0, 30.0)), 1e-5))
    found = [models(tmp_path / folder)["feddualavg", 0.05]["weights"] for folder in ("sites", "simulated")]
    assert not np.array_equal(*found)  # noise of the sites is secret


def test_killed_sites_and_analysts_do_not_change_the_result(federation, hospitals, tmp_path):
    """Kill a hospital, which joins again, then fco-run, which is restarted; both by the same commands."""
    arguments = ["algo=zhj", "hparams.client_lr=0.05", "hparams.rounds=120", "hparams.eval_every=40"]
    where = between_sites(federation, tmp_path / "sites", "federation.timeout=3")
    command = [sys.executable, "-c", SAVING_OFTEN, *arguments, *where]
    with subprocess.Popen(command, start_new_session=True) as analyst:
        try:
            federation.wait(lambda: any((tmp_path / "sites").rglob("checkpoint.npz")), "the run is saved")
            federation.stop("north")
            federation.join("north")
            again = received(federation, "north")["train"]
            federation.wait(lambda: received(federation, "north")["train"] > again, "the run continues")
        finally:
            os.killpg(analyst.pid, signal.SIGKILL)
    together(command, fco_run(*arguments, *simulated(hospitals, tmp_path / "simulated")))
    assert_same_bits(tmp_path / "sites", tmp_path / "simulated", runs=1)


@pytest.mark.slow
def test_a_killed_server_does_not_change_the_result(federation, hospitals, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # as the sites have it
    arguments = ["algo=zhj", "hparams.client_lr=0.04", "hparams.rounds=4000", "hparams.eval_every=100"]
    before = received(federation, "north")["train"]
    with subprocess.Popen(
        fco_run(*arguments, *between_sites(federation, tmp_path / "sites", "federation.timeout=5"))
    ) as analyst:
        federation.wait(lambda: received(federation, "north")["train"] > before + 200, "the run continues")
        federation.stop("coordinator")
        time.sleep(2)
        federation.spawn("coordinator", "serve", federation.address)
        assert analyst.wait(400) == 0
    subprocess.run(fco_run(*arguments, *simulated(hospitals, tmp_path / "simulated")), check=True)
    assert_same_bits(tmp_path / "sites", tmp_path / "simulated", runs=1)


def test_attacks_with_the_lead_s_kit(federation, tmp_path):
    """All attacks are refused and audited, also with the help of the server; no code runs."""
    home, ran = federation.home("coordinator"), tmp_path / "ran"
    command = [sys.executable, "-m", "tests.federation.attacker", home, ran]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=HERE.parents[1])
    outcomes = {}
    for line in done.stdout.splitlines():
        outcomes |= {json.loads(line)["what"]: json.loads(line)["outcome"]}
    assert outcomes.pop("an honest request") == "stack"
    for what in ("a job with code", "a job with code, as super", "a class off the list"):
        assert "not the job that fco-run submits" in outcomes.pop(what)
    assert "not found" in outcomes.pop("a shell command")
    assert len(outcomes) == 16
    for what, outcome in outcomes.items():
        assert outcome.startswith("refused: "), what
    assert not ran.exists()
    for reason in (
        "replayed", "another coordinator", "unknown kind of message", "no such key", "longer than the message",
        "z.0 is not finite", "z.0 is float64 [1, 7]", "z.0 is float32", "max_numbers", "more numbers than it contains",
    ):  # fmt: skip
        assert has_refused(federation, "north", reason)(), reason
    assert Counter(refusals(federation, "north"))["job refused: not the job that fco-run submits"] == 3
    assert has_refused(federation, "coordinator", "right", "is not authorized for 'ls'")()


def test_commands_that_a_server_may_not_send(federation):
    """The server itself, with a valid certificate, cannot run a shell, read the environment or restart."""
    (federation.folder / "order").touch()
    federation.wait((federation.folder / "outcomes").exists, "the server has sent its commands")
    for topic, outcome in json.loads((federation.folder / "outcomes").read_text()).items():
        assert f"{topic} is not an allowed command" in outcome
        assert has_refused(federation, "north", topic)()
    assert not (federation.folder / "order.ran").exists()


@contextmanager
def background(folder: Path, command: list[object], **options: Any) -> Iterator[Callable[[], str]]:
    """Run a process group until the end of the block; yield a function that returns its output so far."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, start_new_session=True, **options)
    try:
        yield lambda: log.read_text(errors="replace")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def federate(home: Path, *arguments: object) -> list[object]:
    return [sys.executable, "-m", "fco_cli.commands.federate", "--home", home, *arguments]


def is_answered(address: str, certificate: tuple[Path, Path] | None = None) -> bool:
    """Return True if the server answers an HTTP/2 preface."""
    host, port = address.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(*certificate)
    try:
        with socket.create_connection((host, int(port)), 5) as raw, context.wrap_socket(raw) as secure:
            secure.settimeout(3)
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return bool(secure.recv(100))
    except (ssl.SSLError, ConnectionError):
        return False


def of_another_authority(folder: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for north and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "north")])
    today = datetime(2025, 1, 1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 7, today, today + timedelta(3650))
    certificate, secret = folder / "other.crt", folder / "other.key"
    certificate.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return certificate, secret


def test_clients_without_a_valid_certificate_are_refused(federation, tmp_path):
    startup = federation.home("north") / "kits/fco/prod_00/north/startup"
    assert is_answered(federation.address, (startup / "client.crt", startup / "client.key"))
    assert not is_answered(federation.address)
    assert not is_answered(federation.address, of_another_authority(tmp_path))
    for reason in ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"):
        federation.wait(has_refused(federation, "coordinator", "connection", reason), reason)


def test_keys_can_be_read_by_their_owner_only(federation):
    keys = [path for path in federation.folder.rglob("*") if path.suffix == ".key" or path.name == "secret"]
    assert len(keys) > len(NAMES)
    assert {path.stat().st_mode & 0o077 for path in keys} == {0}


def test_another_authority_s_signature_is_refused(federation, tmp_path):
    """A site compares the fingerprint received by another channel."""
    shutil.copytree(federation.home("north") / "requests", tmp_path / "requests")
    arguments = ["--fingerprint", "SHA256:" + ":".join(["AB"] * 32), "--data", federation.data["north"]]
    command = federate(tmp_path, "join", federation.signed["north"], *arguments)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 2
    assert "fingerprint" in done.stderr.lower()
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "kits").rglob("client.key"))


def test_two_coordinators_with_one_kit(federation):
    """The second cannot take the address."""
    with pytest.raises(RuntimeError, match="is it served already"):
        federation.call("coordinator", "serve", federation.address)


def test_a_copied_kit_is_refused(federation, tmp_path):
    """The copy is refused while north is connected; north continues."""
    copy = tmp_path / "copy"
    shutil.copytree(federation.home("north"), copy)
    (copy / "audit.jsonl").unlink(missing_ok=True)
    arguments = ["--fingerprint", federation.fingerprint, "--data", federation.data["north"]]
    with background(tmp_path, federate(copy, "join", federation.signed["north"], *arguments)) as output:
        federation.wait(
            has_refused(federation, "coordinator", "connection", "north is connected already"), "the copy is refused"
        )
        assert "Successfully registered" not in output()
    assert not (copy / "audit.jsonl").exists()
    assert "already registered" not in federation.log("coordinator").split("north is connected already")[1]


def test_another_hospital_s_kit(federation, tmp_path):
    """A client with south's certificate cannot use another name."""
    kit = tmp_path / "kit"
    shutil.copytree(federation.home("south") / "kits/fco/prod_00/south", kit)
    config = kit / "startup/fed_client.json"
    config.write_text(config.read_text().replace("south", "west"))
    with background(tmp_path, client(kit, "west")):
        refused = has_refused(federation, "coordinator", "connection", "authenticated as 'south'", "'west'")
        federation.wait(refused, "the liar is refused")
    assert "west" not in federation.call("coordinator", "status")


def client(kit: Path, name: str) -> list[object]:
    """Return the command of a site's process, without `fco-federate join`."""
    arguments = ["-s", "fed_client.json", "--set", "secure_train=true", f"uid={name}", f"org={name}", "config_folder="]
    return [sys.executable, "-u", "-m", LAUNCH, "client", "-m", kit, *arguments]


@pytest.fixture(scope="module")
def outcomes_file(federation, tmp_path_factory) -> Iterator[Path]:
    """Restart east as an attacker: it sends commands to north (probe.py) and invalid responses (liar/)."""
    folder = tmp_path_factory.mktemp("ill")
    kit, outcomes = federation.home("east") / "kits/fco/prod_00/east", folder / "outcomes"
    federation.stop("east", signal.SIGTERM)
    (kit / "local/custom").mkdir()
    shutil.copy(HERE / "probe.py", kit / "local/custom/probe.py")
    resources = json.loads((kit / "local/resources.json").read_text())
    resources["components"].append({"id": "probe", "path": "probe.Probe", "args": {}})
    resources["class_allow_list"].append("probe.Probe")
    (kit / "local/resources.json").write_text(json.dumps(resources))
    environment = os.environ | {"PROBE": str(outcomes), "PYTHONPATH": str(HERE / "liar")}
    with background(folder, client(kit, "east"), env=environment, cwd=kit):
        yield outcomes


def test_a_hospital_cannot_send_commands_to_another(federation, outcomes_file):
    """Commands in its own name or the server's are not forwarded."""
    federation.wait(outcomes_file.exists, "the probe ends")
    outcomes = json.loads(outcomes_file.read_text())
    assert len(outcomes) == 6
    assert set(outcomes.values()) <= {"unauthenticated", "timeout"}
    assert not Path(f"{outcomes_file}.ran").exists()
    lines = Counter(refusals(federation, "coordinator"))
    assert lines["message refused: sent by east (east -> north)"] == 3
    assert lines["message refused: sent by east (server -> north)"] == 3


def test_a_hospital_that_sends_invalid_responses(federation, outcomes_file, tmp_path):
    """A silent or not finite response is dropped; another shape or type ends the run with one line."""
    rest = ["federation.timeout=2", "federation.min_sites=2", "hparams.clients_per_round=all", "hparams.rounds=9"]
    command = fco_run("algo=zhj", "hparams.client_lr=0.05", *between_sites(federation, tmp_path / "sites", *rest))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "east: no response in round 2; the round continues without it" in done.stderr
    wrong = "the array z.0 is float32 [1, 5], must be float64 [1, 6]"
    assert done.stderr.splitlines()[-1] == f"fco-run: site 'east': invalid response to 'train': {wrong}"
