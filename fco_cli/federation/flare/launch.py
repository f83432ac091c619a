"""Start of FLARE's processes with guards: `python -m fco_cli.federation.flare.launch PROCESS ARGUMENTS`.

PROCESS is a key of `adapter.PROGRAMS`; the arguments are those of FLARE's program. A wrong version of FLARE, a missing
name or a guard that cannot be installed ends the process with one line and exit code 2.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.federation.flare.adapter import PROGRAMS, check_flare
from fco_cli.federation.site.audit import AUDIT_FILE


def main() -> None:
    process, arguments = sys.argv[1], sys.argv[2:]
    try:
        check_flare()
        from fco_cli.federation.flare.guards import ServerGuard, SiteGuard, fail_closed
    except UserError as problem:
        sys.exit(exit_with(problem))
    with fail_closed("the installation of the guards"):
        audit = home_of(Path(arguments[arguments.index("-m") + 1])) / AUDIT_FILE
        guard = ServerGuard if process.startswith("server") else SiteGuard
        guard(audit, is_job=process.endswith("_job")).install()
    sys.argv = [PROGRAMS[process], *arguments]
    runpy.run_module(PROGRAMS[process], run_name="__main__", alter_sys=True)


def exit_with(problem: UserError) -> int:
    """Print an error in one line and return the exit code."""
    print(f"fco-federate: {problem}", file=sys.stderr)
    return 2


def home_of(kit: Path) -> Path:
    """Return the party's folder, by its kit."""
    return Path(json.loads((kit / "local" / "fco.json").read_text(encoding="utf-8"))["home"])


if __name__ == "__main__":
    main()
