"""Federated composite optimisation: run it, study it, apply it."""

__version__ = "0.1.0"
