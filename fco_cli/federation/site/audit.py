"""Audit file of a party: one JSON line for every received or refused message, each chained to the line before.

A line holds the question in full (its head, and its arrays up to `MAX_LISTED` numbers), the size of the answer and
never a row. It ends with `chain`, the SHA-256 of the previous line's `chain` and of its own text. `audit.head` holds
the number of entries, the last `chain` and the size of the file, so that removed lines are found as well. Large files
are rotated; the chain continues in the next file. Several processes of a party may write at the same time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fco_cli.errors import UserError
from fco_cli.federation.message import Message
from fco_cli.files import lock_file

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


def append_entry(path: Path, kind: str, outcome: str, content: bytes = b"", **more: Any) -> None:
    """Append the entry of a message to an audit file."""
    at, digest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), hashlib.sha256(content).hexdigest()
    lock = os.open(path.with_name(HEAD_FILE), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(lock)
        head = _read_head(lock, path)
        entry = Entry(at, kind, len(content), digest, outcome, number=head.entries + 1, **more)
        body = msgspec.json.encode(entry)[: -len(b',"chain":""}')]
        chain = _next_chain(head.chain, body)
        size = _append_line(path, body + CHAIN + chain.encode() + b'"}\n')
        if size > ROTATE_BYTES:
            path.rename(path.with_name(f"audit.{len(_rotated(path)) + 1:06}.jsonl"))
            size = 0
        state = msgspec.json.encode(Head(head.entries + 1, chain, size))
        os.pwrite(lock, state.ljust(HEAD_BYTES), 0)
    finally:
        os.close(lock)  # releases the lock


def _read_head(lock: int, path: Path) -> Head:
    """Return the state of the chain; entries of an earlier version, without a chain, are hashed as a whole."""
    text = os.pread(lock, HEAD_BYTES + 1, 0)
    try:
        head = msgspec.json.decode(text, type=Head) if text else Head(chain=_unchained(path))
    except ValueError:  # damaged: `verify` reports it
        head = Head()
    size = path.stat().st_size if path.exists() else 0
    if size > head.size > 0 or (size and head.entries and not head.size):
        # The process died between the entry and the head.
        with path.open("rb") as file:
            file.seek(head.size)
            for line in file.read().splitlines():
                if is_chained(line, head.chain):
                    head = Head(head.entries + 1, line[-66:-2].decode(), size)
    return head


def _append_line(path: Path, line: bytes) -> int:
    """Append a line, after an end of line if the last one is incomplete; return the size of the file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = os.fstat(file).st_size
        if end and os.pread(file, 1, end - 1) != b"\n":
            line = b"\n" + line
        if os.pwrite(file, line, end) < len(line):  # no space left
            os.ftruncate(file, end)
            raise OSError(f"{path}: no space left for the audit file")
        return end + len(line)
    finally:
        os.close(file)


def _unchained(path: Path) -> str:
    content = path.read_bytes() if path.exists() else b""
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
    count, chain, before = 0, "", hashlib.sha256()
    for one in (*_rotated(path), path):
        for number, line in enumerate(one.read_bytes().splitlines() if one.exists() else (), 1):
            if is_chained(line, chain):
                count, chain = count + 1, line[-66:-2].decode()
            elif count == 0 and is_chained(line, before.hexdigest()):  # after entries of an earlier version
                count, chain = 1, line[-66:-2].decode()
            elif count == 0 and CHAIN not in line:
                before.update(line + b"\n")
            else:
                raise UserError(f"{one}: line {number} was changed, or entries before it were removed or inserted")
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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session = self.analyst = ""

    def write(self, kind: str, content: bytes, outcome: str, message: Message | None, answer: Message | None) -> None:
        """Append the entry of a request and of the size of its answer."""
        numbers, size = 0, 0
        if answer is not None:
            numbers = sum(values.size for values in answer.arrays.values())
            size = sum(values.nbytes for values in answer.arrays.values()) + len(msgspec.json.encode(answer.head))
        append_entry(
            self.path, kind, outcome, content, session=self.session, analyst=self.analyst,
            question=None if message is None else question_of(message), answer_bytes=size, answer_numbers=numbers,
        )  # fmt: skip
