"""Regularizers and constraints, one class each."""

from fco_cli.problem.regularizers.base import BlockInfo, Regularizer, all_regularizers

__all__ = ["BlockInfo", "Regularizer", "all_regularizers"]
