"""Audit file of a party: one JSON line for every received or refused message, chained to the previous line.

A line holds the question in full (its head, and its arrays up to `MAX_LISTED` numbers), the size of the answer and
never a row. It ends with `chain`, the SHA-256 of the previous line's `chain` and of the line's text. `audit.head` holds
the number of entries, the last `chain` and the size of the file, so that removed lines are found as well. Large files
are rotated; the chain continues in the next file. Several processes of a party may write at the same time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from fco_cli.errors import UserError
from fco_cli.federation.message import Message
from fco_cli.files import flush_file, lock_file

AUDIT_FILE = "audit.jsonl"  # in the party's folder
HEAD_FILE = "audit.head"
ROTATE_BYTES = 64 * 2**20
MAX_LISTED = 1000  # numbers of an array that are listed; larger arrays are hashed
MAX_QUESTION_BYTES = 2**20  # larger questions are hashed
HEAD_BYTES = 256  # of `audit.head`; shorter ones are padded with spaces
CHAIN = b',"chain":"'
CHAIN_BYTES = len(CHAIN) + 64 + len('"}')


class Entry(msgspec.Struct):
    """Line of the file; it contains no data of the site."""

    at: str
    kind: str
    bytes: int  # of the question
    sha256: str  # of the question
    outcome: str
    number: int = 0
    session: str = ""
    analyst: str = ""  # as declared in the session's first message
    question: Any = None  # head and arrays
    answer_bytes: int = 0
    answer_numbers: int = 0
    chain: str = ""


class Head(msgspec.Struct):
    """State of the chain after the last entry."""

    entries: int = 0
    chain: str = ""
    size: int = 0


def append_entry(path: Path, kind: str, outcome: str, content: bytes = b"", flush: bool = False, **more: Any) -> None:
    """Append the entry of a message to an audit file.

    With `flush`, it is on disk when this function returns, and never after the head that counts it.
    """
    at, digest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), hashlib.sha256(content).hexdigest()
    lock = os.open(_head_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(lock)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            head = _read_head(lock, file, size)
            entry = Entry(at, kind, len(content), digest, outcome, number=head.entries + 1, **more)
            body = msgspec.json.encode(entry)[: -len(b',"chain":""}')]
            chain = _next_chain(head.chain, body)
            end = _append_line(file, size, body + CHAIN + chain.encode() + b'"}\n')
            if flush:
                flush_file(file, new_in=None if size else path.parent)
        finally:
            os.close(file)
        if end > ROTATE_BYTES:
            path.rename(path.with_name(f"audit.{len(_rotated(path)) + 1:06}.jsonl"))
            end = 0
        state = msgspec.json.encode(Head(head.entries + 1, chain, end))
        os.pwrite(lock, state.ljust(HEAD_BYTES), 0)
    finally:
        os.close(lock)  # releases the lock


@cache
def _head_path(path: Path) -> str:
    return str(path.with_name(HEAD_FILE))


def _read_head(lock: int, file: int, size: int) -> Head:
    """Return the state of the chain; entries of an earlier version, without a chain, are hashed as a whole."""
    state = os.pread(lock, HEAD_BYTES + 1, 0)
    try:
        head = msgspec.json.decode(state, type=Head) if state else Head(chain=_unchained(os.pread(file, size, 0)))
    except ValueError:  # damaged: `verify` reports it
        head = Head()
    if size > head.size > 0 or (size and head.entries and not head.size):
        # The process died between the entry and the head.
        for line in os.pread(file, size - head.size, head.size).splitlines():
            if is_chained(line, head.chain):
                head = Head(head.entries + 1, line[-66:-2].decode(), size)
    return head


def _append_line(file: int, end: int, line: bytes) -> int:
    """Append a line, after an end of line if the last one is incomplete; return the size of the file."""
    if end and os.pread(file, 1, end - 1) != b"\n":
        line = b"\n" + line
    if os.pwrite(file, line, end) < len(line):  # no space left
        os.ftruncate(file, end)
        raise OSError("no space left for the audit file")
    return end + len(line)


def _unchained(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if content else ""


def _next_chain(chain: str, body: bytes) -> str:
    return hashlib.sha256(chain.encode() + body).hexdigest()


def is_chained(line: bytes, chain: str) -> bool:
    """Return True if a line continues the chain."""
    body, end = line[:-CHAIN_BYTES], line[-CHAIN_BYTES:]
    return end == CHAIN + _next_chain(chain, body).encode() + b'"}'


def _rotated(path: Path) -> list[Path]:
    return sorted(path.parent.glob("audit.*.jsonl"))


def read_entries(text: str) -> Iterator[Entry]:
    """Yield the valid entries of an audit file."""
    for line in text.splitlines():
        try:
            yield msgspec.json.decode(line, type=Entry)
        except (ValueError, RecursionError):  # an incomplete or foreign line
            continue


def all_entries(path: Path) -> Iterator[Entry]:
    """Yield the valid entries of an audit file and of its rotated files."""
    for one in (*_rotated(path), path):
        if one.exists():
            yield from read_entries(one.read_text(errors="replace", encoding="utf-8"))


def verify(path: Path) -> int:
    """Return the number of entries; raise UserError if one was changed, inserted or removed."""
    head_path = path.with_name(HEAD_FILE)
    try:
        head = msgspec.json.decode(head_path.read_bytes(), type=Head)
    except FileNotFoundError:
        raise UserError(f"{head_path}: not found; the audit file cannot be verified") from None
    except ValueError:
        raise UserError(f"{head_path}: is damaged; the audit file cannot be verified") from None
    count, chain, before, broken = 0, "", hashlib.sha256(), list[str]()
    for one in (*_rotated(path), path):
        for number, line in enumerate(one.read_bytes().splitlines() if one.exists() else (), 1):
            is_first = count == 0 and not broken
            if is_chained(line, chain) or (is_first and is_chained(line, before.hexdigest())):
                count, chain = count + 1, line[-66:-2].decode()
            elif is_first and CHAIN not in line:  # an entry of an earlier version
                before.update(line + b"\n")
            else:
                broken.append(f"{one}: line {number} was changed, or entries before it were removed or inserted")
                chain = line[-66:-2].decode(errors="replace")
    if broken:
        rest = f"; so were {len(broken) - 1} lines after it" if broken[1:] else "; all lines after it are intact"
        raise UserError(f"{broken[0]}{rest}")
    if (count, chain) != (head.entries, head.chain):
        raise UserError(f"{path}: has {count} chained entries, {head.entries} were written; the others were removed")
    return count


def question_of(message: Message) -> Any:
    """Return the head and the arrays of a request as plain values; large ones are hashed."""
    arrays = {
        name: values.tolist()
        if values.size <= MAX_LISTED
        else {
            "dtype": values.dtype.name,
            "shape": list(values.shape),
            "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        }
        for name, values in message.arrays.items()
    }
    question = message.head | ({"arrays": arrays} if arrays else {})
    try:
        content = msgspec.json.encode(question)
    except (ValueError, OverflowError, RecursionError):
        return None
    if len(content) > MAX_QUESTION_BYTES:
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return msgspec.Raw(content)


class Audit:
    """Audit file of a site in one session."""

    def __init__(self, path: Path, flush: bool = False) -> None:
        self.path, self.flush = path, flush
        self.session = self.analyst = ""

    def write(
        self, kind: str, content: bytes, outcome: str, message: Message | None, numbers: int = 0, answer_bytes: int = 0
    ) -> None:
        """Append the entry of a request and of the size of its answer."""
        append_entry(
            self.path, kind, outcome, content, self.flush, session=self.session, analyst=self.analyst,
            question=None if message is None else question_of(message), answer_bytes=answer_bytes,
            answer_numbers=numbers,
        )  # fmt: skip
