"""Regularizers and constraints, one class each."""

from fco_cli.problem.regularizers.base import OneBlock, Regularizer, all_regularizers

__all__ = ["OneBlock", "Regularizer", "all_regularizers"]
