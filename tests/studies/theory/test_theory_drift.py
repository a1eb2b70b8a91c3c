"""Fixed points: formulas against the library, reference values, and the committed numbers."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from fafed import ALGORITHMS, FedAvg
from studies.theory import drift, fixed_points
from studies.theory.findings import RESULTS
from studies.theory.fixed_points import Clients

COMMITTED = RESULTS / "drift.json"
TWO = Clients.from_sequences((1, 4), (0, 1))


def rows(finding, table):
    return finding.tables[table].rows


def test_the_optimum():
    assert TWO.best == drift.PROBLEM.best == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("q", "eta", "bias"),
    [(5, 0.02, -0.019862), (5, 0.1, -0.107498), (10, 0.02, -0.044379), (10, 0.1, -0.195874)],
)
def test_fedavg_reference(q, eta, bias):
    assert fixed_points.fedavg(TWO, q, eta) - 0.8 == pytest.approx(bias, abs=6e-7)


@pytest.mark.parametrize(("mu", "bias"), [(0.1, -0.28235), (1, -0.18462), (10, -0.04138)])
def test_fedprox_reference(mu, bias):
    assert fixed_points.fedprox_exact(TWO, mu) - 0.8 == pytest.approx(bias, abs=6e-6)
    assert fixed_points.fedprox(TWO, 2000, 0.05, mu) == pytest.approx(0.8 + bias, abs=6e-6)
    assert fixed_points.fedprox(TWO, 5, 0.1, 0) == fixed_points.fedavg(TWO, 5, 0.1)


@pytest.mark.parametrize(
    ("alpha", "local", "mean"),
    [
        (1.0, -0.1075, -0.1075),
        (0.9, -0.1061, -0.1059),
        (0.1, -0.0478, -0.0889),
        (0.01, -0.00715, -0.0875),
        (0.001, -0.00075, -0.0873),
    ],
)
def test_stem_reference(alpha, local, mean):
    assert fixed_points.stem(TWO, 5, 0.1, alpha) - 0.8 == pytest.approx(local, abs=6e-5)
    assert fixed_points.stem(TWO, 5, 0.1, alpha, mean=True) - 0.8 == pytest.approx(mean, abs=6e-5)


def test_stem_with_alpha_of_the_theory():
    found = [fixed_points.stem(TWO, 10, eta, 20 * eta**2) - 0.8 for eta in drift.SHRINKING]
    assert found == pytest.approx([-0.181, -0.0481, -0.00484, -0.00045], rel=5e-3)


def test_special_cases_of_the_formulas():
    same = fixed_points.fedavg(TWO, 5, 0.1)
    assert fixed_points.stem(TWO, 5, 0.1, 1.0) == pytest.approx(same, abs=1e-12)
    assert fixed_points.prsgdm(TWO, 5, 0.1, 0.0) == pytest.approx(same, abs=1e-12)
    assert fixed_points.domo(TWO, 5, 0.1, 0.0) == pytest.approx(same, abs=1e-12)
    assert fixed_points.mimelite(TWO, 5, 0.1, 0.0) == pytest.approx(same, abs=1e-12)
    assert fixed_points.local_amsgrad(TWO, 5, 0.1, 0.0, 1.0) == pytest.approx(same, abs=1e-12)
    for q1 in (
        fixed_points.fedavg(TWO, 1, 0.1),
        fixed_points.stem(TWO, 1, 0.1, 0.3),
        fixed_points.fafed(TWO, 1, 0.1, 0.3, 0.9, 1.0),
    ):  # without local steps there is no drift
        assert q1 == pytest.approx(0.8, abs=1e-12)


def test_newton_finds_roots():
    root = fixed_points.newton(lambda x: np.array([x[0] ** 2 - 2, x[1] - x[0]]), np.ones(2))
    assert root == pytest.approx([2**0.5, 2**0.5], abs=1e-12)


def check_measured_is_closed_for_every_algorithm(finding):
    for row in rows(finding, "alpha"):
        for closed, measured in zip(row[1::2], row[2::2], strict=True):
            assert measured == pytest.approx(closed, abs=1e-8)
    for name, _, closed, measured in rows(finding, "algorithms"):
        assert measured == pytest.approx(closed, abs=1e-8), name
    for table in ("eta", "fedavg"):
        for *_, closed, measured in rows(finding, table):
            assert measured == pytest.approx(closed, abs=1e-8)


def check_every_measured_algorithm_is_there(finding):
    shown = {row[0] for row in rows(finding, "algorithms")}
    curves = {column.split(",")[0] for column in finding.tables["alpha"].columns[1::2]}
    names = {ALGORITHMS[name].__name__ for name in (*drift.WITH_ALPHA, *drift.WITHOUT_ALPHA)}
    assert shown | curves == names


def test_an_algorithm_that_was_not_measured_is_marked(monkeypatch):
    class Newcomer(FedAvg):
        pass

    assert not {"STORM", "FedAvg"} & set(drift.not_measured())
    assert "Newcomer" not in drift._algorithm_table([]).note
    monkeypatch.setitem(ALGORITHMS, "newcomer", Newcomer)
    assert "Newcomer" in drift.not_measured()
    assert re.search(r"Not measured yet: .*Newcomer\.", drift._algorithm_table([]).note)


def test_methods_without_a_formula_are_measured():
    table = drift._without_formula_table(3)
    assert [row[0] for row in table.rows] == [
        ALGORITHMS[name].__name__ for name in drift.WITHOUT_FORMULA
    ]
    assert all(0 < move < abs(away) + 1 for _, away, move in table.rows)


def check_who_has_which_bias(finding):
    bias = {row[0]: row[3] for row in rows(finding, "algorithms")}
    for name in ("FedAdam", "FedYogi", "FedAdagrad", "FedAMS", "FedCAMS", "FedGLOMO"):
        assert bias[name] == pytest.approx(bias["FedAvg"], abs=1e-8)
    assert bias["FedExP"] == pytest.approx(bias["FedAvg"], abs=1e-8)
    for name in ("SCAFFOLD", "SCAFFOLDM", "FedDyn", "FedPD", "Mime", "MimeAdam"):
        assert bias[name] == 0


def check_verdicts(finding):
    assert [claim.verdict for claim in finding.claims] == [
        "holds",
        "holds within limits",
        "does not hold",
        "holds",
        "holds",
    ]


def check_the_committed_numbers_are_these(finding):
    committed = json.loads(COMMITTED.read_text("utf-8"))
    for name, table in finding.plain()["tables"].items():
        settings = 1 if name == "alpha" else 2  # columns that are not measured
        known = {tuple(row[:settings]): row for row in committed["tables"][name]["rows"]}
        for row in table["rows"]:
            same = known[tuple(row[:settings])]
            assert all(map(_same, row, same)), (row, same)


def _same(found, known):
    if isinstance(found, float) and isinstance(known, float):
        return math.isclose(found, known, rel_tol=1e-6, abs_tol=1e-8)
    return found == known


@pytest.mark.slow
def test_the_finding():
    """One test, so that what takes seconds is measured once, however tests are dealt out."""
    finding = drift.measure(quick=True)
    check_measured_is_closed_for_every_algorithm(finding)
    check_every_measured_algorithm_is_there(finding)
    check_who_has_which_bias(finding)
    check_verdicts(finding)
    check_the_committed_numbers_are_these(finding)
