"""The `nvflare` command, called in this process."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from fco_cli.errors import UserError


def nvflare(*arguments: object) -> dict[str, Any]:
    """Run an nvflare command in this process, as a new process needs seconds to import it, and return its data."""
    from fco_cli.federation.flare.adapter import run

    output, before = io.StringIO(), sys.argv
    sys.argv = ["nvflare", "--format", "json", *map(str, arguments)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            run("nvflare")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    try:
        answer = json.loads(output.getvalue())
    except ValueError:
        raise UserError(
            f"nvflare {arguments[0]} {arguments[1]}: {' '.join(output.getvalue().split()) or code}"
        ) from None
    if code:
        raise UserError(f"nvflare {arguments[0]} {arguments[1]}: {answer.get('message') or answer}")
    return answer.get("data", answer)
