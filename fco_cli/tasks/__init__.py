"""Tasks: each builds a problem and owns its metrics."""

from fco_cli.tasks.base import Task
from fco_cli.tasks.fmri import Fmri
from fco_cli.tasks.fmri_sim import FmriSim
from fco_cli.tasks.lasso import Lasso
from fco_cli.tasks.nuclear import Nuclear

TASKS: dict[str, type[Task]] = {"lasso": Lasso, "nuclear": Nuclear, "fmri": Fmri, "fmri_sim": FmriSim}

__all__ = ["TASKS", "Task"]
