"""What a record says, flat and in summary."""

from __future__ import annotations

import json
import math
import statistics

import pytest

from fafed.core.records import Record, higher_is_better, summary
from fafed.experiments.record_lines import read, to_line
from fafed.files import sealed

COSTS = {"steps": 1, "gradients": 1.0, "samples": 1, "bytes_up": 1, "bytes_down": 1}


def record(**more):
    return Record(round=1, **COSTS, seconds=0.5, clients=2, train_loss=0.75, **more)


def test_the_worst_are_the_lowest_accuracies_and_the_highest_losses():
    values, weights = [i / 20 for i in range(20)], [1.0] * 19 + [21.0]
    high = summary(values, weights, higher=True)
    assert (high["worst"], high["worst_decile"], high["clients"]) == (0.0, 0.025, 20)
    assert high["mean"] == pytest.approx(statistics.fmean(values))
    assert high["std"] == pytest.approx(statistics.pstdev(values))
    assert high["weighted"] == pytest.approx((sum(values) + 20 * 0.95) / 40)
    low = summary(values, weights, higher=False)
    assert (low["worst"], low["worst_decile"]) == (0.95, pytest.approx(0.925))
    alone = summary([0.5], [3], higher=True)
    assert set(alone.values()) == {0.5, 0.0, 1}


def test_clients_without_a_number_do_not_count():
    found = summary([math.nan, 0.5, 0.25], [100, 1, 3], higher=True)
    assert (found["mean"], found["weighted"], found["clients"]) == (0.375, 0.3125, 2)
    none = summary([math.nan], [1], higher=True)
    assert none["clients"] == 0
    assert math.isnan(none["worst"])
    assert summary([math.inf, 1.0], [1, 1], higher=False)["worst"] == math.inf


def test_directions_by_name():
    assert all(map(higher_is_better, ("accuracy", "top5", "macro_F1", "AUROC", "my_score")))
    assert not any(map(higher_is_better, ("loss", "perplexity", "mse", "mae", "error")))


def test_flat_names_are_clean():
    of_clients = {"accuracy": summary([0.5, 1.0], [1, 1], higher=True)}
    one = record(
        train={"loss": 0.5},
        test={"accuracy": 0.25},
        clients_test=of_clients,
        personalised=of_clients,
        client_values={"clients_test": {"accuracy": [0.5, 1.0]}},
        diagnostics={"m_norm": 1.0},
    )
    row = one.flat()
    assert (row["train_loss"], row["server_train_loss"], row["m_norm"]) == (0.75, 0.5, 1.0)
    assert row["clients_test_accuracy_worst"] == row["personalised_accuracy_worst"] == 0.5
    assert row["clients_test_accuracy_worst_decile"] == 0.5
    assert row["clients_test_accuracy_mean"] == 0.75
    assert all(isinstance(value, int | float) for value in row.values())


def test_lines_with_and_without_the_clients_numbers(tmp_path):
    path = tmp_path / "records.jsonl"
    new = record(
        clients_test={"auc": summary([math.nan, 1.0], [1, 1], higher=True)},
        client_values={"clients_test": {"auc": [0.5, 1.0]}},
    )
    path.write_bytes(to_line(new))
    assert read(path).records == [new]
    old = record(test={"loss": 1.0}).to_dict()
    for name in ("clients_test", "personalised", "client_values"):
        assert old.pop(name) == {}
    path.write_bytes((json.dumps(sealed(old)) + "\n").encode())
    found = read(path)
    assert found.wrong is None
    assert found.records == [record(test={"loss": 1.0})]
