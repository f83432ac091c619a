"""What gRPC says of strangers on standard error is noted, and still shown."""

from __future__ import annotations

import subprocess
import sys

TALKS = """
import os, sys
from fco_cli.federation.flare.handshakes import MARK, note_failures

note_failures(lambda reason: print(reason, flush=True))
os.write(2, b"something else\\n")
os.write(2, b"I1117 ssl.cc:1] " + MARK.encode() + b"SSL_ERROR_SSL: no certificate\\n")
sys.exit("the last words")
"""


def test_failed_handshakes_are_noted_and_nothing_is_swallowed():
    done = subprocess.run([sys.executable, "-c", TALKS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "no certificate of this federation: SSL_ERROR_SSL: no certificate\n"
    assert [line.split("] ")[-1] for line in done.stderr.splitlines()] == [
        "something else", "Handshake failed with error SSL_ERROR_SSL: no certificate", "the last words",
    ]  # fmt: skip
