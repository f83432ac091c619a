"""The text of `fco-run --help`, from the configuration itself; nothing heavy is imported for it."""

from __future__ import annotations

from importlib.resources import files

GROUPS = {
    "task": "what is learnt, from which data",
    "algo": "how",
    "regularizer": "the penalty or constraint; follows the task",
    "mirror": "the mirror map; follows the task",
    "transform": "what the clients' messages go through",
    "hparams": "learning rates, rounds, clients, batches; follow the task",
    "federation": "who has the clients: this process, or real sites (fco-federate)",
    "hparams/grid": "with -m: a grid of learning rates",
    "experiment": "with -m: a figure of the paper, ready to run; path chooses a strength",
    "profile": "how much of an experiment",
}

TEMPLATE = """\
fco-run: federated composite optimization from the command line

  fco-run task=lasso algo=feddualavg
      one run: a progress line, a table of the final metrics, a record in outputs/
  fco-run task=nuclear algo=fedmid hparams.client_lr=0.001 hparams.server_lr=0.3 seed=1
      any value of the configuration can be set; hparams.client_lr=auto takes 1/L of the data
  fco-run -m experiment=lasso_i profile=quick
      a sweep over algorithms and learning rates; the same command continues it
  fco-run -m experiment=path task.path=heart.csv task.client=hospital task.label='num>0'
      which strength: the path of models, cross-validated, and the two that it chooses (docs/path.md)

Groups (group=option):
{groups}
Keys of a run: seed, output_dir, force (run again what is done), threads; with -m also seeds (5 is seed=0,1,2,3,4) and
dry_run (say how much work it is).
  fco-advise task=lasso            the learning rates that the theorems recommend on the task's data
  fco-run task=lasso --cfg job     prints the whole configuration of a run
  fco-run --version                prints the version
  fco-run --hydra-help             Hydra's own flags; tab completion: eval "$(fco-run -sc install=bash)"
"""


def options_of(group: str) -> list[str]:
    """The options of a group: its YAML files."""
    entries = [entry.name for entry in files("fco_cli.conf").joinpath(group).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))


def help_text() -> str:
    groups = ""
    for group, meaning in GROUPS.items():
        groups += f"  {group}: {meaning}\n"
        line = "     "
        for option in options_of(group):
            if len(line) + len(option) > 100:
                groups += line + "\n"
                line = "     "
            line += f" {option}"
        groups += line + "\n"
    return TEMPLATE.format(groups=groups)
