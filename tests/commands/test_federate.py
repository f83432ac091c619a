"""fco-federate, as a person calls it; with real processes it is tested in tests/federation/test_flare.py."""

from __future__ import annotations

import pytest

from fco_cli.commands import federate


@pytest.mark.parametrize("words", [["request", "north"], ["serve", "localhost:8002"]])
def test_a_folder_that_cannot_be_used_is_one_line(words, tmp_path, monkeypatch, capsys):
    """Not even root can create a folder below a regular file."""
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setattr("sys.argv", ["fco-federate", "--home", str(home / "fco"), *words])
    with pytest.raises(SystemExit) as end:
        federate.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def site_home(tmp_path):
    """Create a site's folder with a policy, a ledger and an audit file of two sessions."""
    from fco_cli.federation.policy import preset
    from fco_cli.federation.site.audit import append_entry
    from fco_cli.federation.site.ledger import Ledger, limits_of

    (tmp_path / "site.yaml").write_text(preset("strict").as_text("strict"))
    path = tmp_path / "audit.jsonl"
    for session, analyst in (("a" * 32, "jane@desk"), ("b" * 32, "joe@lab")):
        append_entry(path, "evaluate", "answered", session=session, analyst=analyst, answer_numbers=7)
    append_entry(path, "train", "refused: a batch of 1 rows requested", session="b" * 32, analyst="joe@lab")
    limits = limits_of(preset("strict"), 240)
    Ledger(tmp_path / "ledger", 240).charge(limits, {"evaluations": 2, "numbers": 14})
    return tmp_path


def called(monkeypatch, home, *words) -> None:
    monkeypatch.setattr("sys.argv", ["fco-federate", "--home", str(home), *words])
    federate.main()


def test_audit_prints_who_requested_what_and_what_is_left(site_home, monkeypatch, capsys):
    called(monkeypatch, site_home, "audit")
    text = capsys.readouterr().out
    assert "jane@desk  session aaaaaaaa: answered evaluate 1; 7 numbers sent" in text
    assert "1 x train: refused: a batch of 1 rows requested" in text
    assert "evaluations: 2 over all runs; 4,998 of 5,000 left (max_evaluations)" in text
    assert "numbers: 14 over all runs; 106 of 120 left (max_equations_per_value)" in text
    assert "subsets: 0 over all runs; 100 of 100 left (max_subsets)" in text
    assert "chain: OK, 3 entries" in text


def test_audit_verifies_the_chain(site_home, monkeypatch, capsys):
    called(monkeypatch, site_home, "audit", "--verify")
    assert capsys.readouterr().out == "OK: 3 entries, none changed or removed\n"
    path = site_home / "audit.jsonl"
    path.write_text(path.read_text().replace("joe@lab", "joe@pub", 1))
    with pytest.raises(SystemExit) as end:
        called(monkeypatch, site_home, "audit", "--verify")
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "line 2 was changed" in error


def test_audit_of_a_folder_without_one(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        called(monkeypatch, tmp_path, "audit")
    assert end.value.code == 2
    assert "no message was received" in capsys.readouterr().err
