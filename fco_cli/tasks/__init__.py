"""Tasks: data, model and loss of a problem, with task-specific metrics."""

from fco_cli.tasks.base import Task
from fco_cli.tasks.custom import Custom
from fco_cli.tasks.digits import Digits
from fco_cli.tasks.femnist import Femnist
from fco_cli.tasks.fmri import Fmri
from fco_cli.tasks.fmri_sim import FmriSim
from fco_cli.tasks.lasso import Lasso
from fco_cli.tasks.nuclear import Nuclear
from fco_cli.tasks.published import Published
from fco_cli.tasks.shapes import GroupSparse, Mixture, MonotoneRegression, Piecewise

TASKS: dict[str, type[Task]] = {
    "lasso": Lasso,
    "nuclear": Nuclear,
    "mixture": Mixture,
    "piecewise": Piecewise,
    "monotone": MonotoneRegression,
    "group_sparse": GroupSparse,
    "femnist": Femnist,
    "digits": Digits,
    "custom": Custom,
    "published": Published,
    "fmri": Fmri,
    "fmri_sim": FmriSim,
}

__all__ = ["TASKS", "Task"]
