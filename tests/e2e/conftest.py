"""The command within this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from fco_cli.commands.run import main


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], interpreted: None) -> Callable[..., Any]:
    """fco-run with its kernels as text: what it says and leaves is the same, in a fifth of the time."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def run(*words: object, cwd: object = None, code: int = 0) -> Any:
        if cwd is not None:
            monkeypatch.chdir(str(cwd))
        monkeypatch.setattr(sys, "argv", ["fco-run", *map(str, words)])
        if code:
            with pytest.raises(SystemExit) as end:
                main()
            assert end.value.code == code
        else:
            main()
        return capfd.readouterr()

    return run
