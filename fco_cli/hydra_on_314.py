"""Patch that makes Hydra 1.3 work on Python 3.14.

Since Python 3.14 argparse checks the format of every help text when an argument is added. Hydra passes one help text as
an object that is converted to text later, which fails the check ("badly formed help string"). While Hydra builds its
parser, this patch restricts the check to strings. It can be removed with Hydra 1.4, which fixes the problem.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def patch_argparse() -> None:
    """Patch the function that builds Hydra's parser, for commands and for tab completion."""
    import hydra.main  # noqa: F401 - the module, which the function of that name hides
    from hydra._internal import utils

    build = getattr(utils.get_args_parser, "unpatched", utils.get_args_parser)

    def get_args_parser() -> argparse.ArgumentParser:
        with check_only_text():
            return build()

    get_args_parser.unpatched = build  # type: ignore[attr-defined]
    utils.get_args_parser = get_args_parser
    sys.modules["hydra.main"].get_args_parser = get_args_parser  # type: ignore[attr-defined]


@contextmanager
def check_only_text() -> Iterator[None]:
    """Restrict argparse's check of help texts to strings."""
    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None:  # before Python 3.14
        yield
        return

    def check_text(parser: argparse.ArgumentParser, action: Any) -> None:
        if isinstance(action.help, str):
            check(parser, action)

    argparse.ArgumentParser._check_help = check_text  # type: ignore[attr-defined]
    try:
        yield
    finally:
        argparse.ArgumentParser._check_help = check  # type: ignore[attr-defined]
