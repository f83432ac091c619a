"""fco-federate, as a person calls it; with real processes it is tested in tests/federation/test_flare.py."""

from __future__ import annotations

import pytest

from fco_cli.commands import federate


@pytest.mark.parametrize("words", [["request", "north"], ["serve", "localhost:8002"]])
def test_a_folder_that_cannot_be_used_is_one_line(words, tmp_path, monkeypatch, capsys):
    """Such as /var/lib/fco before somebody has made it for the service's user; for root, who may do all, a file."""
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setattr("sys.argv", ["fco-federate", "--home", str(home / "fco"), *words])
    with pytest.raises(SystemExit) as end:
        federate.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
