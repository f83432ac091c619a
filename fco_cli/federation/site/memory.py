"""Client state between rounds, stored at the site and never sent.

State is stored by the token of its job. The update of a round is pending until the coordinator sends its outcome: the
jobs that used the client's message; outcomes may be repeated. A snapshot is saved with every checkpoint of the
coordinator, and the previous one is kept, so the last complete checkpoint always has its snapshot.
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

KEPT_SNAPSHOTS = 2  # per job
TOKEN = re.compile(r"[0-9a-f]{32}")

Outcome = tuple[int, list[str]]  # a round, and the tokens of the jobs that used this client's message


class SiteMemory:
    """Client state [remembered, P] by token; jobs without an entry have the initial state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, Array] = {}
        self.pending: tuple[int, dict[str, Array]] | None = None

    def read(self, tokens: list[str], initial: Array) -> Array:
        """Return the state [remembered, J, P]; `initial` has the same shape."""
        rows = [self.rows.get(token, initial[:, j]) for j, token in enumerate(tokens)]
        return np.stack(rows, axis=1)

    def propose(self, round_index: int, tokens: list[str], rows: Array) -> None:
        """Store the state after a round as pending."""
        self.pending = (round_index, {token: rows[:, j].copy() for j, token in enumerate(tokens)})

    def apply_outcomes(self, outcomes: list[Outcome]) -> None:
        """Commit the pending state for the jobs that used it; outcomes of other rounds are ignored."""
        for round_index, accepted in outcomes:
            if self.pending is not None and self.pending[0] == round_index:
                self.rows |= {token: self.pending[1][token] for token in accepted if token in self.pending[1]}
                self.pending = None

    def save(self, round_index: int, tokens: list[str]) -> None:
        """Write a snapshot of the jobs and delete old ones."""
        for token in tokens:
            folder = self._folder(token)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            buffer = io.BytesIO()
            np.save(buffer, self.rows.get(token, np.empty(0)), allow_pickle=False)
            write_atomically(folder / f"{round_index}.npy", buffer.getvalue())
            for old in sorted(map(_round, folder.glob("*.npy")))[:-KEPT_SNAPSHOTS]:
                (folder / f"{old}.npy").unlink(missing_ok=True)

    def load(self, round_index: int, tokens: list[str], shape: tuple[int, int], dtype: np.dtype) -> bool:
        """Restore the snapshot of a round; return False if it is missing or invalid."""
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
            for newer in self._folder(token).glob("*.npy"):  # of an abandoned session
                if _round(newer) > round_index:
                    newer.unlink(missing_ok=True)
        return True

    def forget(self, tokens: list[str]) -> None:
        """Delete the state and the snapshots of the jobs."""
        for token in tokens:
            self.rows.pop(token, None)
            shutil.rmtree(self._folder(token), ignore_errors=True)

    def _folder(self, token: str) -> Path:
        if not TOKEN.fullmatch(token):
            raise Refusal("a job's token is invalid")
        return self.folder / token


def _round(path: Path) -> int:
    return int(path.stem)
