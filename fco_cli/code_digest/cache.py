"""On-disk cache of parsed modules by the digest of their source; entries depend on the source and the parser only."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from fco_cli.code_digest import parse as parser
from fco_cli.code_digest.parse import Module, parse, sha256
from fco_cli.errors import UserError
from fco_cli.files import cache_folder, write_atomically
from fco_cli.private_folder import unsafe_reason

log = logging.getLogger(__name__)

MAX_CACHED = 4000  # modules
SHA256_BYTES = 32


def _parser_source() -> bytes:
    return Path(parser.__file__).read_bytes()


class ParsedModules:
    """Parsed modules by the digest of their source, in memory and in a file."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] | None = None
        self.has_new = False

    @property
    def path(self) -> Path:
        return cache_folder("code") / "digests"

    def get(self, source: bytes, package: str) -> Module:
        """Return the parsed module for this source; `package` resolves its relative imports."""
        if self.modules is None:
            self.modules = self._read()
        key = sha256(package.encode() + b"\0" + source)
        if key not in self.modules:
            self.modules[key] = parse(source, package)
            self.has_new = True
        return self.modules[key]

    def _read(self) -> dict[str, Module]:
        try:
            if unsafe_reason(self.path.parent):
                return {}
            content = self.path.read_bytes()
            checksum, body = content[:SHA256_BYTES], content[SHA256_BYTES:]
            if hashlib.sha256(_parser_source() + body).digest() != checksum:
                return {}
            return msgspec.msgpack.decode(body, type=dict[str, Module])
        except (OSError, msgspec.MsgspecError):
            return {}

    def save(self) -> None:
        """Write newly parsed modules to the file; ignore a folder that is not writable."""
        if not self.has_new or self.modules is None:
            return
        self.has_new = False
        body = msgspec.msgpack.encode(dict(list(self.modules.items())[-MAX_CACHED:]))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not unsafe_reason(self.path.parent):
                checksum = hashlib.sha256(_parser_source() + body).digest()
                write_atomically(self.path, checksum + body, flush=False)
        except (OSError, UserError) as error:
            log.debug("%s", error)


parsed_modules = ParsedModules()
