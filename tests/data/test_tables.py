"""The rules by which the columns of a table become inputs and targets."""

from __future__ import annotations

import numpy as np
import pytest

from fafed.data import Table, from_file, from_folder
from fafed.errors import ConfigError, DataError

RULES = {
    "target": "sick",
    "classes": ["no", "yes"],
    "inputs": ["age", "pain", "chol"],
    "categories": {"pain": ["1", "typical"]},
}
TEXT = """ward,age,pain,chol,sick
a,60,typical,200,yes
b,50,1.0,?,no
c,40,,240,no
d,30,1,NA,
"""


def written(tmp_path, text=TEXT):
    path = tmp_path / "records.csv"
    path.write_text(text, "utf-8")
    return path


def read(path, **changes):
    inputs, targets = from_file(path, Table.from_dict(RULES | changes))
    return inputs.tolist(), targets.tolist()


def test_columns_categories_and_classes(tmp_path):
    inputs, targets = read(written(tmp_path), missing="mean")
    assert inputs == [[60, 0, 1, 200], [50, 1, 0, 220], [40, 0, 0, 240]]  # no target: left out
    assert targets == [1, 0, 0]
    assert Table.from_dict(RULES).columns() == ("age", "pain=1", "pain=typical", "chol")


def test_what_happens_to_gaps(tmp_path):
    path = written(tmp_path)
    assert read(path, missing="drop") == ([[60, 0, 1, 200]], [1])
    inputs, _ = read(path, missing="drop", fill={"chol": 7.0})
    assert inputs == [[60, 0, 1, 200], [50, 1, 0, 7]]
    with pytest.raises(DataError, match=r"column 'sick' has gaps \(1\).*'drop' or 'mean'") as error:
        read(path)
    assert error.value.fault == "gaps"
    without = "age,pain,chol,sick\n1,1,,no\n"
    with pytest.raises(DataError, match=r"'chol' has no value, so there is no mean.*table.fill"):
        read(written(tmp_path, without), missing="mean")
    with pytest.raises(DataError, match="no row without gaps"):
        read(written(tmp_path, without), missing="drop")


def test_a_scale_is_applied_after_gaps_are_filled(tmp_path):
    scale, fill = {"age": [50.0, 10.0], "chol": [200, 40]}, {"chol": 240.0}
    inputs, _ = read(written(tmp_path), missing="mean", scale=scale, fill=fill)
    assert inputs == [[1, 0, 1, 0], [0, 1, 0, 1], [-1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("old", "new", "words", "fault"),
    [
        ("ward", "age2", "", ""),
        ("chol,sick", "cholesterol,sick", "has no column 'chol'", "columns"),
        ("typical", "atypical", "'atypical', which is not among its categories", "categories"),
        ("60", "old", "'age' holds text", "text"),
        ("yes", "maybe", "'maybe', which is not among the classes", "target"),
        ("60", "inf", "NaN or infinity", "not finite"),
    ],
)
def test_a_table_that_does_not_fit_its_rules(tmp_path, old, new, words, fault):
    path = written(tmp_path, TEXT.replace(old, new, 1))
    if not words:
        assert read(path, missing="mean") == read(written(tmp_path), missing="mean")
        return
    with pytest.raises(DataError, match=words) as error:
        read(path, missing="mean")
    assert error.value.fault == fault


def test_a_target_that_is_text_needs_classes(tmp_path):
    with pytest.raises(DataError, match=r"'sick' holds text: list its values in table.classes"):
        read(written(tmp_path), missing="mean", classes=[])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inptus": []}, "table.inptus: no such key; did you mean 'inputs'"),
        ({"inputs": []}, "at least one other column"),
        ({"inputs": ["age", "sick"]}, "at least one other column"),
        ({"inputs": ["age", "age"]}, "names each once"),
        ({"missing": "zero"}, "refuse, drop, mean"),
        ({"categories": {"ward": ["a"]}}, "'ward' is not among the inputs"),
        ({"fill": {"pain": 1.0}}, "only columns of numbers are filled"),
        ({"categories": 3}, "are tables"),
        ({"scale": {"age": [50.0, 0.0]}}, "a width above 0"),
        ({"scale": {"pain": [0.0, 1.0]}}, "for a column of numbers"),
    ],
)
def test_rules_that_are_wrong(changes, words):
    with pytest.raises(ConfigError, match=words):
        Table.from_dict(RULES | changes)


def test_parquet_has_the_same_rules(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "age": [60.0, 50.0],
        "pain": ["typical", None],
        "chol": [200, None],
        "sick": ["yes", "no"],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "records.parquet")
    inputs, targets = read(tmp_path / "records.parquet", missing="mean")
    assert (inputs, targets) == ([[60, 0, 1, 200], [50, 0, 0, 200]], [1, 0])


def test_a_folder_of_clients_has_one_set_of_rules(tmp_path):
    for name in ("a", "b", "test"):
        written(tmp_path).rename(tmp_path / f"{name}.csv")
    clients, test = from_folder(tmp_path, Table.from_dict(RULES | {"missing": "mean"}))
    assert [len(inputs) for inputs, _ in (*clients, test)] == [3, 3, 3]
    assert np.allclose(clients[0][0], test[0])
