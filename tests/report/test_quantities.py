from __future__ import annotations

import math

import pytest
from report_runs import config, plain_run, record

from fafed import ConfigError
from fafed.report import RunData, table
from fafed.report.quantities import evaluated, find_axis, find_quantity, primary, training


def measured(values: dict[str, float], model: str = "mlp") -> list[RunData]:
    records = [record(1), record(2, test=values)]
    return [RunData("run", config(model={"name": model}), records)]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("loss", "accuracy"), ["accuracy", "loss"]),
        (("loss", "f1_score"), ["f1_score", "loss"]),
        (("error", "loss"), ["loss", "error"]),
        (("accuracy", "perplexity"), ["perplexity", "accuracy"]),
    ],
)
def test_what_matters_most_comes_first(names: tuple[str, ...], order: list[str]) -> None:
    runs = measured(dict.fromkeys(names, 0.5))
    assert [quantity.key for quantity in evaluated(runs)] == order


def test_language_models_get_a_perplexity() -> None:
    runs = measured({"loss": 2.0, "accuracy": 0.3}, "lstm")
    perplexity = primary(runs)
    assert perplexity.title == "Test perplexity = exp(loss)"
    assert not perplexity.higher
    assert [perplexity.read(r) for r in runs[0].records] == [None, math.exp(2.0)]
    assert perplexity.read(record(3, test={"loss": 1e4})) == math.inf
    assert [q.key for q in evaluated(measured({"loss": 2.0}))] == ["loss"]


def test_shares_are_percentages_only_within_zero_and_one() -> None:
    assert find_quantity(measured({"accuracy": 0.9}), "accuracy").brief(0.875) == "87.5\u00a0%"
    assert find_quantity(measured({"accuracy": 90.0}), "accuracy").brief(87.5) == "87.5"
    assert primary([plain_run(0.5, math.nan)]).share
    assert not find_quantity(measured({"loss": 0.5}), "loss").share


def test_validation_comes_after_test() -> None:
    values = {"validation": {"loss": 1.0, "accuracy": 0.5}}
    both = [RunData("run", config(), [record(1, test={"accuracy": 0.4}) | values])]
    assert [q.key for q in evaluated(both)] == [
        "accuracy", "validation_accuracy", "validation_loss",
    ]  # fmt: skip
    only = [RunData("run", config(), [record(1) | values])]
    assert primary(only).title == "Validation accuracy"


def test_without_test_data_the_training_loss_ranks() -> None:
    assert primary([plain_run(None, None)]).key == "train_loss"


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        find_quantity(measured({"accuracy": 0.5}), "acuracy")
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        find_axis("round")


def test_two_training_losses_with_two_names() -> None:
    def run(*losses: float | None) -> RunData:
        rows = [
            record(i, 2.0) | {"train": {} if loss is None else {"loss": loss}}
            for i, loss in enumerate(losses, start=1)
        ]
        return RunData("run", config(), rows)

    def names(*runs: RunData) -> list[str]:
        return [quantity.key for quantity in training(runs)]

    assert names(run(None)) == ["train_loss"]
    assert names(run(None, 1.0)) == ["server_train_loss", "train_loss"]
    assert names(run(1.0), run(None)) == ["train_loss", "server_train_loss"]
    both = [run(None, 1.0)]
    assert primary(both).title == "Training loss of the server's model"
    server, clients = (find_quantity(both, name) for name in ("server_train_loss", "train_loss"))
    assert [server.read(r) for r in both[0].records] == [None, 1.0]
    assert [clients.read(r) for r in both[0].records] == [2.0, 2.0]
    (row,) = table(both)
    assert (row.server_train_loss.mean, row.train_loss.mean) == (1.0, 2.0)
