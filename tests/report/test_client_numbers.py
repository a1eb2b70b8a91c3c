"""The clients one by one, in a report."""

from __future__ import annotations

import re

from report_runs import config, plain_run, record

from fafed.core.records import summary
from fafed.report import RunData
from fafed.report.client_numbers import section
from fafed.report.curves import make_curves
from fafed.report.page import page


def measured(accuracies: list[float], seed: int = 0, algorithm: str = "fafed") -> RunData:
    ones = [1.0] * len(accuracies)
    found = {
        "clients_test": {
            "loss": summary([2.0, 4.0], [1, 3], higher=False),
            "accuracy": summary(accuracies, ones, higher=True),
        },
        "client_values": {"clients_test": {"accuracy": accuracies, "loss": [2.0, 4.0]}},
    }
    rows = [record(1, 1.0), record(2, 1.0) | found, record(3, 1.0)]
    return RunData(f"run-{seed}", config(algorithm, seed=seed), rows)


def cells(text: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    bare = [re.sub(r"<svg.*?</svg>", "", row) for row in rows]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in bare]


def test_a_table_of_the_last_measured_round() -> None:
    found = section(make_curves([measured([0.5, 1.0])]))
    head, accuracy, loss = cells(found)
    assert head[2:] == [
        "Mean",
        "Mean weighted by examples",
        "Standard deviation",
        "Worst",
        "Worst decile",
        "Clients",
    ]
    shown = [text.replace("\u00a0", " ") for text in accuracy]
    assert shown == [
        "fafed",
        "accuracy",
        "75.00 %",
        "75.00 %",
        "25.00 %",
        "50.00 %",
        "50.00 %",
        "2",
    ]
    assert loss == ["fafed", "loss", "3.000", "3.500", "1.000", "4.000", "4.000", "2"]


def test_seeds_and_curves() -> None:
    runs = [measured([0.5, 1.0]), measured([0.7, 1.0], 1), measured([0.1, 0.2], algorithm="stem")]
    found = section(make_curves(runs))
    assert "80.00 ± 7.07" in found
    assert found.count("<circle") == 4  # the clients of the first seed
    assert found.count('stroke-width="2"') == 2


def test_nothing_without_test_data_of_clients() -> None:
    assert section(make_curves([plain_run(0.5)])) == ""
    assert "Client by client" not in page([plain_run(0.5)])
    assert "Client by client" in page([measured([0.5, 1.0])])
