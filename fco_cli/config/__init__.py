"""Configuration: schemas of the groups, the typed run and its identity."""

from fco_cli.config.kinds import GlmRun, PathRun, Table1Run, kind_of
from fco_cli.config.run import Run
from fco_cli.config.schemas import register

__all__ = ["GlmRun", "PathRun", "Run", "Table1Run", "kind_of", "register"]
