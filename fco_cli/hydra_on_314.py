"""Hydra 1.3 on Python 3.14: since then argparse formats every help text as soon as it is added, to find mistakes in it.

Hydra gives one help text as an object that becomes text when it is shown, and argparse takes it for a mistake
("badly formed help string"). While Hydra builds its parser, only help that is text is checked. Hydra 1.4, so far
in release candidates, sees to it itself: with it this module can go.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def mend() -> None:
    """Let Hydra build its parser under the guard, for its commands and for tab completion."""
    import hydra.main  # noqa: F401 - the module, which the function of that name hides
    from hydra._internal import utils

    build = getattr(utils.get_args_parser, "unguarded", utils.get_args_parser)

    def get_args_parser() -> argparse.ArgumentParser:
        with only_text_is_checked():
            return build()

    get_args_parser.unguarded = build  # type: ignore[attr-defined]
    utils.get_args_parser = get_args_parser
    sys.modules["hydra.main"].get_args_parser = get_args_parser  # type: ignore[attr-defined]


@contextmanager
def only_text_is_checked() -> Iterator[None]:
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
