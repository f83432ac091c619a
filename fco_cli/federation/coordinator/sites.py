"""Connection of the coordinator to the sites: requests out, validated responses back."""

from __future__ import annotations

import getpass
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

import fco_cli
from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.masked import MaskedGroup, MaskedSum, masked_specs
from fco_cli.federation.message import Arrays, ArraySpec, BadMessage, Message, read_arrays
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.federation.response_schema import RESPONSES, Refused, Software
from fco_cli.federation.site.agreed import RowsByPart, rows_digest
from fco_cli.federation.site.data import code_digest
from fco_cli.simulation.clients import ClientsLost

MAX_MESSAGE_BYTES = 2**31 - 2**25  # frames of NVIDIA FLARE are limited to slightly less than 2 GiB
COMPILING_SECONDS = 300.0  # additional timeout of the first request of a kind, which may compile kernels
SKIPPABLE = ("stack", "save", "forget")  # kinds that a site missing in masked rounds need not answer

Expected = Callable[[str], Mapping[str, ArraySpec]]  # returns the array specs of a site's response


@dataclass(frozen=True)
class Response:
    """Validated response: a head of the schema of its kind, and arrays as declared."""

    head: Any
    arrays: Arrays = field(default_factory=dict)


def no_arrays(_name: str) -> Mapping[str, ArraySpec]:
    return {}


