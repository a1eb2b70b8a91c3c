"""Write the real records of the four hospitals in the form of make_data.py.

    fafed data get heart-disease          # once; or: fafed data import heart-disease FOLDER
    python real_data.py FOLDER
    python real_data.py --marginals       # writes marginals.toml, which make_data.py reads

Every fifth patient of a hospital, drawn at random with a fixed seed, goes into test.csv. A
cholesterol or a blood pressure of 0 was not measured: it becomes a gap.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from make_data import COLUMNS, PAINS, save

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
Rows = list[list[str]]


def here() -> bool:
    return any(one.present for one in status() if one.name == "heart-disease")


def field(column: str, text: str) -> str:
    if text == "?" or (column in NOT_ZERO and float(text) == 0):
        return ""
    words = FROM[column][1]
    return str(words[int(float(text))]) if words else text


def hospitals() -> dict[str, Rows]:
    """The records of each hospital, in our columns."""
    tables = load("heart-disease")
    places = [tables.columns.index(FROM[column][0]) for column in COLUMNS]
    return {
        name: [[field(c, row[at]) for c, at in zip(COLUMNS, places, strict=True)] for row in rows]
        for name, rows in tables.sites.items()
    }


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tested = []
    for number, (hospital, own) in enumerate(hospitals().items()):
        order = np.random.default_rng([0, number]).permutation(len(own))
        tested += [own[i] for i in order[: len(own) // 5]]
        save(folder / f"{hospital}.csv", [own[i] for i in order[len(own) // 5 :]])
    save(folder / "test.csv", tested)


def marginals(found: dict[str, Rows]) -> Iterator[str]:
    """The lines of marginals.toml."""
    yield "# What the made-up records have in common with the real ones, for each hospital and for"
    yield "# healthy and sick patients. `python real_data.py --marginals` writes this file."
    for hospital, rows in found.items():
        for sick in ("no", "yes"):
            own = [row for row in rows if row[-1] == sick]
            yield f"\n[{hospital}.{sick}]\npatients = {len(own)}"
            for at, column in enumerate(COLUMNS[:-1]):
                yield f"{column} = {{ {facts(column, [row[at] for row in own])} }}"


def facts(column: str, values: list[str]) -> str:
    """How often each category occurs, or mean and spread of the numbers; and how many gaps."""
    present = [value for value in values if value]
    gaps = f"gaps = {len(values) - len(present)}"
    words = FROM[column][1]
    if words:
        counts = [f"{word} = {present.count(word)}" for word in words if word]
        return ", ".join([*counts, gaps])
    if not present:
        return gaps
    numbers = np.array(present, float)
    spread = f"mean = {numbers.mean():.2f}, spread = {numbers.std():.2f}"
    return f"{spread}, range = [{numbers.min():g}, {numbers.max():g}], {gaps}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, nargs="?")
    options.add_argument("--marginals", action="store_true")
    given = options.parse_args()
    if given.marginals:
        text = "\n".join(marginals(hospitals())) + "\n"
        Path(__file__).with_name("marginals.toml").write_text(text, "utf-8")
    elif given.folder:
        write(given.folder)
    else:
        options.error("name the folder to write, or give --marginals")
