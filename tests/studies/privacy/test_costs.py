"""The parts of docs/privacy.md about time say what the results say."""

from __future__ import annotations

import pytest
import torch

from fafed.kernels import build
from studies.privacy import costs, step
from studies.privacy.page import PAGE

EMPTY = "".join(f"<!-- {n} -->\n<!-- /{n} -->\n" for n in ("secure-cost", "step-cost"))
needs_compiler = pytest.mark.skipif(
    not build.available(torch.float32), reason="there is no C compiler"
)
MACHINE = {"processor": "a processor"}


def case(silos, parameters, plain, secure):
    numbers = {"open": (plain, 100.0), "secure": (secure, 210.0)}
    ways = {n: {"seconds": s, "passes": [s], "kilobytes": k} for n, (s, k) in numbers.items()}
    return {"where": "in process", "silos": silos, "parameters": parameters, **ways}


def test_the_page_is_the_one_that_the_results_give():
    page = PAGE.read_text("utf-8")
    assert page == costs.render(costs.read(costs.SECURE), costs.read(costs.STEP), page)


def test_what_was_not_measured_says_so():
    page = costs.render({}, {}, EMPTY)
    assert page.count("Not measured yet: `python") == 2


def test_a_target_that_is_missed_is_named():
    cases = {"a": case(3, 26_620, 0.1, 0.42), "b": case(3, 5 * 10**7, 2.0, 3.9)}
    page = costs.render({"machine": MACHINE, "cases": cases}, {}, EMPTY)
    assert "All cases meet this." in page
    assert "0.100 s | 0.420 s | 4.20 | · | · | · | 100 | 210" in page
    cases["c"] = case(20, 26_620, 0.1, 0.44)
    page = costs.render({"machine": MACHINE, "cases": cases}, {}, EMPTY)
    assert "Not met: 20 silos in process at 26,620 parameters." in page


def test_with_a_machine_for_each_silo_the_slowest_one_counts():
    one = case(20, 26_620, 0.1, 0.9)
    one["open"]["together"], one["secure"]["together"] = 0.02, 0.3
    page = costs.render({"machine": MACHINE, "cases": {"a": one}}, {}, EMPTY)
    assert "0.100 s | 0.900 s | 9.00 | 0.020 s | 0.300 s | 15.00 |" in page
    assert "All cases meet this." in page
    one["secure"]["together"] = 0.33
    page = costs.render({"machine": MACHINE, "cases": {"a": one}}, {}, EMPTY)
    assert "Not met: 20 silos" in page


@needs_compiler
def test_steps_are_measured_side_by_side():
    found = step.measure(passes=1, steps=1)
    assert [one["way"] for one in found["ways"]] == list(step.WAYS)
    assert all(one["milliseconds"] > 0 for one in found["ways"])
    page = costs.render({}, found, EMPTY)
    assert "1.00" in page
    assert "clipped, with noise" in page


@needs_compiler
@pytest.mark.parametrize("way", step.WAYS)
def test_each_way_is_what_it_says(way):
    run = step.started(way, 1)
    private = run.budget is not None
    assert private == (way == "private")
    assert run.engine.name == ("native" if way == "native" else "loop")
