"""Ledger of a site: what it has answered over all runs and sessions, counted under a lock.

The ledger counts models, answered numbers and row subsets, not messages. It is independent of the audit file, of the
session and of the data file: a new version of the file continues the counts, and its row subsets are compared with
those of earlier versions.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from fco_cli.errors import UserError
from fco_cli.federation.policy import POLICY_FILE, Policy, Refusal, plural
from fco_cli.federation.site.spans import KnownTerms
from fco_cli.files import flush_file, lock_file, write_all, write_atomically
from fco_cli.problem.layout import Array

LEDGER_FOLDER = "ledger"  # in the site's folder
MAX_BYTES = 512  # size of the counts as JSON, padded with spaces


class Counts(msgspec.Struct, forbid_unknown_fields=True):
    """Answers over all runs: models trained and evaluated, histograms, overflows, and numbers."""

    rounds: int = 0
    evaluations: int = 0
    counts: int = 0
    overflows: int = 0
    steep_models: int = 0
    numbers: float = 0.0  # a masked number of M sites counts 1 / M
    values: int = 0  # of the table in the last session, for the limit of numbers


def limits_of(policy: Policy, values: int) -> dict[str, tuple[float | None, str]]:
    """Return the limit and the policy's key of every count, for a table with that many values."""
    per_value = policy.max_equations_per_value
    limits: dict[str, tuple[float | None, str]] = {
        name: (getattr(policy, f"max_{name}"), f"max_{name}")
        for name in ("rounds", "evaluations", "counts", "overflows", "steep_models")
    }
    return limits | {"numbers": (None if per_value is None else per_value * values, "max_equations_per_value")}


