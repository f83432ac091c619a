"""Fixtures: error messages of the readers, and a valid table."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fco_cli.data.readers import read
from fco_cli.errors import UserError

CSV = "client,height,weight,y\na,1,2,0\na,3,4,1\nb,5,6,0\nb,7,8,1\n"


@pytest.fixture(scope="session")
def error_message() -> Callable[..., str]:
    """Return the message of the UserError that reading raises, and check that it is raised quickly."""

    def expected_message(path: Path, **options: object) -> str:
        start = time.process_time()
        with pytest.raises(UserError) as problem:
            read(path, **options)  # type: ignore[arg-type]
        assert time.process_time() - start < 5
        assert str(problem.value).isprintable()
        return str(problem.value)

    return expected_message


@pytest.fixture(scope="session")
def csv() -> Callable[..., Path]:
    def write(folder: Path, text: str = CSV) -> Path:
        (folder / "t.csv").write_text(text)
        return folder / "t.csv"

    return write
