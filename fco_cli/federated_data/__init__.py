"""Clients' data from files: one neutral format, readers that convert into it, and the command `fco-data`."""

from fco_cli.federated_data.format import FederatedData, load, save

__all__ = ["FederatedData", "load", "save"]
