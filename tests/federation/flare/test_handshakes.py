"""Failed handshakes on standard error are reported, and all lines are still shown."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
from fco_cli.federation.flare.handshakes import MARK, report_failures

report_failures(lambda reason: print(reason, flush=True))
os.write(2, b"something else\\n")
os.write(2, b"I1117 ssl.cc:1] " + MARK.encode() + b"SSL_ERROR_SSL: no certificate\\n")
sys.exit("the last line")
"""


def test_failed_handshakes_are_reported_and_all_lines_shown():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "no certificate of this federation: SSL_ERROR_SSL: no certificate\n"
    assert [line.split("] ")[-1] for line in done.stderr.splitlines()] == [
        "something else", "Handshake failed with error SSL_ERROR_SSL: no certificate", "the last line",
    ]  # fmt: skip
