"""Help texts: that of `fco-run`, built without heavy imports, and a patch for those of Hydra's command-line parser.

Since Python 3.14 argparse checks the format of every help text when an argument is added. Hydra passes one help text as
an object that is converted to text later, which fails the check ("badly formed help string"). While Hydra builds its
parser, the patch restricts the check to strings. Hydra 1.3.8 still has the problem; 1.4.0rc3 fixes it.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, NoReturn

GROUPS = {
    "task": "data, model and loss",
    "algo": "algorithm",
    "model": "model; auto is the task's own",
    "regularizer": "penalty or constraint; the default depends on the task",
    "mirror": "mirror map; the default depends on the task",
    "transform": "compression or noise applied to the clients' messages",
    "participation": "availability and dropouts of simulated clients",
    "time_model": "simulated seconds of the clients",
    "aggregation": "synchronous rounds, or asynchronous with a buffer of messages",
    "hparams": "learning rates, rounds, clients, batches; the defaults depend on the task",
    "federation": "location of the clients: this process, or real sites (fco-federate)",
    "tracking": "where finished records are sent, in addition to outputs/",
    "hparams/grid": "with -m: a grid of learning rates",
    "experiment": "with -m: a figure of the paper or the leaderboard; path, glm and table1 analyze tables",
    "profile": "scale of an experiment",
}

TEMPLATE = """\
fco-run: federated composite optimization from the command line

  fco-run task=lasso algo=feddualavg hparams.client_lr=auto
      one run: progress, five rows of results, a record in outputs/; auto is 1/L, estimated from the data
  fco-run task=nuclear algo=fedmid hparams.client_lr=0.001 hparams.server_lr=0.3 seed=1
      any value of the configuration can be set, here the paper's learning rates
  fco-run -m experiment=lasso_i profile=quick
      a sweep over algorithms and learning rates; run the same command again to continue it
  fco-run -m hydra/sweeper=search task=lasso 'hparams.client_lr=tag(log,interval(1e-4,1))' search.budget=16
      a search over learning rates in batches of runs (docs/search.md)
  fco-run -m experiment=path task.path=heart.csv task.client=hospital task.label='num>0'
      a cross-validated path over strengths, and the two models that it selects (docs/path.md)

Groups (group=option):
{groups}
Keys of a run: seed, output_dir, force (repeat a finished run), threads, plugins (files with your own
algorithms, regularizers, losses, models or tasks: plugins=[my_method.py]); with -m also seeds (5 is seed=0,1,2,3,4)
and dry_run (print the estimated time and memory).
  fco-advise task=lasso            prints the learning rates recommended by the theorems for the task's data
  fco-run task=lasso --cfg job     prints the whole configuration of a run
  fco-run --version                prints the version
  fco-run --schema FOLDER          writes JSON schemas of the YAML groups, for editors
  fco-run --hydra-help             Hydra's own flags; tab completion: eval "$(fco-run -sc install=bash)"
"""


_added: dict[str, set[str]] = {}  # options of plug-ins, which have no YAML file


def add_option(group: str, name: str) -> None:
    """Add the option of a plug-in to a group."""
    _added.setdefault(group, set()).add(name)


def options_of(group: str) -> list[str]:
    """Return the options of a group: its YAML files and the loaded plug-ins."""
    return sorted({*shipped_options(group), *_added.get(group, ())})


@functools.cache
def shipped_options(group: str) -> list[str]:
    """Return the names of a group's YAML files."""
    entries = [entry.name for entry in files("fco_cli.conf").joinpath(group).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))


def help_text() -> str:
    """Return the help text with all groups and their options."""
    groups = ""
    for group, description in GROUPS.items():
        groups += f"  {group}: {description}\n"
        line = "     "
        for option in options_of(group):
            if len(line) + len(option) > 100:
                groups += line + "\n"
                line = "     "
            line += f" {option}"
        groups += line + "\n"
    return TEMPLATE.format(groups=groups)


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
