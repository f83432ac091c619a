"""Numerical checks of the paper's theorems."""


def register() -> None:
    """Register the schema of the `theory` node with Hydra."""
    from fco_cli.config.schemas import store_schema

    store_schema("theory", _schema)


def _schema() -> type:
    from fco_cli.theory.statements import Grid

    return Grid
