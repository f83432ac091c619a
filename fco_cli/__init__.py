"""Federated composite optimization: run it, study it, apply it."""

__version__ = "0.3.0"
VERSION = f"fco-cli {__version__}"  # what every command answers to --version; on PyPI `fco` is somebody else's
