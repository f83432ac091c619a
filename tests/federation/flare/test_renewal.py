"""Kits that are replaced, renewed, rotated and revoked, with certificates of NVIDIA FLARE and real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fco_cli.commands.federation_demo import Loopback, free_port
from fco_cli.errors import UserError
from fco_cli.federation.flare.certificates import Certificates, fingerprint, load_certificate, signed_certificate
from fco_cli.federation.flare.rights import LEAD
from fco_cli.federation.site.audit import read_entries

pytest.importorskip("nvflare")
from fco_cli.federation.flare import enrollment, kits

pytestmark = pytest.mark.ci
REGISTERED = "Successfully registered client"


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> tuple[Path, Path, str]:
    """Return the folder of a coordinator, that of a hospital with an installed kit, and the fingerprint."""
    folder = tmp_path_factory.mktemp("founded")
    coordinator, home = folder / "coordinator", folder / "north"
    enrollment.create_federation(f"localhost:{free_port()}", coordinator)
    signed, authority = enrollment.approve_site(enrollment.request("north", home), coordinator)
    kits.install_kit(signed, "north", home, authority)
    return coordinator, home, authority


@pytest.fixture
def parties(founded, tmp_path) -> tuple[Path, Path, str]:
    """Return copies of the folders."""
    for name, source in zip(("coordinator", "north"), founded, strict=False):
        shutil.copytree(source, tmp_path / name)
    return tmp_path / "coordinator", tmp_path / "north", founded[2]


def installed(home: Path, name: str = "north") -> str:
    (path,) = (kits.kit_path(home, name) / "startup").glob("*.crt")
    return fingerprint(load_certificate(path.read_bytes()))


def private_key(home: Path) -> bytes:
    return (kits.kit_path(home, "north") / "startup/client.key").read_bytes()


def test_a_renewed_kit_replaces_the_old_one(parties):
    coordinator, home, authority = parties
    before, key = installed(home), private_key(home)
    signed, same = enrollment.renew("north", coordinator)
    assert same == authority
    kits.install_kit(signed, "north", home, authority)
    assert installed(home) == fingerprint(signed_certificate(signed, "north")) != before
    assert private_key(home) == key
    assert installed(home, "north.old-1") == before
    certificates = Certificates(coordinator)
    assert certificates.refusal("north", installed(home)) is None
    assert certificates.refusal("north", before) == "the certificate of north was replaced"


def test_a_rotated_kit_has_another_key(parties):
    coordinator, home, authority = parties
    key, request = private_key(home), enrollment.rotate_site("north", home)
    with pytest.raises(UserError, match=r"north: has a certificate until .*add --replace"):
        enrollment.approve_site(request, coordinator)
    signed, _ = enrollment.approve_site(request, coordinator, replace=True)
    kits.install_kit(signed, "north", home, authority)
    assert private_key(home) != key


def test_a_revoked_site_is_approved_again_with_a_new_request(parties):
    coordinator, home, authority = parties
    Certificates(coordinator).revoke("north")
    with pytest.raises(UserError, match="north: is revoked; the site runs fco-federate rotate north"):
        enrollment.renew("north", coordinator)
    signed, _ = enrollment.approve_site(enrollment.rotate_site("north", home), coordinator)
    kits.install_kit(signed, "north", home, authority)
    assert Certificates(coordinator).refusal("north", installed(home)) is None


def test_the_coordinator_rotates_its_own_keys(parties):
    coordinator, home, _ = parties
    old = installed(coordinator, LEAD)
    enrollment.rotate_coordinator(coordinator)
    certificates = Certificates(coordinator)
    assert certificates.refusal(LEAD, old) == f"the certificate of {LEAD} was replaced"
    assert certificates.refusal(LEAD, installed(coordinator, LEAD)) is None
    assert certificates.refusal("north", installed(home)) is None


def test_the_fingerprint_is_checked_for_an_installed_kit(parties):
    _, home, authority = parties
    other = "SHA256:" + ":".join(["AB"] * 32)
    with pytest.raises(UserError, match=r"--fingerprint: got SHA256:AB.*signed by another authority"):
        kits.install_kit(home / "missing.signed.zip", "north", home, other)
    kits.install_kit(home / "missing.signed.zip", "north", home, authority.lower().removeprefix("sha256:"))


@pytest.mark.parametrize("defect", ["fingerprint", "another site's file"])
def test_a_kit_that_cannot_be_verified_does_not_replace_the_old_one(parties, tmp_path, defect):
    coordinator, home, authority = parties
    before = installed(home)
    if defect == "fingerprint":
        signed, authority = enrollment.renew("north", coordinator)[0], "SHA256:" + ":".join(["AB"] * 32)
    else:
        other, _ = enrollment.approve_site(enrollment.request("south", tmp_path / "south"), coordinator)
        signed = other.rename(tmp_path / "north.signed.zip")
    with pytest.raises(UserError):
        kits.install_kit(signed, "north", home, authority)
    assert installed(home) == before
    assert [path.name for path in (home / "kits").iterdir() if path.name.startswith(".")] == []


def test_an_unfinished_kit_of_a_killed_process_is_removed(parties):
    coordinator, home, authority = parties
    shutil.move(kits.kit_path(home, "north"), home / "kits" / ".new-1")
    signed, _ = enrollment.renew("north", coordinator)
    kits.install_kit(signed, "north", home, authority)
    assert not (home / "kits" / ".new-1").exists()


def test_without_the_authority_s_key_nothing_is_signed(parties):
    coordinator, _, _ = parties
    shutil.move(coordinator / "ca", coordinator / "offline")
    with pytest.raises(UserError, match="the key of the authority is not here; restore its copy"):
        enrollment.renew("north", coordinator)


@pytest.fixture
def federation(tmp_path) -> Iterator[Loopback]:
    data = tmp_path / "north.npz"
    np.savez(data, x=np.eye(12), y=np.arange(12.0), client=np.full(12, "north"))
    with Loopback(tmp_path / "parties", {"north": data}) as made:
        made.up()
        yield made


def is_refused(federation: Loopback, reason: str) -> Callable[[], bool]:
    path = federation.home("coordinator") / "audit.jsonl"
    return lambda: any(reason in one.outcome for one in read_entries(path.read_text() if path.exists() else ""))


def test_a_running_and_a_restarted_server_accept_the_current_certificate_only(federation):
    old = federation.folder / "old"
    shutil.copytree(federation.home("north"), old)
    federation.call("coordinator", "revoke", "north")
    federation.wait(is_refused(federation, "the certificate of north is revoked"), "north is refused")
    federation.stop("north")

    federation.stop("coordinator")
    federation.serve()
    federation.join("north")
    refusals = federation.home("coordinator") / "audit.jsonl"
    refusals.unlink()
    federation.wait(is_refused(federation, "the certificate of north is revoked"), "north is refused again")
    federation.stop("north")
    assert federation.log("north").count(REGISTERED) == 1

    request = federation.call("north", "rotate", "north").split("request: ")[1].split(" (the key")[0]
    federation.approve("north", Path(request))
    federation.join("north")
    federation.wait(lambda: federation.log("north").count(REGISTERED) == 2, "north registers with its new key")

    renewed = federation.call("coordinator", "renew", "north").split("signed: ")[1].splitlines()[0]
    federation.wait(is_refused(federation, "the certificate of north was replaced"), "the old certificate is refused")
    federation.stop("north")
    federation.signed["north"] = Path(renewed)
    federation.join("north")
    federation.wait(lambda: federation.log("north").count(REGISTERED) == 3, "north registers with its renewed kit")
    assert "north" in federation.call("coordinator", "status")


def test_a_site_accepts_the_pinned_certificate_of_the_server_only(federation, tmp_path):
    """With the pin, the site joins and trains; after the server has another certificate, it ends with one line."""
    pin = federation.log("coordinator").split("(join --coordinator): ")[1].split()[0]
    federation.stop("north")
    policy = federation.home("north") / "site.yaml"
    policy.write_text(policy.read_text().replace("coordinator: null", f"coordinator: {pin}"))
    federation.join("north")
    federation.wait(lambda: federation.log("north").count(REGISTERED) == 2, "north registers with the pinned server")
    run = [
        "task=custom", "task.loss=squared", "federation=flare", "federation.sites=[north]", "hparams.rounds=2",
        f"federation.home={federation.home('coordinator')}", "hparams.clients_per_round=1", "task.holdout=none",
        "hparams.client_lr=0.01", "hparams.batch_size=12", f"output_dir={tmp_path / 'outputs'}",
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "fco_cli.commands.run", *run], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    federation.stop("north")
    federation.stop("coordinator")
    federation.call("coordinator", "rotate")
    federation.serve()
    federation.join("north")
    line = "fco-federate: the server's certificate is SHA256:"
    with pytest.raises(RuntimeError, match="north has ended"):
        federation.wait(lambda: False, "north ends")
    ending = next(one for one in federation.log("north").splitlines() if line in one)
    assert "not that of site.yaml (coordinator)" in ending
    assert federation.log("north").count(REGISTERED) == 2
