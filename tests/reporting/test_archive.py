"""Tests of archives: equal contents give equal bytes, and plug-ins are included as long as they are unchanged."""

from __future__ import annotations

import hashlib
import json
import zipfile

from fco_cli.reporting.archive import write_archive
from fco_cli.reporting.records.studies import collect


def names(path):
    with zipfile.ZipFile(path) as file:
        return set(file.namelist())


def test_an_archive_is_a_function_of_its_contents(records, tmp_path):
    record = records.add()
    studies = collect([records.root]).studies
    (tmp_path / "own.txt").write_text("from a file")
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for path in paths:
        assert write_archive(path, "data", studies, {"README.md": b"text", "own.txt": tmp_path / "own.txt"}) == 1
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[0]) as file:
        content = {name: file.read(name) for name in file.namelist()}
    sums = [line.split("  ") for line in content.pop("data/SHA256SUMS").decode().splitlines()]
    assert {f"data/{name}": digest for digest, name in sums} == {
        name: hashlib.sha256(text).hexdigest() for name, text in content.items()
    }
    assert content["data/own.txt"] == b"from a file"
    assert (
        content[f"data/records/lasso_i/feddualavg/{record.name}/metrics.csv"] == (record / "metrics.csv").read_bytes()
    )
    assert json.loads(content["data/versions.json"]) == {
        "revisions": ["0123456789abcdef"], "software": ["fco-cli 0.1.0, python 3.13.5"]
    }  # fmt: skip
    assert b"Apache License" in content["data/LICENSE"]


def test_plugins_are_included_unless_they_were_edited(records, tmp_path):
    record = records.add()
    plugin = tmp_path / "mine.py"
    plugin.write_text("# a method\n")
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    result = json.loads((record / "result.json").read_text())
    listed = {str(plugin): digest, str(tmp_path / "absent.py"): digest}
    (record / "result.json").write_text(json.dumps(result | {"plugins": listed}))
    member = f"data/plugins/{digest[:8]}/mine.py"
    for text, is_included in (("# a method\n", True), ("# edited\n", False)):
        plugin.write_text(text)
        write_archive(tmp_path / "a.zip", "data", collect([records.root]).studies, {})
        assert (member in names(tmp_path / "a.zip")) is is_included
        assert not any("absent" in name for name in names(tmp_path / "a.zip"))
