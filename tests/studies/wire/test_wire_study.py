"""docs/wire.md says what the results of the study say."""

from __future__ import annotations

import re

from fafed.core.codes import TopK
from studies.wire import measurement
from studies.wire.measurement import Curve, Plan, Row, experiment, read_plan, read_results
from studies.wire.page import PAGE, curves, end, per_round, render, within

PLAN = Plan(
    seeds=[4, 5],
    tail=2,
    holds=0.01,
    budgets=[1],
    rows=[
        Row(algorithm="fedavg"),
        Row(algorithm="fedavg", wire={"up": "bf16"}),
        Row(algorithm="fedavg", wire={"up": "int8"}),
    ],
)


def curve(size, accuracy):
    return Curve([5, 10, 15], [5 * size, 10 * size, 15 * size], [0.1, accuracy, accuracy])


def made_up(ends):
    pairs = zip(PLAN.rows, ends, (400_000, 200_000, 100_000), strict=True)
    return {f"{row.label} {s}": curve(n, e) for row, e, n in pairs for s in PLAN.seeds}


def test_the_page_is_the_one_that_the_results_give():
    page = PAGE.read_text("utf-8")
    assert page == render(read_plan(), read_results(), page), "python -m studies.wire --render-only"


def test_the_smallest_messages_whose_accuracy_holds():
    page = "before\n<!-- accuracy -->\n<!-- /accuracy -->\nafter\n"
    text = " ".join(render(PLAN, made_up([0.8, 0.795, 0.7]), page).split())
    assert "'bf16': 0.795 with 50 % of the bytes up" in text
    text = " ".join(render(PLAN, made_up([0.8, 0.78, 0.81]), page).split())
    assert "'int8': 0.810 with 25 % of the bytes up" in text
    few = made_up([0.8, 0.8, 0.8])
    del few[f"{PLAN.rows[2].label} 5"]
    text = render(PLAN, few, page)
    assert "smallest messages" not in text
    assert "1 of 6 runs are not run yet" in text
    assert "(1 of 2 seeds)" in text
    assert "Not run yet" in render(PLAN, {}, page)


def test_a_budget_counts_evaluations_before_it():
    one = curve(400_000, 0.8)
    assert within(one, 10**6) is None
    assert within(one, 2 * 10**6) == 0.1
    assert within(one, 10**9) == 0.8
    assert end(PLAN, one._replace(failure="diverged")) == 0.0
    assert per_round(one) == 400_000


def test_measured_bytes_are_those_of_the_codes():
    plan, found = read_plan(), read_results()
    d = 26_620  # the network's parameters
    due = {
        '["fedavg", {}, {}]': 4 * d,
        '["fedavg", {}, {"up": "int8"}]': d,
        '["fedavg", {}, {"share": 0.01, "up": "topk"}]': TopK(0.01).nbytes(d, None),
        '["fafed", {"v_bits": 8}, {"up": "bf16"}]': 5 * d,
        '["fafed", {}, {"up": "int8"}]': 3 * d,
    }
    assert set(due) <= {row.label for row in plan.rows}
    for row in plan.rows:
        for one in curves(plan, found, row):
            if row.label in due and one.failure is None:
                assert per_round(one) == 20 * due[row.label]


def test_rows_differ_from_each_other_and_from_the_seeds_of_the_choice():
    plan = read_plan()
    assert len({row.label for row in plan.rows}) == len(plan.rows)
    assert not set(plan.seeds) & {0, 1, 2, 3, 10, 11}
    assert experiment(plan.rows[2], 5).wire == {"up": "bf16"}
    assert re.fullmatch(r"[\w-]+", measurement.EXPERIMENT)
