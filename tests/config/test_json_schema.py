"""The schemas for editors are those of the classes, and every YAML file of ours satisfies its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from fco_cli.config.json_schema import json_schemas, write_schemas

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path for path in CONF.rglob("*.yaml") if "hydra" not in path.relative_to(CONF).parts)
REFERENCE = re.compile(r"^# yaml-language-server: \$schema=(\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def schemas():
    return json_schemas()


def test_the_files_are_those_of_the_command(here, tmp_path):
    printed = here("--schema", tmp_path).out.split()
    assert sorted(Path(path).name for path in printed) == sorted(path.name for path in (CONF / "schemas").iterdir())
    for path in map(Path, printed):
        assert path.read_bytes() == (CONF / "schemas" / path.name).read_bytes(), f"fco-run --schema {CONF / 'schemas'}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_a_file_names_its_schema_and_satisfies_it(path, schemas):
    text = path.read_text()
    (reference,) = REFERENCE.findall("\n".join(text.splitlines()[:2]))
    target = (path.parent / reference).resolve()
    assert target.parent == CONF / "schemas"
    jsonschema.Draft7Validator(schemas[target.stem]).validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("group", "wrong"),
    [
        ("task", {"pth": "a.csv"}),
        ("hparams", {"rounds": [1]}),
        ("run", {"algo": {"momentum": "fast"}}),
        ("run", {"sed": 1}),
    ],
)
def test_wrong_keys_and_types_are_noticed(group, wrong, schemas):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schemas[group]).validate(wrong)


def test_keys_have_descriptions_and_placeholders_are_valid(schemas):
    keys = schemas["task"]["properties"]
    assert "quadratic" in keys["huber_delta"]["description"]
    jsonschema.Draft7Validator(schemas["hparams"]).validate({"rounds": "${at_scale:300}", "client_lr": "???"})


def test_the_command_needs_one_folder(here):
    assert "must be fco-run --schema FOLDER" in here("--schema", code=2).err


def test_files_are_valid_json(tmp_path):
    for path in write_schemas(tmp_path):
        jsonschema.Draft7Validator.check_schema(json.loads(path.read_text()))
