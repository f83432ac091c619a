"""conf/ says everything once: what several files of a group share stands in the one that they inherit from."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import yaml

from fco_cli import conf

ROOT = Path(conf.__path__[0])
GROUPS = sorted({path.parent for path in ROOT.rglob("*.yaml")})
COINCIDENCES = 2  # two files may agree on this many values; three are something that they share


def values_of(path: Path) -> set[tuple[str, str]]:
    """Every value that the file sets, with its full key; what it inherits (`defaults`) is not its own."""

    def leaves(node, key):
        if not isinstance(node, dict):
            return [(key, repr(node))]
        return [leaf for name, value in node.items() for leaf in leaves(value, f"{key}.{name}")]

    content = yaml.safe_load(path.read_text()) or {}
    return {leaf for name, value in content.items() if name != "defaults" for leaf in leaves(value, name)}


@pytest.mark.parametrize("group", GROUPS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_two_files_of_a_group_say_the_same(group):
    for one, other in combinations(sorted(group.glob("*.yaml")), 2):
        shared = values_of(one) & values_of(other)
        assert len(shared) <= COINCIDENCES, f"{one.name} and {other.name} both say {sorted(shared)}: inherit instead"


def inherited_by(path: Path) -> dict[str, str]:
    """Return the merged content of the files that it inherits from; a later one overrides an earlier one."""
    values: dict[str, str] = {}
    for item in (yaml.safe_load(path.read_text()) or {}).get("defaults", []):
        if isinstance(item, str) and item != "_self_" and not item.startswith("/schema"):
            name = item.split("@")[0]
            parent = (ROOT / name[1:] if name.startswith("/") else path.parent / name).with_suffix(".yaml")
            values |= inherited_by(parent) | dict(values_of(parent))
    return values


@pytest.mark.parametrize("group", [g for g in GROUPS if g != ROOT], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_repeats_what_it_inherits(group):
    for path in group.glob("*.yaml"):
        inherited = inherited_by(path)
        repeated = {key for key, value in values_of(path) if inherited.get(key) == value}
        assert not repeated, f"{path.name} repeats {sorted(repeated)}"
