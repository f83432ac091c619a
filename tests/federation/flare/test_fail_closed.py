"""A site whose guards cannot be installed, or are not effective, does not register; with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fco_cli.commands.federation_demo import free_port
from fco_cli.federation.flare.adapter import SUPPORTED
from fco_cli.federation.flare.rights import LAUNCH

pytest.importorskip("nvflare")
pytestmark = pytest.mark.ci

RAISING = """
def raising(*arguments, **options):
    raise RuntimeError("moved")
"""
DEFECTS = {  # module that Python imports at the start of the site, and the line by which the site ends
    "a filter that raises": (
        RAISING + "from nvflare.fuel.f3.cellnet.core_cell import CoreCell\nCoreCell.add_incoming_filter = raising",
        "the guard of incoming messages failed, so this party does not start: RuntimeError: moved",
    ),
    "a filter without effect": (
        "from nvflare.fuel.f3.cellnet.core_cell import CoreCell\n"
        "CoreCell.add_incoming_filter = lambda *arguments, **options: None",
        "self-test: a message of another site is accepted",
    ),
    "a missing method": (
        "from nvflare.private.fed.client.communicator import Communicator\ndel Communicator.client_registration",
        "Communicator.client_registration is missing",
    ),
    "commands that bypass the guard": (
        "from nvflare.private.fed.client.admin import FedAdminAgent\n"
        "def register(self, processor):\n"
        "    processor = getattr(processor, 'processor', processor)\n"
        "    self.processors |= {topic: processor for topic in processor.get_topics()}\n"
        "FedAdminAgent.register_processor = register",
        "self-test: a shell command is accepted",
    ),
    "another version": (
        "from importlib import metadata\n"
        "known = metadata.version\n"
        "metadata.version = lambda name: '2.9.9' if name == 'nvflare' else known(name)",
        f"NVIDIA FLARE 2.9.9 is not supported (supported: {', '.join(SUPPORTED)})",
    ),
}


@pytest.fixture(scope="module")
def join(tmp_path_factory) -> list[str]:
    """Return the command by which a site joins; its server does not run."""
    from fco_cli.federation.flare import enrollment

    folder = tmp_path_factory.mktemp("federation")
    coordinator, home, data = folder / "coordinator", folder / "north", folder / "north.npz"
    enrollment.create_federation(f"localhost:{free_port()}", coordinator)
    signed, fingerprint = enrollment.approve(enrollment.request("north", home), coordinator)
    np.savez(data, x=np.eye(12), y=np.arange(12.0), client=np.full(12, "north"))
    arguments = ["join", signed, "--fingerprint", fingerprint, "--data", data]
    return [sys.executable, "-m", "fco_cli.commands.federate", "--home", str(home), *map(str, arguments)]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_site_without_effective_guards_does_not_register(join, tmp_path, defect):
    module, line = DEFECTS[defect]
    (tmp_path / "sitecustomize.py").write_text(module)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(join, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2, done.stderr
    assert line in done.stderr.splitlines()[-1]
    assert "Successfully registered" not in done.stdout + done.stderr


def test_the_kit_s_own_script_starts_no_process_without_guards(join):
    """FLARE's program does not install the guards."""
    with subprocess.Popen(join, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as joining:
        assert any(line.startswith("joining;") for line in joining.stdout)  # the kit is written, the server is down
        joining.kill()
    (kit,) = (Path(join[join.index("--home") + 1]) / "kits").rglob("prod_00/north")
    arguments = ["-m", kit, "-s", "fed_client.json", "--set", "secure_train=true", "uid=north", "config_folder="]
    unguarded, guarded = (
        [sys.executable, "-m", *command, *map(str, arguments)]
        for command in (["nvflare.private.fed.app.client.client_train"], [LAUNCH, "client"])
    )
    done = subprocess.run(unguarded, capture_output=True, text=True, timeout=120, cwd=kit)
    assert done.returncode == 2
    assert "has no guards; start the party by fco-federate join" in done.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(guarded, capture_output=True, timeout=8, cwd=kit)
