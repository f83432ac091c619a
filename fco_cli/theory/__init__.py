"""The theorems of the paper, checked by running."""


def register() -> None:
    """Tell Hydra the schema of the `theory` node."""
    from fco_cli.config.schemas import store_schema

    store_schema("theory", _schema)


def _schema() -> type:
    from fco_cli.theory.statements import Grid

    return Grid
