"""Identifiers and dates among the columns of numbers; real tables have none."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.data.published import PUBLICATIONS
from fco_cli.data.readers.not_features import reason_to_refuse, suspects

COUNT = np.arange(100.0)


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "PatientID",
        "patient_id",
        "subject#",
        "patientnr",
        "Fallnummer",
        "MRN",
        "case no",
        "record id",
        "ZIP code",
        "plz",
    ],
)
def test_names_of_identifiers(name):
    assert "an identifier is not a feature" in reason_to_refuse(name, 7 * COUNT)
    assert reason_to_refuse(name, COUNT % 5) is None  # may be codes
    assert reason_to_refuse(name, COUNT / 3) is None  # no identifier has decimals
    assert suspects(7 * COUNT[:, None]) == {0}


@pytest.mark.parametrize(
    "name", ["paid", "acid", "covid", "aids", "num", "casein", "platelets", "sample volume", "study"]
)
def test_other_names(name):
    assert reason_to_refuse(name, 7 * COUNT) is None


@pytest.mark.parametrize("name", ["dob", "birthDate", "admit_date", "Geburtsdatum", "admission"])
def test_serial_dates_of_a_spreadsheet(name):
    assert "serial dates" in reason_to_refuse(name, 40000.5 + COUNT)
    assert reason_to_refuse(name, COUNT) is None
    assert reason_to_refuse("income", 40000 + COUNT) is None


@pytest.mark.parametrize(
    ("name", "folder"), [("heart", "heart_disease"), ("crime", "communities_crime"), ("eicu", "eicu_demo")]
)
def test_no_column_of_the_real_tables_is_refused(name, folder, real_data):
    data = PUBLICATIONS[name].read(str(real_data(folder)), 0 if name == "heart" else 10)
    for k, column in enumerate(data.feature_names):
        assert k in data.levels or reason_to_refuse(column, data.x[:, k]) is None
