"""Plug-in for fco. Importing this package registers its classes, which the entry point in pyproject.toml requests."""

from fco_example.method import InertialFedMid
from fco_example.penalty import SmoothL1

__all__ = ["InertialFedMid", "SmoothL1"]
