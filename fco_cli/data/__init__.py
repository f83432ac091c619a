"""Clients' data from files: the neutral format and the readers that convert other file formats into it."""

from fco_cli.data.format import FederatedData, save
from fco_cli.data.readers import read

__all__ = ["FederatedData", "read", "save"]
