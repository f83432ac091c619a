"""The bundled table is what its script makes."""

from pathlib import Path

import fco_cli.data.example
from fco_cli.data.example.make_hospitals import write


def test_the_table_is_that_of_the_script(tmp_path):
    write(tmp_path / "made.csv")
    bundled = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
    assert (tmp_path / "made.csv").read_bytes() == bundled.read_bytes()
