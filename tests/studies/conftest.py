"""Fixtures shared with the tests of reporting: synthetic records."""

from tests.reporting.conftest import quick_figures, records

__all__ = ["quick_figures", "records"]
