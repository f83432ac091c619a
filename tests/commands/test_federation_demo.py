"""`make federation-demo`: a path between real processes whose sites have the policy `research`."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.ci


def test_the_demonstration_has_the_bits_of_the_simulation():
    pytest.importorskip("nvflare")
    command = [sys.executable, "-m", "fco_cli.commands.federation_demo"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "a coordinator and 4 hospitals have joined" in made.stdout
    assert "next: " not in made.stdout  # its folder is removed
    assert made.stdout.splitlines()[-1] == "models of the hospitals and of the simulation, bitwise: OK"
