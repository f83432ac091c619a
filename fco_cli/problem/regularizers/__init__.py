"""Regularizers and constraints, one small class each."""

from fco_cli.problem.regularizers.base import Regularizer, all_regularizers

__all__ = ["Regularizer", "all_regularizers"]
