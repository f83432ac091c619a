"""Strangers at the server's door: a TLS handshake that fails is told by gRPC's own code, on standard error and nowhere
else, without saying who it was."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

VERBOSITY = {"GRPC_VERBOSITY": "info"}  # of a process in which they are to be told
MARK = "Handshake failed with error "


def note_failures(note: Callable[[str], object]) -> None:
    """From here on lines of standard error pass through this process, to where they went before; failures are noted."""
    end, begin = os.pipe()
    shown = os.dup(2)
    os.dup2(begin, 2)
    os.close(begin)

    def pass_on() -> None:
        with os.fdopen(end, "rb") as lines:
            for line in lines:
                os.write(shown, line)
                _, mark, reason = line.decode(errors="replace").partition(MARK)
                if mark:
                    note(f"no certificate of this federation: {reason.strip()}")

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()

    def restore() -> None:
        os.dup2(shown, 2)  # closes the pipe: the reader comes to its end
        reader.join(1.0)

    atexit.register(restore)
