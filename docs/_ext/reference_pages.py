"""Sphinx extension: pages of the reference, generated from the schemas, the registry and the commands' help.

`python docs/_ext/reference_pages.py FOLDER` writes them without Sphinx.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TITLES = {
    "task": "Tasks",
    "algo": "Algorithms",
    "regularizer": "Regularizers",
    "loss": "Losses",
    "mirror": "Mirror maps",
    "model": "Models",
    "transform": "Message transforms",
    "federation": "Federation",
    "participation": "Participation of clients",
    "time_model": "Time models",
    "aggregation": "Aggregation",
    "tracking": "Tracking",
}


def write_pages(folder: Path) -> None:
    """Write all generated pages; a page whose text has not changed is left alone, so that it is not read again."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"configuration": configuration_page(), "commands": commands_page(), "classes": classes_page()}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def configuration_page() -> str:
    """Return every key of the configuration: type, default and meaning."""
    from fco_cli.config.descriptions import yaml_descriptions
    from fco_cli.config.schemas import GlmSettings, PathSettings, RunConfig, families
    from fco_cli.simulation.hparams import Hparams

    lines = [
        "# Configuration",
        "",
        "Every key that `fco-run` accepts, generated from the schemas. `fco-run task=lasso --cfg job` prints the",
        "values of one run. A default is that of the schema; a preset (a file in `conf/`) can set another.",
        "",
    ]
    shared = yaml_descriptions(ROOT / "conf" / "config.yaml")
    own = [key for key in fields(RunConfig) if key.type != "Any" and key.name not in ("experiment", "profile")]
    lines += ["## Keys of a run", "", *key_table(RunConfig, own, "", shared)]
    sections: list[tuple[str, str, type]] = [
        ("Hyperparameters", "hparams", Hparams),
        ("Paths", "path", PathSettings),
        ("Estimates and inference", "glm", GlmSettings),
    ]
    for title, prefix, kind in sections:
        lines += [f"## {title} (`{prefix}`)", "", *key_table(kind, list(fields(kind)), f"{prefix}.", {})]
    for group, kinds in families().items():
        lines += [f"## {TITLES[group]} (`{group}`)", ""]
        for name, kind in sorted(kinds.items()):
            if not kind.__module__.startswith("fco_cli."):
                continue
            files = (ROOT / "conf" / "base" / "tabular.yaml", ROOT / "conf" / group / f"{name}.yaml")
            comments = {key: text for file in files for key, text in yaml_descriptions(file).items()}
            keys = [key for key in fields(kind) if key.name != "name" and is_key(key)]
            lines += [f"### `{group}={name}`", "", first_paragraph(kind), ""]
            lines += key_table(kind, keys, f"{group}.", comments)
    return "\n".join(lines) + "\n"


def key_table(kind: type, keys: list[Field[Any]], prefix: str, comments: Mapping[str, str]) -> list[str]:
    """Return the rows of a Markdown table of keys."""
    if not keys:
        return ["No keys.", ""]
    from fco_cli.config.descriptions import field_descriptions

    documented = {**field_descriptions(kind), **comments}
    rows = [
        f"| `{prefix}{key.name}` | {cell(type_text(key))} | {cell(default_text(key))} | "
        f"{cell(documented.get(key.name, ''))} |"
        for key in keys
    ]
    return ["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]


def is_key(key: Field[Any]) -> bool:
    """Return False for fields that the program sets, such as those of another configuration group."""
    return key.init and not key.metadata.get("omegaconf_ignore")


def type_text(key: Field[Any]) -> str:
    text = key.type if isinstance(key.type, str) else getattr(key.type, "__name__", str(key.type))
    return f"`{text}`"


def default_text(key: Field[Any]) -> str:
    if key.default is not MISSING and key.default != "???":
        return f"`{'null' if key.default is None else key.default}`"
    if key.default_factory is not MISSING:
        value = key.default_factory()
        return f"`{value}`" if isinstance(value, list | dict) else ""
    return "set by a preset"


def cell(text: str) -> str:
    """Return a text as the content of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def first_paragraph(kind: type) -> str:
    text = inspect.cleandoc(kind.__doc__ or "")
    return " ".join(text.split("\n\n")[0].split())


def classes_page() -> str:
    """Return what is registered: a row for each algorithm, regularizer, loss, mirror map, transform, model and task."""
    from fco_cli.config.schemas import families
    from fco_cli.problem.losses import all_losses

    lines = [
        "# Algorithms, regularizers, losses, models",
        "",
        "Everything that is registered, generated from the classes.",
        "",
    ]
    members: dict[str, Mapping[str, Any]] = {**families(), "loss": all_losses()}
    for group, title in TITLES.items():
        rows = [
            f"| `{name}` | {cell(first_paragraph(kind))} |"
            for name, kind in sorted(members[group].items())
            if kind.__module__.startswith("fco_cli.")
        ]
        lines += [f"## {title}", "", "| name | description |", "|---|---|", *rows, ""]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the help texts of all commands."""
    lines = ["# Commands", "", "The output of `--help` of every command.", ""]
    for name, text in help_texts():
        lines += [f"## `{name}`", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines) + "\n"


def help_texts() -> Iterator[tuple[str, str]]:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    for name, target in scripts.items():
        module = target.partition(":")[0]
        command = [sys.executable, "-m", module, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
        yield name, done.stdout.replace(f"python -m {module}", name)


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference" / "generated"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
