"""The theorems of the paper, checked by running."""


def register() -> None:
    """Tell Hydra the schema of the `theory` node."""
    from hydra.core.config_store import ConfigStore

    from fco_cli.theory.statements import Grid

    ConfigStore.instance().store(group="schema", name="theory", node=Grid)
