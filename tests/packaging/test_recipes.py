"""The image, the conda recipe, the constraints file and the release workflow agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import fco_cli

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}  # without graphical interfaces


def split(requirement: str) -> tuple[str, str]:
    """Return the name and the versions of a requirement."""
    match = re.fullmatch(r"([\w.-]+?)([<>=].*)", requirement)
    assert match, requirement
    return match[1], match[2]


def test_the_constraints_are_the_lowest_allowed_versions():
    lines = (PACKAGING / "lowest.txt").read_text(encoding="utf-8").splitlines()[1:]
    bounds = [(name, re.search(r">=([\d.]+)", versions)) for name, versions in map(split, PROJECT["dependencies"])]
    assert lines == [f"{name}=={bound[1]}" for name, bound in bounds]


def test_the_conda_recipe_has_the_requirements_and_commands():
    recipe = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == fco_cli.__version__
    assert recipe["package"]["name"] == PROJECT["name"]
    assert recipe["requirements"]["host"][0] == f"python {PROJECT['requires-python']}"
    pairs = map(split, PROJECT["dependencies"])
    expected = [f"{CONDA_NAMES.get(name, name).lower()} {versions}" for name, versions in pairs]
    assert recipe["requirements"]["run"] == [recipe["requirements"]["host"][0], *expected]
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands


def test_the_image_installs_this_version():
    text = (PACKAGING / "image" / "Containerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"fco_cli-([\d.]+)-py3", text)) == {fco_cli.__version__}


def test_the_citation_and_the_changes_state_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == fco_cli.__version__
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == fco_cli.__version__
    sections = re.findall(r"^### (.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(sections) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_release_is_attested_and_published_without_a_password():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    steps = [step.get("uses", "").partition("@")[0] for job in jobs.values() for step in job["steps"]]
    assert {"actions/attest-build-provenance", "pypa/gh-action-pypi-publish"} <= set(steps)
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in str(jobs)


def test_every_extra_is_documented_and_audited():
    extras = set(PROJECT["optional-dependencies"])
    table = (ROOT / "docs" / "how_to" / "install.md").read_text(encoding="utf-8").split("## Extras")[1]
    names = re.findall(r"^\| (`.*?) \|", table.split("\n## ")[0], re.MULTILINE)
    assert {name for cell in names for name in re.findall(r"`(\w+)`", cell)} == extras
    audit = (ROOT / ".github" / "workflows" / "audit.yml").read_text(encoding="utf-8")
    (audited,) = re.findall(r"'\.\[(.*?)\]'", audit)
    assert set(audited.split(",")) == extras - {"dev"}
