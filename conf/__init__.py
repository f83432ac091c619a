"""The YAML groups, as the package fco_cli.conf."""
