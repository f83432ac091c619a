"""Failed TLS handshakes of the server, read from gRPC's log.

gRPC has no callback for a handshake that fails; it only writes a line to standard error. A test compares `MARK` with
what the installed gRPC writes.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

ENVIRONMENT = {"GRPC_VERBOSITY": "info"}  # with which gRPC logs failed handshakes
MARK = "Handshake failed with error "


def report_failures(report: Callable[[str], object]) -> None:
    """Call `report` for every failed handshake; all lines of standard error still reach their destination."""
    read_end, write_end = os.pipe()
    original = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)

    def forward() -> None:
        with os.fdopen(read_end, "rb") as lines:
            for line in lines:
                os.write(original, line)
                _, mark, reason = line.decode(errors="replace").partition(MARK)
                if mark:
                    report(f"no certificate of this federation: {reason.strip()}")

    reader = threading.Thread(target=forward, daemon=True)
    reader.start()

    def restore() -> None:
        os.dup2(original, 2)  # closes the pipe, so the reader ends
        reader.join(1.0)

    atexit.register(restore)
