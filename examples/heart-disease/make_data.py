"""Write the records of four hospitals, made up in the shape of the UCI heart disease data.

    python make_data.py FOLDER [--seed 0]

FOLDER gets cleveland.csv, hungary.csv, switzerland.csv, long-beach.csv and test.csv. The numbers of
patients, and of sick ones, are those that the description of the data set states. No row belongs
to a real person: all columns are drawn from distributions with round numbers, so that sick patients
are older, have a lower highest heart rate, and so on, and so that hospitals differ. Hospitals have
gaps as in the real data: Switzerland did not record cholesterol at all.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

# patients, sick ones, mean age, share of men, share of rows without cholesterol
HOSPITALS = {
    "cleveland": (303, 139, 54, 0.68, 0.00),
    "hungary": (294, 106, 48, 0.72, 0.08),
    "switzerland": (123, 115, 55, 0.92, 1.00),
    "long-beach": (200, 149, 59, 0.97, 0.28),
}
PAINS = ["typical", "atypical", "non-anginal", "none"]
COLUMNS = ["age", "sex", "pain", "pressure", "chol", "rate", "angina", "oldpeak", "disease"]
TEST = (300, 150, 53, 0.75, 0.05)  # patients of no hospital, for the coordinator


def records(
    r: np.random.Generator, patients: int, sick: int, age: float, men: float, gaps: float
) -> list[list[object]]:
    rows = []
    for ill in r.permutation(np.arange(patients) < sick):
        years = int(np.clip(r.normal(age + (2.5 if ill else -1.5), 8.5), 28, 80))
        shares = [0.06, 0.10, 0.17, 0.67] if ill else [0.10, 0.34, 0.38, 0.18]
        chol = (
            "" if r.random() < gaps else int(np.clip(r.normal(250 if ill else 240, 50), 120, 560))
        )
        rows.append(
            [
                years,
                "male" if r.random() < men + (0.1 if ill else -0.1) * (1 - men) else "female",
                PAINS[r.choice(4, p=shares)],
                int(np.clip(r.normal(134 if ill else 129, 18), 90, 200)),
                chol,
                int(np.clip(r.normal(133 if ill else 155, 22) - 0.4 * (years - 54), 70, 200)),
                "yes" if r.random() < (0.55 if ill else 0.14) else "no",
                round(float(np.clip(r.normal(1.4 if ill else 0.5, 0.9), 0, 6)), 1),
                "yes" if ill else "no",
            ]
        )
    return rows


def write(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, facts) in enumerate([*HOSPITALS.items(), ("test", TEST)]):
        rows = records(np.random.default_rng([seed, number]), *facts)
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    write(given.folder, given.seed)
