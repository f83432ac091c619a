"""Patch of the function that builds Hydra's command-line parser, for Python 3.14 and for one-line errors.

Since Python 3.14 argparse checks the format of every help text when an argument is added. Hydra passes one help text as
an object that is converted to text later, which fails the check ("badly formed help string"). While Hydra builds its
parser, this patch restricts the check to strings. Hydra 1.3.8 still has the problem; 1.4.0rc3 fixes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


def patch_argparse(on_error: Callable[[str], NoReturn] | None = None) -> None:
    """Patch the function that builds Hydra's parser, for commands and for tab completion.

    `on_error` replaces the error method of this parser, which prints eight lines.
    """
    import hydra.main  # noqa: F401 - the module, which the function of that name hides
    from hydra._internal import utils

    build = getattr(utils.get_args_parser, "unpatched", utils.get_args_parser)

    def get_args_parser() -> argparse.ArgumentParser:
        with check_only_text():
            parser = build()
        if on_error is not None:
            parser.error = on_error  # type: ignore[method-assign]
        return parser

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
