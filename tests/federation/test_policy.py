"""Policies: presets, the file `site.yaml`, and sites without one."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from fco_cli.errors import UserError
from fco_cli.federation.message import Message
from fco_cli.federation.policy import COMMENTS, PRESETS, Policy, check_authority, preset, write_policy
from fco_cli.federation.site.audit import read_entries
from fco_cli.federation.site.site import refuse_all


@pytest.mark.parametrize("name", PRESETS)
def test_a_written_preset_is_read_and_has_every_key_with_a_comment(tmp_path, name):
    path = tmp_path / "site.yaml"
    write_policy(path, name, joined=False, authority="SHA256:AB")
    assert Policy.read(path) == preset(name, authority="SHA256:AB")
    text = path.read_text()
    assert list(yaml.safe_load(text)) == [key.name for key in fields(Policy)] == list(COMMENTS)
    assert all(f"# {comment}\n{key}:" in text for key, comment in COMMENTS.items())


def test_the_default_is_strict(tmp_path):
    write_policy(tmp_path / "site.yaml", None, joined=False, authority="SHA256:AB")
    assert Policy.read(tmp_path / "site.yaml") == preset("strict", authority="SHA256:AB")
    assert Policy() == PRESETS["strict"]


def test_a_policy_is_never_rewritten(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("min_rows: 50\n")
    write_policy(path, "demo", joined=True, authority="SHA256:AB")
    assert path.read_text() == "min_rows: 50\n"
    assert Policy.read(path) == preset("strict", min_rows=50)  # missing keys are strict


@pytest.mark.parametrize("name", [None, "research", "demo"])
def test_a_deleted_policy_cannot_be_replaced_by_a_weaker_one(tmp_path, name):
    path = tmp_path / "site.yaml"
    with pytest.raises(UserError, match="can only start from strict again"):
        write_policy(path, name, joined=True, authority="SHA256:AB")
    assert not path.exists()
    write_policy(path, "strict", joined=True, authority="SHA256:AB")
    assert Policy.read(path).min_rows == 10


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "not found; without a policy the site answers nothing"),
        (b"", "is empty; without a policy the site answers nothing"),
        (b"{", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"5", "must be a mapping"),
        (b"min_rows: 2", "min_rows: got 2, must be a whole number >= 3"),
        (b"min_rows: many", "min_rows: expected int"),
        (b"max_rounds: 0", "max_rounds: got 0"),
        (b"max_equations_per_value: -1.0", "max_equations_per_value: got -1.0"),
        (b"min_noise: -1", "min_noise"),
        (b"mask: true", "no such key"),
    ],
)
def test_a_missing_or_invalid_policy_is_one_line_and_is_not_replaced(tmp_path, content, reason):
    path = tmp_path / "site.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        Policy.read(path)
    assert "\n" not in str(caught.value)
    assert path.exists() == (content is not None)


def test_a_site_without_a_policy_refuses_everything(tmp_path):
    response = Message.unpacked(refuse_all(tmp_path, UserError(f"{tmp_path}/site.yaml: not found")))
    assert response.kind == "refused"
    assert str(tmp_path) not in response.head["reason"]
    assert "answers nothing" in response.head["reason"]
    (entry,) = read_entries((tmp_path / "audit.jsonl").read_text())
    assert "site.yaml: not found" in entry.outcome


def test_the_authority_is_pinned(signed):
    from cryptography.hazmat.primitives.hashes import SHA256

    certificate = signed("north").authority
    digest = certificate.fingerprint(SHA256()).hex()
    colons = ":".join(digest[k : k + 2] for k in range(0, 64, 2)).upper()
    for given in (None, digest, f"SHA256:{colons}"):
        check_authority(preset("strict", authority=given), certificate)
    with pytest.raises(UserError, match="authority: got SHA256:AB, but the kit's authority is"):
        check_authority(preset("strict", authority="SHA256:AB"), certificate)


def test_the_coordinator_and_the_peers_are_pinned(tmp_path):
    path, pin = tmp_path / "site.yaml", "SHA256:" + ":".join(["AB"] * 32)
    write_policy(path, "demo", joined=False, authority="SHA256:AB", coordinator=pin, peers={"south": pin, "east": None})
    assert Policy.read(path) == preset(
        "demo", authority="SHA256:AB", coordinator=pin, peers={"south": pin, "east": None}
    )
    write_policy(path, "demo", joined=True, authority="SHA256:AB", coordinator=pin, peers={})
    with pytest.raises(UserError, match=r"^--coordinator: got 'SHA256:CD', must be as in .*site.yaml, which is never"):
        write_policy(path, "demo", joined=True, authority="SHA256:AB", coordinator="SHA256:CD")
    with pytest.raises(UserError, match=r"^--peer: got .*never rewritten; edit it there"):
        write_policy(path, "demo", joined=True, authority="SHA256:AB", peers={"south": None})


@pytest.mark.parametrize("pins", [{"coordinator": "SHA256:AB"}, {"peers": {"south": "north"}}])
def test_a_pin_is_a_whole_fingerprint(pins):
    with pytest.raises(UserError, match=r"must be null or a SHA-256 fingerprint"):
        preset("strict", **pins)
