"""Clients' data from files: one neutral format, readers that convert into it, and the command `fco-data`."""

from fco_cli.data.format import FederatedData, save
from fco_cli.data.readers import read

__all__ = ["FederatedData", "read", "save"]
