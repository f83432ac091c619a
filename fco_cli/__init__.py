"""Federated composite optimization: run it, study it, apply it."""

__version__ = "1.0.0"
VERSION = f"fco-cli {__version__}"  # printed by --version; `fco` on PyPI is another project
