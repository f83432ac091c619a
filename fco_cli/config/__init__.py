"""What a user writes: the schemas of the groups, the typed run, and when two runs are the same."""

from fco_cli.config.run import Run
from fco_cli.config.schemas import register

__all__ = ["Run", "register"]
