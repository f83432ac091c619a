"""Files: YAML that OmegaConf reads back as it was."""

import pytest
from omegaconf import OmegaConf

from fco_cli.files import as_yaml


@pytest.mark.parametrize("text", ["1e-3", "1_000", "007", ".5", "nan", "yes", "null", "", "${seed}", "a: b", "é", "~"])
def test_text_stays_text(text):
    assert OmegaConf.to_container(OmegaConf.create(as_yaml({"key": text}))) == {"key": text}


def test_numbers_and_order_are_kept():
    content = {"z": 1e-10, "a": [1, 2.5, None, True], "inner": {"list": [], "rate": 0.001}}
    back = OmegaConf.to_container(OmegaConf.create(as_yaml(content)))
    assert back == content
    assert list(back) == list(content)
