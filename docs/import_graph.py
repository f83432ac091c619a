"""Print the import graph of the packages of fco_cli as a Mermaid diagram; --write updates CONTRIBUTING.md.

An arrow leads from a package to one that uses it. Arrows that follow from others are left out (transitive reduction).
Modules at the top of fco_cli, which all packages use, are left out too, except api.py. `conf` is read by name and
records are files; both are part of the diagram because data pass through them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fco_cli"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
START, END = "```mermaid\n", "```\n"
CONFIGURATION = "conf"
MODULES = {"api"}  # modules at the top of fco_cli that are part of the diagram
RECORDS = ("simulation", "reporting")  # the packages that write and read records

Graph = dict[str, set[str]]  # package -> packages that it uses


def imports_of(path: Path) -> set[str]:
    """Return the modules of fco_cli that a module imports, also inside functions and for type checking."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{a.name}" if node.module == "fco_cli" else node.module for a in node.names}
    return {name for name in names if name.startswith("fco_cli.")}


def reads_configuration(path: Path) -> bool:
    """Return True if a module names the package of the YAML files."""
    constants = (
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    )
    return any(isinstance(node.value, str) and node.value.endswith("fco_cli.conf") for node in constants)


def package_graph() -> Graph:
    """Return the packages of fco_cli with the packages that each one uses."""
    nodes = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | MODULES
    graph: Graph = {CONFIGURATION: set(), **{name: set() for name in sorted(nodes - {CONFIGURATION})}}
    for name in graph.keys() - {CONFIGURATION}:
        modules = [PACKAGE / f"{name}.py"] if name in MODULES else sorted((PACKAGE / name).rglob("*.py"))
        for path in modules:
            graph[name] |= {module.split(".")[1] for module in imports_of(path)} & (graph.keys() - {name})
            if reads_configuration(path):
                graph[name].add(CONFIGURATION)
    return graph


def reduced(graph: Graph) -> Graph:
    """Return the transitive reduction: without the packages that a package also uses through others."""

    def reachable(name: str) -> set[str]:
        return graph[name].union(*(reachable(used) for used in graph[name]))

    return {name: used - set().union(*(reachable(other) for other in used)) for name, used in graph.items()}


def mermaid_lines(graph: Graph) -> Iterator[str]:
    """Yield the lines of the diagram, the lowest packages first."""
    yield "flowchart TD"
    order = TopologicalSorter({name: sorted(used) for name, used in graph.items()})
    order.prepare()
    while order.is_active():
        names = sorted(order.get_ready())
        for name in names:
            yield from (f"    {used} --> {name}" for used in sorted(graph[name]))
        order.done(*names)
    writer, reader = RECORDS
    yield f"    {writer} -. records .-> {reader}"


def diagram() -> str:
    """Return the diagram of the package, in Mermaid's language."""
    return "\n".join(mermaid_lines(reduced(package_graph()))) + "\n"


def split_contributing() -> tuple[str, str, str]:
    """Return CONTRIBUTING.md before its diagram, the diagram, and the rest."""
    before, _, rest = CONTRIBUTING.read_text(encoding="utf-8").partition(START)
    current, _, after = rest.partition(END)
    return before + START, current, END + after


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        before, _, after = split_contributing()
        CONTRIBUTING.write_text(before + diagram() + after, encoding="utf-8")
    else:
        print(diagram(), end="")
