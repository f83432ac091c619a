"""Studies that ship with the package: yuan2021 (the paper) and leaderboard (all methods).

They use only the public API of `fco_cli.reporting`; a user's own study is the same thing in another folder.
"""

from __future__ import annotations

from fco_cli.problem.registry import Registry
from fco_cli.reporting import Study
from fco_cli.reporting.objects import is_user_study

registered_studies: Registry[Study] = Registry("study", Study, __name__)


def all_studies() -> list[Study]:
    """Return the studies of this package and of plug-ins; those given to one report by folder are not included."""
    return [kind() for kind in registered_studies().values() if not is_user_study(kind)]
