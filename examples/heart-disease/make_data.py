"""Write the records of four hospitals, made up in the shape of the UCI heart disease data.

    python make_data.py FOLDER [--seed 0]

FOLDER gets cleveland.csv, hungary.csv, switzerland.csv, long-beach.csv and test.csv. No row belongs
to a real person. What is taken from the real records is in marginals.toml: for each hospital, and
there for sick and healthy patients, how many there are, how often each category and a gap occurs,
and mean, spread and range of each number. Categories and gaps occur here exactly as often. Numbers
are drawn from a normal distribution with this mean and spread, and cut off at the ends of the
range. What is made up is how columns depend on each other: within a hospital and a class they do
not.

test.csv has 301 other patients, from each hospital and class in proportion.
"""

import argparse
import csv
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

MARGINALS = tomllib.loads(Path(__file__).with_name("marginals.toml").read_text("utf-8"))
PAINS = ["typical", "atypical", "non-anginal", "none"]
COLUMNS = ["age", "sex", "pain", "pressure", "chol", "rate", "angina", "oldpeak", "disease"]
DECIMALS = {"oldpeak": 1}  # other numbers have none
HOSPITALS = {  # hospital -> its patients, and how many of them are sick
    name: (sum(group["patients"] for group in groups.values()), groups["yes"]["patients"])
    for name, groups in MARGINALS.items()
}
TEST = 300  # patients for the coordinator, but for rounding


def column(r: np.random.Generator, facts: dict[str, Any], patients: int, decimals: int) -> list:
    """One column of a group. A gap is an empty text."""
    kinds = {k: n for k, n in facts.items() if k not in ("gaps", "mean", "spread", "range")}
    if kinds:
        return list(r.permutation(np.repeat([*kinds, ""], [*kinds.values(), facts["gaps"]])))
    gaps = r.permutation(np.arange(patients) < facts["gaps"])
    if gaps.all():
        return [""] * patients
    numbers = np.clip(r.normal(facts["mean"], facts["spread"], patients), *facts["range"])
    return ["" if gap else f"{x:.{decimals}f}" for x, gap in zip(numbers, gaps, strict=True)]


def records(r: np.random.Generator, groups: dict[str, Any], share: float = 1.0) -> list[list[str]]:
    """The patients of a hospital, or a share of as many others like them."""
    rows: list[list[str]] = []
    for sick, facts in groups.items():
        patients = facts["patients"]
        columns = [column(r, facts[name], patients, DECIMALS.get(name, 0)) for name in COLUMNS[:-1]]
        found = [[*row, sick] for row in zip(*columns, strict=True)]
        rows += found[: round(share * patients)]
    return [rows[i] for i in r.permutation(len(rows))]


def write(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    test = []
    share = TEST / sum(patients for patients, _ in HOSPITALS.values())
    for number, (name, groups) in enumerate(MARGINALS.items()):
        save(folder / f"{name}.csv", records(np.random.default_rng([seed, number, 0]), groups))
        test += records(np.random.default_rng([seed, number, 1]), groups, share)
    save(folder / "test.csv", test)


def save(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    write(given.folder, given.seed)