class Link(Protocol):
    """Transport of messages to the sites."""

    def request(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        """Return the responses, by site, that arrived within `timeout` seconds."""

    def last_contacts(self) -> dict[str, float]:
        """Return the times of the sites' last contacts with the server, by site."""

    def close(self) -> None: ...


class Sites:
    """Sites in alphabetical order, connected at the first request.

    With `mask_bits` (fraction bits), sites mask their responses and only sums over at least `min_sites` sites are
    readable. With `noise`, evaluations are noisy and no summaries of rows are requested.
    """

    def __init__(
        self,
        names: list[str],
        connect: Callable[[], Link],
        timeout: float = 60.0,
        patience: float = 600.0,
        min_sites: int | None = None,
        mask_bits: int | None = None,
        noise: EvaluationNoise | None = None,
    ) -> None:
        self.mask_bits, self.noise = mask_bits, noise
        self.names, self.connect, self.timeout, self.patience = sorted(names), connect, timeout, patience
        self.min_sites = len(names) if min_sites is None else min_sites
        self.link: Link | None = None
        self.agreement: Agreement | None = None  # current at the sites; replayed on a new connection
        self.stacks = 0
        self.stack_request: tuple[dict[str, Any], Arrays] = ({}, {})
        self.group: MaskedGroup | None = None  # of the session, if responses are masked
        self.compiled: set[str] = set()

    def request(
        self,
        kind: str,
        head: dict[str, Any] | None = None,
        arrays: Arrays | None = None,
        names: list[str] | None = None,
        min_responses: int | None = None,
        expected: Expected = no_arrays,
    ) -> dict[str, Response]:
        """Return validated responses by site; raise ClientsLost if fewer than `min_responses` arrive."""
        names = self.names if names is None else names
        self.ensure_connected()
        if self.group is not None and kind in SKIPPABLE:
            return self._request_present(kind, head or {}, arrays or {}, self.group)
        least = len(names) if min_responses is None else min_responses
        return self._request(kind, head or {}, arrays or {}, names, least, expected)

    def _request_present(
        self, kind: str, head: dict[str, Any], arrays: Arrays, group: MaskedGroup
    ) -> dict[str, Response]:
        """Send a request to the sites that are not missing in the masked rounds."""
        responses = self._request(kind, head, arrays, group.present, self.min_sites)
        for name in group.present:
            if name not in responses:
                group.offers.pop(name)
        if kind == "stack":
            self.stack_request = head, arrays
            group.behind = set(group.missing)
        return responses

    def repeat_stack(self, name: str) -> bool:
        """Send the current stack to a site that missed it; return True if it answers."""
        return bool(self.exchange("stack", *self.stack_request, [name])[2])

    def switch_to(self, agreement: Agreement) -> None:
        """Switch the sites to the rows of an agreement, unless it is the current one."""
        if self.agreement is not agreement:
            self.agreement = agreement
            connected = self.link is not None
            self.ensure_connected()
            if connected:
                self._replay(agreement)

    def descriptions(self) -> dict[str, Response]:
        """Return the descriptions of the sites, which all run the coordinator's version."""
        self.ensure_connected()
        return self._descriptions

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def ensure_connected(self) -> None:
        """Connect if necessary; raise UserError if sites stay unavailable for `patience` seconds."""
        end = time.monotonic() + self.patience
        while self.link is None:
            try:
                self._connect()
            except ClientsLost as problem:
                if time.monotonic() > end:
                    raise UserError(f"federation: {problem}") from problem

    def _connect(self) -> None:
        """Open a session: descriptions, mask keys and the current agreement."""
        self.link, self.session, self.number = self.connect(), secrets.token_hex(16), 0
        self.compiled.clear()
        self.group = None
        count = len(self.names)
        self._descriptions = self._request("describe", {"analyst": _analyst()}, {}, self.names, count)
        if self.mask_bits is not None:
            responses = self._request("key", {}, {}, self.names, count)
            keys = {name: msgspec.to_builtins(response.head.key) for name, response in responses.items()}
            head = {"keys": keys, "bits": self.mask_bits, "needed": self.min_sites}
            self.group = MaskedGroup(self, self.min_sites, self._request("keys", head, {}, self.names, count))
        if self.agreement is not None:
            self._replay(self.agreement)

    def _replay(self, agreement: Agreement) -> None:
        """Repeat the requests of an agreement."""
        for kind, head in agreement.requests:
            self._request(kind, head, {}, self.names, len(self.names))

    def _request(
        self,
        kind: str,
        head: dict[str, Any],
        arrays: Arrays,
        names: list[str],
        min_responses: int,
        expected: Expected = no_arrays,
    ) -> dict[str, Response]:
        _, _, responses = self.exchange(kind, head, arrays, names, expected)
        if len(responses) < min_responses:
            self.disconnect()
            silent = ", ".join(name for name in names if name not in responses)
            raise ClientsLost(f"no response from {silent} within {self._timeout(kind):g} s")
        return responses

    def _timeout(self, kind: str) -> float:
        return self.timeout + COMPILING_SECONDS * (kind not in self.compiled)

    def exchange(
        self,
        kind: str,
        head: dict[str, Any],
        arrays: Arrays,
        names: list[str],
        expected: Expected = no_arrays,
        timeout: float | None = None,
    ) -> tuple[int, bytes, dict[str, Response]]:
        """Send a request; return its number, its content and the validated responses that arrived in time."""
        assert self.link is not None
        self.number += 1
        if kind == "stack":
            self.compiled.clear()
        content = Message(kind, head | {"session": self.session, "number": self.number}, arrays).packed()
        try:
            responses = self.link.request(names, content, timeout or self._timeout(kind))
        except ClientsLost:
            self.disconnect()
            raise
        if len(responses) == len(names):
            self.compiled.add(kind)
        checked = {name: self._checked(name, kind, responses[name], expected) for name in names if name in responses}
        return self.number, content, checked

    def _checked(self, name: str, kind: str, content: bytes, expected: Expected) -> Response:
        """Return a response to the last request, validated; raise UserError with the site's reason if it refused."""
        with report_invalid_response(name, kind):
            message = Message.unpacked(content)
            if message.kind == "refused":
                raise UserError(f"{name}: {shown(message.head_as(Refused).reason)}")
            if message.kind != kind:
                raise BadMessage("belongs to another request")
            if kind == "describe":
                _check_software(name, message.head_as(Software))
            head = message.head_as(RESPONSES[kind])
            if head.number != self.number:
                raise BadMessage("belongs to another request")
            return Response(head, read_arrays(message.arrays, expected(name)))


class Agreement:
    """Common preparation of the sites' rows for all fits of a run, as the list of requests that establishes it.

    The requests are replayed after a reconnection and when the sites return from another run's agreement.
    """

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[RowsByPart] = []  # all sites' numbers of rows by fit, known to every site if masked

    def add(self, kind: str, head: dict[str, Any]) -> dict[str, Response]:
        """Send a request and append it to the list."""
        self.sites.switch_to(self)
        responses = self.sites.request(kind, head)
        self.requests.append((kind, head))
        return responses

    def request(self, *arguments: Any, **options: Any) -> dict[str, Response]:
        """Send a request about these rows (`Sites.request`)."""
        self.sites.switch_to(self)
        return self.sites.request(*arguments, **options)

    def sum(
        self, kind: str, head: dict[str, Any], arrays: Arrays, specs: Mapping[str, ArraySpec]
    ) -> dict[int, MaskedSum]:
        """Return the sums of the sites' masked responses about these rows, by fit."""
        self.sites.switch_to(self)
        self.sites.ensure_connected()
        group, masked = self.sites.group, masked_specs(specs)
        assert group is not None
        agreed = {"agreed": rows_digest(self.rows)} if self.rows else {}
        return group.sum(kind, head | agreed, arrays, lambda _: masked)

    def sum_of_all(
        self, kind: str, head: dict[str, Any], arrays: Arrays, specs: Mapping[str, ArraySpec]
    ) -> dict[int, MaskedSum]:
        """Return the sums of all sites' masked responses by fit; raise ClientsLost if a site is missing."""
        totals = self.sum(kind, head, arrays, specs)
        present = next(iter(totals.values())).present
        if missing := [name for name in self.sites.names if name not in present]:
            self.sites.disconnect()
            raise ClientsLost(f"no response from {', '.join(missing)}; {kind!r} needs all sites")
        return totals


def _analyst() -> str:
    """Return the user and the machine, which the sites write to their audit files."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a user name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:200]


def _check_software(name: str, theirs: Software) -> None:
    """Raise UserError if the site's software differs from the coordinator's."""
    version, code = fco_cli.__version__, code_digest()
    if (theirs.version, theirs.code) != (version, code):
        versions = f"{shown(theirs.version)} ({theirs.code}), the coordinator's is {version} ({code})"
        raise UserError(f"{name}: its fco-cli is {versions}; all parties must install the same version")


@contextmanager
def report_invalid_response(name: str, kind: str) -> Iterator[None]:
    """Convert BadMessage to a UserError with the site's name and the kind of the request."""
    try:
        yield
    except BadMessage as problem:
        raise UserError(f"site {name!r}: invalid response to {kind!r}: {shown(problem)}") from problem