class Ledger:
    """Counts and row subsets in a folder, shared by all processes of a site."""

    def __init__(self, folder: Path, values: int = 0, flush: bool = False) -> None:
        """`values` are those of the site's table; with `flush`, counts are on disk when `charge` returns."""
        self.folder, self.values, self.flush = folder, values, flush
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / "counts.json"

    def read(self) -> Counts:
        """Return the counts; raise UserError if the file is damaged."""
        with self._locked() as file:
            return self._counts(file)

    def charge(self, limits: Mapping[str, tuple[float | None, str]], amounts: Mapping[str, float]) -> None:
        """Add amounts to the counts; raise Refusal, and add nothing, if a count would exceed its limit."""
        with self._locked() as file:
            counts, is_new = self._counts(file), os.fstat(file).st_size == 0
            for name, amount in amounts.items():
                limit, key = limits[name]
                before = getattr(counts, name)
                if limit is not None and before + amount > limit:
                    left = max(limit - before, 0)
                    requested = f"{amount:,.10g} {_label(name)} requested"
                    allowed = f"{left:,.10g} of {limit:,.10g} are left over all runs"
                    raise Refusal(f"{requested}; {allowed} ({POLICY_FILE}: {key})")
                setattr(counts, name, before + amount)
            counts.values = self.values
            content = msgspec.json.encode(counts)
            # One write of a fixed size: the death of the process leaves the old or the new counts.
            os.pwrite(file, content.ljust(MAX_BYTES), 0)
            if self.flush:
                flush_file(file, new_in=self.folder if is_new else None)

    def add_subsets(self, subsets: list[Array], total: Array, policy: Policy) -> None:
        """Record row subsets (sorted hashes of rows).

        Raise Refusal if one differs from an earlier one, or from all rows (`total`), by fewer than `min_rows` rows, or
        if there are too many.
        """
        with self._locked():
            known = [np.load(path, allow_pickle=False) for path in sorted(self.folder.glob("*.npy"))]
            new = [one for one in subsets if len(one) and not any(np.array_equal(one, old) for old in known)]
            if policy.refuse_differences:
                for one in new:
                    _check_differences(one, [total, *known, *(other for other in new if other is not one)], policy)
            policy.check_limit(
                "max_subsets", len(known) + len(new), f"{len(known) + len(new)} row subsets over all runs"
            )
            per_row = policy.max_subsets_per_row
            if per_row is not None and new and len(known) + len(new) > per_row * len(total):
                allowed = f"{int(per_row * len(total))} for {len(total)} rows"
                raise Refusal(
                    f"{len(known) + len(new)} row subsets over all runs requested; the site's policy allows {allowed} "
                    f"({POLICY_FILE}: max_subsets_per_row)"
                )
            for number, one in enumerate(new, len(known)):
                buffer = io.BytesIO()
                np.save(buffer, one, allow_pickle=False)
                write_atomically(self.folder / f"{number:06}.npy", buffer.getvalue())

    def add_group(self, names: list[str], least: int) -> None:
        """Record the sites of a masked session; raise Refusal if the group differs from an earlier one by fewer sites.

        The difference of the sums of two groups is the sum of the sites in which they differ.
        """
        path = self.folder / "groups.json"
        with self._locked():
            try:
                known = msgspec.json.decode(path.read_bytes(), type=list[list[str]]) if path.exists() else []
            except ValueError:
                raise UserError(f"{path}: is damaged; the site answers nothing without its ledger") from None
            for group in known:
                if 0 < (difference := len(set(names) ^ set(group))) < least:
                    requested = f"a group that differs by {plural(difference, 'site')} from an earlier one requested"
                    limit = f"the site's policy allows differences of {least} or more ({POLICY_FILE}: fixed_group)"
                    raise Refusal(f"masks: {requested}; {limit}")
            if names not in known:
                write_atomically(path, msgspec.json.encode([*known, names]))

    def add_terms(self, new: KnownTerms, check: Callable[[list[KnownTerms]], None]) -> None:
        """Record new terms after `check` of the known ones, which may raise Refusal."""
        path = self.folder / "terms.json"
        with self._locked():
            try:
                known = msgspec.json.decode(path.read_bytes(), type=list[KnownTerms]) if path.exists() else []
            except ValueError:
                raise UserError(f"{path}: is damaged; the site answers nothing without its ledger") from None
            check(known)
            if new not in known:
                write_atomically(path, msgspec.json.encode([*known, new]))

    def append(self, name: str, position: int, make: Callable[[bytes], tuple[int, bytes]]) -> int:
        """Append to a file what `make` returns for its content from a position on; return the new end of the file.

        `make` also returns how many bytes of that content are complete; the others are overwritten.
        """
        with self._locked():
            path = self.folder / name
            is_new, file = not path.exists(), os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            with io.FileIO(file, "r+") as stream:
                stream.seek(position)
                used, added = make(stream.read())
                if added:
                    os.ftruncate(file, position + used)
                    stream.seek(position + used)
                    write_all(stream, added)
                    if self.flush:
                        flush_file(file, new_in=self.folder if is_new else None)
            return position + used + len(added)

    def is_first(self, name: str, value: str) -> bool:
        """Record the first value under a name; return False for another one later."""
        path = self.folder / f"{name}.txt"
        with self._locked():
            if not path.exists():
                write_atomically(path, value.encode())
            return path.read_bytes() == value.encode()

    def subsets(self) -> int:
        """Return the number of recorded row subsets."""
        return len(list(self.folder.glob("*.npy")))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_file(file)
            yield file
        finally:
            os.close(file)  # releases the lock

    def _counts(self, file: int) -> Counts:
        content = os.pread(file, MAX_BYTES + 1, 0)
        if not content:
            return Counts()
        try:
            return msgspec.json.decode(content, type=Counts)
        except ValueError:
            raise UserError(f"{self.path}: is damaged; the site answers nothing without its ledger") from None


def _check_differences(one: Array, others: list[Array], policy: Policy) -> None:
    for other in others:
        difference = len(np.setxor1d(one, other, assume_unique=True))
        if 0 < difference < policy.min_rows:
            requested = f"a row subset that differs from another one by {plural(difference, 'row')} requested"
            limit = f"differences of {policy.min_rows} or more ({POLICY_FILE}: min_rows, refuse_differences)"
            raise Refusal(f"{requested}; the site's policy allows {limit}")


def _label(name: str) -> str:
    return {
        "rounds": "trained models",
        "evaluations": "evaluated models",
        "counts": "histograms",
        "overflows": "masked models out of range",
        "steep_models": "steep models",
        "numbers": "numbers",
    }[name]
