"""Write the real records of the four hospitals in the form of make_data.py.

    fafed data get heart-disease          # once; or: fafed data import heart-disease FOLDER
    python real_data.py FOLDER

Every fifth patient of a hospital, drawn at random with a fixed seed, goes into test.csv. A
cholesterol or a blood pressure of 0 was not measured: it becomes a gap.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from make_data import COLUMNS, PAINS

from fafed.data import load, status

# our column -> that of the data set, and words for its codes
FROM = {
    "age": ("age", None),
    "sex": ("sex", ["female", "male"]),
    "pain": ("cp", [None, *PAINS]),
    "pressure": ("trestbps", None),
    "chol": ("chol", None),
    "rate": ("thalach", None),
    "angina": ("exang", ["no", "yes"]),
    "oldpeak": ("oldpeak", None),
    "disease": ("num", ["no", "yes", "yes", "yes", "yes"]),
}
NOT_ZERO = ("pressure", "chol")


def here() -> bool:
    return any(one.present for one in status() if one.name == "heart-disease")


def field(column: str, text: str) -> str:
    if text == "?" or (column in NOT_ZERO and float(text) == 0):
        return ""
    words = FROM[column][1]
    return str(words[int(float(text))]) if words else text


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tables = load("heart-disease")
    places = [tables.columns.index(FROM[column][0]) for column in COLUMNS]
    tested = []
    for number, (hospital, rows) in enumerate(tables.sites.items()):
        own = [[field(c, row[at]) for c, at in zip(COLUMNS, places, strict=True)] for row in rows]
        order = np.random.default_rng([0, number]).permutation(len(own))
        tested += [own[i] for i in order[: len(own) // 5]]
        save(folder / f"{hospital}.csv", [own[i] for i in order[len(own) // 5 :]])
    save(folder / "test.csv", tested)


def save(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    write(options.parse_args().folder)
