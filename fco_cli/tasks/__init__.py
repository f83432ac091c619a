"""Tasks: data, model and loss of a problem, with task-specific metrics."""

from fco_cli.problem.registry import Registry
from fco_cli.tasks.base import Task

all_tasks: Registry[Task] = Registry("task", Task, __name__)

__all__ = ["Task", "all_tasks"]
