"""Configuration: schemas of the groups, the typed run and its identity."""

from fco_cli.config.run import GlmRun, PathRun, Run, Table1Run, kind_of
from fco_cli.config.schemas import register

__all__ = ["GlmRun", "PathRun", "Run", "Table1Run", "kind_of", "register"]
