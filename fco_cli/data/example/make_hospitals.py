"""Simulate the bundled table hospitals.csv: `python -m fco_cli.data.example.make_hospitals FILE`.

Patients of four hospitals with a diagnosis and a follow-up time. Nothing in it is about a real person. Hospitals
differ in their patients and in what they measure. Columns that are not in EFFECTS have no effect on the diagnosis.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fco_cli.files import as_csv

COLUMNS = (
    "hospital", "age", "sex", "pain", "pressure", "cholesterol", "heart_rate", "creatinine", "smoker", "diabetes",
    "diagnosis", "days", "died",
)  # fmt: skip
HOSPITALS = {  # patients, mean age, share of men, share of missing cholesterol
    "east": (210, 54, 0.60, 0.05),
    "north": (260, 58, 0.66, 0.02),
    "south": (120, 61, 0.75, 0.30),
    "west": (180, 50, 0.55, 0.10),
}
EFFECTS = {"age": 0.045, "male": 0.8, "typical": 1.1, "heart_rate": -0.025, "smoker": 0.7, "diabetes": 0.6}
FOLLOW_UP = 1500  # days


def rows(seed: int = 20211) -> list[tuple[object, ...]]:
    """Return the rows of the table."""
    random = np.random.default_rng(seed)
    found: list[tuple[object, ...]] = []
    for hospital, (patients, mean_age, men, missing) in HOSPITALS.items():
        for _ in range(patients):
            age = int(np.clip(random.normal(mean_age, 9), 25, 88))
            male, smoker, diabetes = random.random(3) < (men, 0.35, 0.18)
            pain = random.choice(["none", "atypical", "typical"], p=[0.3, 0.4, 0.3])
            heart_rate = int(np.clip(random.normal(205 - 0.95 * age, 20), 70, 205))
            risk = EFFECTS["age"] * (age - 55) + EFFECTS["heart_rate"] * (heart_rate - 150) - 1.1
            risk += EFFECTS["male"] * male + EFFECTS["typical"] * (pain == "typical")
            risk += EFFECTS["smoker"] * smoker + EFFECTS["diabetes"] * diabetes
            died_after = random.exponential(6000 * np.exp(-0.6 * risk))
            followed = random.uniform(200, FOLLOW_UP)
            cholesterol = "" if random.random() < missing else int(random.normal(225, 42))
            found.append(
                (hospital, age, "male" if male else "female", pain, int(random.normal(132 + 0.2 * (age - 55), 16)),
                 cholesterol, heart_rate, f"{np.exp(random.normal(-0.05, 0.22)):.2f}", "yes" if smoker else "no",
                 "yes" if diabetes else "no", int(random.random() < 1 / (1 + np.exp(-risk))),
                 int(np.ceil(min(died_after, followed))), int(died_after <= followed))
            )  # fmt: skip
    return found


def write(path: Path) -> None:
    path.write_text(as_csv(COLUMNS, rows()), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
