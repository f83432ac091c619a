"""The key `plugins` and the environment variable FCO_PLUGINS: files or modules that are loaded before composition.

A report loads the plug-ins that its records name, so that their algorithms have labels and colors. It executes only
code that this user has loaded before by the key or the variable: records may come from others.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fco_cli.errors import UserError
from fco_cli.files import cache_folder, unsafe_reason
from fco_cli.problem.registry import Plugin, load_plugin

VARIABLE = "FCO_PLUGINS"
OVERRIDE = re.compile(r"\+{0,2}plugins=")


def load_plugins(overrides: Sequence[str] = ()) -> list[str]:
    """Load the plug-ins of the environment and of all `plugins=[...]`; return the overrides with one list of them."""
    own = [text for text in overrides if OVERRIDE.match(text)]
    sources = dict.fromkeys([*environment_plugins(), *(source for text in own for source in _sources(text))])
    for source in sources:
        _remember(load_plugin(source))
    others = [text for text in overrides if text not in own]
    if not sources:
        return others
    quoted = ",".join("'" + source.replace("'", r"\'") + "'" for source in sources)
    first = next((k for k, text in enumerate(others) if "=" in text and not text.startswith("-")), len(others))
    return [*others[:first], f"plugins=[{quoted}]", *others[first:]]  # after the flag -m


def load_recorded(recorded: Iterable[dict[str, str]]) -> None:
    """Load the plug-ins of the environment, and those of records (path and digest) that are unchanged and remembered.

    A plug-in that cannot be loaded is skipped: the report then shows its algorithm by its name.
    """
    load_plugins()
    for path, digest in dict.fromkeys(pair for plugins in recorded for pair in plugins.items()):
        with suppress(OSError, UserError):
            is_known = (_folder() / digest).is_file() and unsafe_reason(_folder()) is None
            if is_known and hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest:
                load_plugin(path)


def _folder() -> Path:
    """Return the private folder with an empty file for each plug-in that this user has loaded, named by its digest."""
    return cache_folder("plugins")


def _remember(plugin: Plugin) -> None:
    """Note that this user has loaded a plug-in; a cache folder that is not writable is ignored."""
    with suppress(OSError):
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        (_folder() / plugin.digest).touch()


def environment_plugins() -> list[str]:
    """Return the plug-ins that FCO_PLUGINS lists, separated by commas or as in PATH."""
    listed = os.environ.get(VARIABLE, "").strip()
    listed = listed[1:-1] if listed.startswith("[") and listed.endswith("]") else listed
    return [source.strip() for source in re.split(f"[,{re.escape(os.pathsep)}]", listed) if source.strip()]


def _sources(text: str) -> list[str]:
    """Return the plug-ins of one override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    value: Any = None
    with suppress(HydraException):
        value = OverridesParser.create().parse_override(text)._value
    names: list[Any] = [getattr(item, "text", item) for item in value] if isinstance(value, list) else [None]
    if not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{text}: must be a list of files or modules, such as plugins=[my_method.py]")
    return names
