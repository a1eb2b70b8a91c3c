"""The benchmark's words and sums; times are for `make bench`."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from studies.performance import contenders, document, jobs, measure, results
from studies.performance.runners import large_models, ours, plain


def _large(model, dataset, eta=0.05, **options):
    name = large_models.PREFIX + model
    return jobs.Job("tiny", "", name, dataset, 2, 2, 2, eta=eta, options=options)


TINY = {
    "mlp": jobs.Job("tiny", "", "mlp", "made-up examples 60 8", 4, 3, 3, options={"inputs": 8}),
    "resnet": _large("resnet18_gn", "made-up pictures 12 8", width=2),
    "bert": _large("bert", "made-up classified 20 30", vocabulary=30, layers=1, width=8),
    "gpt2": _large("gpt2_lora", "made-up sentences 20 30", 2.0, vocabulary=30, layers=1, width=8),
    "lstm": jobs.Job(
        "tiny",
        "",
        "lstm",
        "made-up text 1000 11",
        2,
        3,
        2,
        options={"vocabulary": 11, "embedding": 4, "hidden": 5, "dropout": 0.0},
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls old names of transformers
@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("workers", [1, 2])
def test_plain_loop_and_ours_end_at_the_same_vector(model, workers, tmp_path):
    task = jobs.write(TINY[model], tmp_path / "task", rounds=2).folder
    found = {}
    for name in ("plain", "ours"):
        answer = tmp_path / name
        answer.mkdir()
        if name == "plain":
            plain.run(task, answer, 0.0)
        else:
            ours.run(task, answer, 0.0, "fedavg", workers)
        assert len(json.loads((answer / "answer.json").read_text())["seconds"]) == 2
        found[name] = np.load(answer / "x.npy")
    rounding = 3e-5 if model == "resnet" else 1e-6  # twenty layers with GroupNorm
    np.testing.assert_allclose(found["ours"], found["plain"], rtol=0, atol=rounding)
    assert np.abs(found["ours"] - np.load(task / "x0.npy")).max() > 1e-3


@pytest.mark.parametrize("page", document.PAGES, ids=lambda page: page.name)
def test_pages_show_the_results(page):
    found = results.read(results.DEFAULT)
    if not found:
        pytest.skip("no results yet: make bench")
    text = page.read_text()
    assert document.fill_in(text, found) == text


def _not_yet():
    """A case of before the masks were measured."""
    return {"silos": 10, "where": "in process", "parameters": 1000}


def test_every_part_of_the_page_is_made_from_results():
    def cell(seconds, **more):
        known = {"date": "today", "label": "somebody", "algorithm": "fedavg", "data": "real"}
        return known | {"seconds": seconds, "ours": 0.5, "startup": 1.0, "memory": 300.0} | more

    cells = {
        "ours": cell(0.5, deviation=1e-6, equal=True),
        "plain-1": cell(1.5, deviation=0.0, equal=True),
        "ours-1": cell(1.6, deviation=1e-6, equal=True, memory=600.0),
        "pfl-2": cell(0.4, deviation=2e-6, equal=True),
        "flower": cell(0.1, deviation=0.3, equal=False),
        "flare": {"date": "today", "label": "FLARE", "left_out": "too many"},
        "ours-fafed": cell(1.0),
    }
    job = {"title": "a job", "clients": 20, "b": 50, "q": 10, "cells": cells}
    gradient = {"plain-1": 4e-3, "plain-2": 3e-3, "ours-1": 2e-3, "ours": 1e-3, "operations": 10**8}
    ways = {"open": {"seconds": 0.2, "kilobytes": 9.0}, "secure": {"seconds": 1.0, "kilobytes": 13}}
    case = {"silos": 3, "where": "in process", "parameters": 1000, "masks": 0.3} | ways
    found = {
        "secure": {"cases": {"a": case, "b": case | {"where": "on FLARE"}, "c": ways | _not_yet()}},
        "jobs": {"J1": job},
        "limits": {"peak": {"1": 1e11, "2": 2e11}, "gradients": {"J1": gradient}},
        "growth": {"clients": {"20": {"ours": cells["ours"]}}},
        "startup": {"first round": 1.25, "date": "today"},
        "machine": {"processor": "some"},
    }
    page = {name: part(found) for name, part in document.PARTS.items()}
    assert "| plain loop, 1 thread | **3** (1.5 s) |" in page["ratios"]
    assert "| Flower, 2 actors | wrong |" in page["ratios"]
    assert "| NVIDIA FLARE, 2 calls at once | left out |" in page["ratios"]
    assert "the last: J1 2e-06." in page["notes"]
    assert page["losses"].splitlines() == [
        "- J1: somebody is faster than fafed (ratio 0.8).",
        "- J1: somebody is faster than fafed with one worker (ratio 0.94).",
        "- J1: fafed with one worker takes 2.0 times the plain loop's memory.",
    ]
    assert "| J1 | (0.5 s) | 2.00 (1 s) | · |" in page["algorithms"]
    assert page["limit"].endswith("| 200 | 0.2 s | 0.5 s | 60% | 20% |\n")
    assert page["secure"].splitlines()[2:] == [
        "| 3, in process | 1,000 | 0.3 s | 0.2 s | 1 s | 50% | 12 | 13 |",
        "| 3, on FLARE | 1,000 | 0.3 s | 0.2 s | 1 s | · | 12 | 13 |",
        "| 10, in process | 1,000 | · | 0.2 s | 1 s | · | 12 | 13 |",
    ]
    assert "| 20 | 0.5 s, 300 MiB |" in page["growth"]
    assert (
        document.fill_in("<!-- bench:first -->?<!-- /bench:first -->", found).count("1.25 s") == 1
    )


def test_results_of_a_part_leave_the_rest(tmp_path):
    path = tmp_path / "results.json"
    results.merge(path, {"jobs": {"J1": {"b": 50, "cells": {"a": {"date": "1", "x": 1, "y": 2}}}}})
    results.merge(path, {"jobs": {"J1": {"b": 50, "cells": {"b": {"date": "2", "x": 3}}}}})
    results.merge(path, {"jobs": {"J1": {"b": 50, "cells": {"a": {"date": "3", "x": 4}}}}})
    cells = results.read(path)["jobs"]["J1"]["cells"]
    assert cells == {"a": {"date": "3", "x": 4}, "b": {"date": "2", "x": 3}}


def test_ours_and_the_plain_loop_always_take_part():
    assert [c.name for c in contenders.chosen("flower")] == ["ours", "plain-1", "flower"]
    with pytest.raises(SystemExit, match="nobody is called 'flour'"):
        contenders.chosen("flour")


def test_a_runner_that_takes_too_long_is_stopped_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"]
    with pytest.raises(measure.TooSlow, match="stopped after 1 s"):
        measure.run(command, os.environ, tmp_path, limit=1)
    deadline = time.monotonic() + 5  # a signal takes its time
    while (state := measure._stat(int(pid.read_text()))) and state[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)
