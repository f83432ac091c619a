"""Certificates that a coordinator accepts."""

from __future__ import annotations

import pytest

from fco_cli.errors import UserError
from fco_cli.federation.flare.certificates import Certificates, common_name, fingerprint, signed_certificate


@pytest.fixture
def one(signed):
    return signed("north").certificate


def test_only_the_current_certificate_of_a_name_is_accepted(tmp_path, signed, one):
    server = Certificates(tmp_path)
    assert server.refusal("north", fingerprint(one)) == "no certificate was issued to north"
    coordinator = Certificates(tmp_path)  # another process
    coordinator.accept(common_name(one), one)
    assert server.refusal("north", fingerprint(one)) is None
    assert server.refusal("south", fingerprint(one)) == "no certificate was issued to south"
    coordinator.accept("north", signed("renewed").certificate)
    assert server.refusal("north", fingerprint(one)) == "the certificate of north was replaced"


def test_a_revoked_certificate_is_refused_by_a_running_server(tmp_path, one):
    server, coordinator = Certificates(tmp_path), Certificates(tmp_path)
    coordinator.accept("north", one)
    assert server.refusal("north", fingerprint(one)) is None
    coordinator.revoke("north")
    assert server.refusal("north", fingerprint(one)) == "the certificate of north is revoked"
    when = server.issued["north"].revoked
    coordinator.revoke("north")
    assert server.issued["north"].revoked == when


def test_an_unknown_site_cannot_be_revoked(tmp_path, one):
    Certificates(tmp_path).accept("north", one)
    with pytest.raises(UserError, match="nort: no such site; certificates of north were issued"):
        Certificates(tmp_path).revoke("nort")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"north": {"sha256": 1}}', b"\xff"])
def test_a_damaged_file_is_refused(tmp_path, content):
    certificates = Certificates(tmp_path)
    certificates.path.write_bytes(content)
    with pytest.raises(UserError, match=r"certificates.json: cannot be read: .*; restore it"):
        certificates.refusal("north", "ab")


def test_another_file_is_not_a_signed_request(tmp_path):
    path = tmp_path / "north.signed.zip"
    with pytest.raises(UserError, match="no such file"):
        signed_certificate(path, "north")
    path.write_bytes(b"PK")
    with pytest.raises(UserError, match="is not a signed request of north"):
        signed_certificate(path, "north")
