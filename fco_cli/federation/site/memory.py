"""What a client remembers between rounds, at its site: nobody else sees it.

Rows are kept under the token of their job. What a round changes is pending until the coordinator says in which jobs the
message counted; it may say so twice. A snapshot is written when the coordinator makes a checkpoint, and the one before
is kept until the next: whichever checkpoint survives, its snapshot is here.
"""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import numpy as np

from fco_cli.federation.policy import Refusal
from fco_cli.files import write_atomically
from fco_cli.problem.layout import Array

KEPT = 2  # snapshots of a job
TOKEN = re.compile(r"[0-9a-f]{32}")

Outcome = tuple[int, list[str]]  # a round, and the tokens of the jobs in which this client's message counted


class SiteMemory:
    """Rows [remembered, P] by token; a job that is not there has had no turn, or has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, Array] = {}
        self.pending: tuple[int, dict[str, Array]] | None = None

    def read(self, tokens: list[str], initial: Array) -> Array:
        """[remembered, J, P], for initial rows of that shape."""
        rows = [self.rows.get(token, initial[:, j]) for j, token in enumerate(tokens)]
        return np.stack(rows, axis=1)

    def propose(self, round_index: int, tokens: list[str], rows: Array) -> None:
        """What it would remember after that round."""
        self.pending = (round_index, {token: rows[:, j].copy() for j, token in enumerate(tokens)})

    def settle(self, outcomes: list[Outcome]) -> None:
        """What became of the rounds before; of one that is not pending it has been told already, or never knew."""
        for round_index, counted in outcomes:
            if self.pending is not None and self.pending[0] == round_index:
                self.rows |= {token: self.pending[1][token] for token in counted if token in self.pending[1]}
                self.pending = None

    def save(self, round_index: int, tokens: list[str]) -> None:
        for token in tokens:
            folder = self._folder(token)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            buffer = io.BytesIO()
            np.save(buffer, self.rows.get(token, np.empty(0)), allow_pickle=False)
            write_atomically(folder / f"{round_index}.npy", buffer.getvalue())
            for old in sorted(map(_round, folder.glob("*.npy")))[:-KEPT]:
                (folder / f"{old}.npy").unlink(missing_ok=True)

    def load(self, round_index: int, tokens: list[str], shape: tuple[int, int], dtype: np.dtype) -> bool:
        """Go back to where it was at that round; False if that is not known here."""
        self.pending = None
        for token in tokens:
            path = self._folder(token) / f"{round_index}.npy"
            try:
                rows = np.load(path, allow_pickle=False)
            except (OSError, ValueError, EOFError):
                return False
            if rows.size and (rows.shape != shape or rows.dtype != dtype):
                return False
            self.rows.pop(token, None)
            if rows.size:
                self.rows[token] = rows
            for newer in self._folder(token).glob("*.npy"):  # of a session that nobody goes on from
                if _round(newer) > round_index:
                    newer.unlink(missing_ok=True)
        return True

    def forget(self, tokens: list[str]) -> None:
        for token in tokens:
            self.rows.pop(token, None)
            shutil.rmtree(self._folder(token), ignore_errors=True)

    def _folder(self, token: str) -> Path:
        if not TOKEN.fullmatch(token):
            raise Refusal("a job's token is no token")
        return self.folder / token


def _round(path: Path) -> int:
    return int(path.stem)
