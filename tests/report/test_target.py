from __future__ import annotations

import pytest
from report_runs import config, plain_run, record

from fafed import ConfigError
from fafed.report import RunData
from fafed.report.curves import make_curves
from fafed.report.numbers import Stat
from fafed.report.quantities import TRAIN_LOSS, primary
from fafed.report.target import choose_target, reaches

FAST = [plain_run(0.2, 0.6, 0.8), plain_run(0.2, None, 0.8, seed=1)]
SLOW = [plain_run(0.4, 0.5, 0.6, algorithm="fedavg")]


def test_the_automatic_target_is_nine_tenths_of_the_way() -> None:
    runs = [*FAST, plain_run(0.4, 0.5, 0.76, algorithm="fedavg")]
    target = choose_target(make_curves(runs), primary(runs))
    assert target is not None
    assert target.value == pytest.approx(0.75)  # 0.3 + 0.9 (0.8 - 0.3)
    assert "from where the curves start (30.00\u00a0% on average)" in target.rule


def test_three_methods_reach_the_automatic_target_or_all_that_improve() -> None:
    ends = {"fafed": 0.9, "stem": 0.7, "fedavg": 0.62, "scaffold": 0.61, "fedadam": 0.1}
    runs = [plain_run(0.2, end, algorithm=name) for name, end in ends.items()]
    for some, value, able in [(5, 0.62, 3), (2, 0.7, 2), (1, 0.83, 1)]:
        curves = make_curves(runs[:some])
        target = choose_target(curves, primary(runs))
        assert target is not None
        assert target.value == pytest.approx(value)
        assert sum(bool(reach.costs) for reach in reaches(curves, target)) == able
    poor = [plain_run(0.2, 0.9), plain_run(0.2, 0.1, algorithm="stem")]
    target = choose_target(make_curves(poor), primary(poor))
    assert target is not None
    assert target.value == pytest.approx(0.83)  # the other never improves
    uneven = [plain_run(0.2, 0.9), plain_run(0.2, 0.5, seed=1)]  # every seed must reach it
    target = choose_target(make_curves(uneven), primary(uneven))
    assert target is not None
    assert target.value == pytest.approx(0.5)


def test_the_automatic_target_is_rounded_to_the_easier_side() -> None:
    def losses(*values: float) -> RunData:
        records = [record(i, v) for i, v in enumerate(values, start=1)]
        return RunData("run", config(), records)

    target = choose_target(make_curves([losses(2.0, 0.12341)]), TRAIN_LOSS)
    assert target is not None
    assert target.value == 0.312  # of 0.31106...
    assert target.met(0.312)
    assert not target.met(0.3121)


def test_costs_are_means_over_the_first_rounds_that_meet_the_target() -> None:
    runs = FAST + SLOW
    curves = make_curves(runs)
    target = choose_target(curves, primary(runs), 0.55)
    assert target is not None
    fast, slow = reaches(curves, target)
    assert fast.costs["rounds"] == Stat.from_values([2.0, 3.0])
    assert fast.costs["bytes"] == Stat.from_values([600.0, 900.0])
    assert slow.costs["rounds"] == Stat(3.0, None, 1)


def test_a_curve_reaches_the_target_only_with_all_its_seeds() -> None:
    runs = [plain_run(0.2, 0.9), plain_run(0.2, 0.3, seed=1), *SLOW]
    curves = make_curves(runs)
    target = choose_target(curves, primary(runs), 0.85)
    assert target is not None
    some, none = reaches(curves, target)
    assert (some.reached, some.seeds, some.costs) == (1, 2, {})
    assert (none.reached, none.costs) == (0, {})


def test_there_is_no_automatic_target_where_nothing_was_gained() -> None:
    for runs in ([plain_run(0.5)], [plain_run(0.5, 0.4)]):
        assert choose_target(make_curves(runs), primary(runs)) is None
    unmeasured = [plain_run(None)]
    assert choose_target(make_curves(unmeasured), primary(FAST), 0.5) is None


def test_a_target_in_percent_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"85 % is 0\.85"):
        choose_target(make_curves(FAST), primary(FAST), 85)
    with pytest.raises(ConfigError, match="be finite"):
        choose_target(make_curves(FAST), TRAIN_LOSS, float("nan"))
