"""The counterexample: reference values, where methods stall, and the committed numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from studies.theory import counterexample
from studies.theory.counterexample import drift_closed, fafed_closed, naive_closed
from studies.theory.findings import RESULTS

COMMITTED = RESULTS / "counterexample.json"


def rows(finding, table):
    return finding.tables[table].rows


def test_closed_forms_have_the_reference_values():
    t = np.array([1, 2, 10, 100, 600])
    known = [10.0471405, 10.0856304, 10.3567340, 13.3567502, 30.0234169]
    assert naive_closed(t) == pytest.approx(known, abs=2e-7)
    assert fafed_closed(np.array([100, 300])) == pytest.approx([8.2144528, 4.7419669], abs=5e-8)


def check_measured_is_closed(finding):
    for _, _, closed, measured in rows(finding, "paths"):
        assert measured == pytest.approx(closed, abs=1e-11)
    for setting, closed, measured in rows(finding, "limits"):
        if closed is not None:
            assert measured == pytest.approx(closed, abs=1e-9), setting


def test_the_drift_changes_sign_at_six():
    assert drift_closed(6.0) == 0
    assert drift_closed(5.9) > 0 > drift_closed(6.1)


def check_naive_converges_above_the_floor_and_from_a_large_common_start(finding):
    *_, floor, warm = rows(finding, "limits")
    assert abs(floor[2]) < 1e-6
    assert abs(warm[2]) < 1e-6


def check_where_fafed_stalls(finding):
    ranges = {row[:5]: (row[6], row[7]) for row in rows(finding, "fates")}
    for setting, known in {
        (1, 0.1, 0.1, 0.1): (0, 0),
        (1, 0.1, 0.01, 0.9): (-0.0061, 0.0061),
        (5, 0.1, 0.01, 0.9): (1.045, 1.09),
        (10, 0.1, 0.01, 0.9): (1.99, 2.16),
        (10, 0.1, 0.01, 0.1): (1.35, 1.48),
        (20, 0.1, 0.01, 0.9): (4.32, 4.79),
    }.items():
        assert ranges["FAFED", *setting] == pytest.approx(known, abs=6e-3)


def check_where_fafed_and_fedavg_converge(finding):
    fates = {row[:5]: row[-1] for row in rows(finding, "fates")}
    assert fates["FAFED", 10, 0.01, 1.0, 0.1] == fates["FAFED", 10, 0.01, 1.0, 0.9] == "converges"
    assert fates["FAFED", 10, "theory", 1.0, "theory"] == "converges"
    assert fates["FedAvg", 10, 0.01, None, None] == "converges"
    assert fates["FAFED", 1, 0.1, 0.01, 0.1] == "cycles around 0"
    ends = {row[2]: row[8] for row in rows(finding, "fates") if row[0] == "FedAvg"}
    assert (ends[0.1], ends[0.02]) == pytest.approx((4.0105, 1.115), abs=6e-4)


def check_largest_step_that_converges(finding):
    assert rows(finding, "largest")[0][:3] == (1.0, 10, 0.02)


def check_verdicts(finding):
    assert [claim.verdict for claim in finding.claims] == [
        "holds within limits",
        "holds",
        "does not hold",
        "holds",
    ]
    assert "1,040 of 1,040" in finding.claims[0].measured


def check_the_committed_numbers_are_these(finding):
    committed = json.loads(COMMITTED.read_text("utf-8"))
    for name, table in finding.plain()["tables"].items():
        known = {_key(row): row for row in committed["tables"][name]["rows"]}
        for row in table["rows"]:
            assert all(map(_same, row, known[_key(row)])), (row, known[_key(row)])


def _same(found, known):
    if isinstance(found, float) and isinstance(known, float):
        return math.isclose(found, known, rel_tol=1e-6, abs_tol=1e-9)
    return found == known


def _key(row):
    """The settings of a row: words and what stands before the first measured number."""
    return tuple(row[:6]) if len(row) == 10 else tuple(row[:2]) if len(row) > 3 else row[0]


@pytest.mark.slow
def test_the_finding():
    """One test, so that what takes seconds is measured once, however tests are dealt out."""
    finding = counterexample.measure(quick=True)
    check_measured_is_closed(finding)
    check_naive_converges_above_the_floor_and_from_a_large_common_start(finding)
    check_where_fafed_stalls(finding)
    check_where_fafed_and_fedavg_converge(finding)
    check_largest_step_that_converges(finding)
    check_verdicts(finding)
    check_the_committed_numbers_are_these(finding)
