"""Checks for plug-ins: the properties that the package's own tests prove for every registered class.

    from fco_cli.testing import check_algorithm, check_regularizer

    def test_my_method():
        check_algorithm(MyMethod, limit="optimum")

Each function raises AssertionError with the name of the failed check. Kernels run as plain Python, which takes seconds;
`compiled=True` also compiles them and compares.
"""

from fco_cli.testing.algorithms import check_algorithm
from fco_cli.testing.losses import check_loss
from fco_cli.testing.regularizers import check_regularizer
from fco_cli.testing.tasks import check_task

__all__ = ["check_algorithm", "check_loss", "check_regularizer", "check_task"]
