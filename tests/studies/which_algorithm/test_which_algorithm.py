"""docs/which-algorithm.md says what the results of the study say, about every method."""

from __future__ import annotations

import copy
import json

import pytest
from small import experiment, write_data

from fafed import ALGORITHMS, FedAvg
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.experiments.tuning import space
from studies.which_algorithm import measurement
from studies.which_algorithm.figure import draw
from studies.which_algorithm.page import render
from studies.which_algorithm.results import (
    ALIKE,
    PAGE,
    PARTIAL,
    PICTURE,
    RESULTS,
    SKEWED,
    Results,
    class_name,
    read_experiment,
)


@pytest.fixture(scope="module")
def results():
    return Results(json.loads(RESULTS.read_text("utf-8")))


def test_the_page_is_the_one_that_the_results_give(results, monkeypatch):
    page = PAGE.read_text("utf-8")
    for name in results.not_measured:
        if class_name(name) not in page:  # registered after the page was written
            monkeypatch.delitem(ALGORITHMS, name)
    assert page == render(results), "python -m studies.which_algorithm --render-only"
    assert f"(images/{PICTURE.name})" in page
    assert PICTURE.is_file()


def test_settings_have_the_same_methods(results):
    assert set(results.parts[SKEWED]) == set(results.parts[ALIKE])
    assert set(results.parts[SKEWED]) - set(results.parts[PARTIAL]) == {"fedpd"}


def test_a_method_that_was_not_measured_is_marked(results, monkeypatch):
    class Newcomer(FedAvg):
        pass

    assert "Newcomer" not in render(results)
    monkeypatch.setitem(ALGORITHMS, "newcomer", Newcomer)
    page = render(results)
    (mark,) = [text for text in page.split("\n\n") if text.startswith("Not measured yet: ")]
    assert "Newcomer" in mark
    assert "We measured all" not in page


def test_every_method_had_the_same_number_of_trials(results):
    for part, target in measurement.TARGETS.items():
        file = read_experiment(part)
        assert results.content["targets"][part] == target
        for name in file.search:
            tried = [tuple(t["step"].items()) for t in results.parts[part][name]["trials"]]
            assert len(tried) == 4
            assert tried == measurement._grid(file, name)
            assert tuple(results.parts[part][name]["step"].items()) in tried
            assert len(space(file, name)) == 1


def test_the_chosen_step_has_the_lowest_training_loss(results):
    for entries in results.parts.values():
        for entry in entries.values():
            trials = [t for t in entry.get("trials", []) if t["train_loss"] is not None]
            if trials:
                assert entry["step"] == min(trials, key=lambda t: t["train_loss"])["step"]


def test_other_numbers_give_another_page(results):
    content = copy.deepcopy(results.content)
    content["measured"]["skewed"]["domo"]["accuracy"] = [0.9, 0.9, 0.9]
    changed = Results(content)
    changed.cards = results.cards
    assert "90.0 ± 0.0 %" in render(changed)


def test_a_finding_that_the_numbers_do_not_bear_out_is_left_out(results):
    content = copy.deepcopy(results.content)
    finding = "Correcting drift helps where there is drift"
    assert finding in render(results)
    fedavg = content["measured"]["skewed"]["fedavg"]
    content["measured"]["skewed"]["scaffold"], content["measured"]["skewed"]["fedavg"] = (
        fedavg,
        content["measured"]["skewed"]["scaffold"],
    )
    swapped = Results(content)
    swapped.cards = results.cards
    assert finding not in render(swapped)


def test_the_picture_is_drawn(results, tmp_path):
    draw(results, tmp_path / "images" / "picture.svg")
    assert "LocalAMSGrad" in (tmp_path / "images" / "picture.svg").read_text("utf-8")


def test_measuring_on_a_tiny_job(tmp_path, monkeypatch):
    data = tmp_path / "data"
    write_data(data)
    plain = experiment(data, rounds=2, algorithm={"name": "fedavg"})
    grids = {"search": {"fedavg": {"eta": [0.001, 0.1]}, "scaffold": {"eta": [0.02, 0.1]}}}
    half = {"participation": 0.5, "settings": {"scaffold": {"wire": "full"}}}
    for part in measurement.TARGETS:
        content = plain | {"name": part} | (half if part == PARTIAL else grids)
        text = Experiment.from_dict(content).to_toml()
        (tmp_path / f"{part}.toml").write_text(text, "utf-8")
    ran = []

    def in_this_process(experiments, root, jobs):
        places = [RunDir.for_experiment(e, root) for e in experiments]
        for e, place in zip(experiments, places, strict=True):
            if not place.finished():
                ran.append(place)
                execute(e, place)
        return places

    monkeypatch.setattr(measurement, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(measurement, "run_all", in_this_process)
    found = measurement.measure(tmp_path / "runs", jobs=1)
    fedavg = found["measured"]["iid"]["fedavg"]
    assert fedavg["step"] == {"eta": 0.1}
    assert len(fedavg["accuracy"]) == len(measurement.SEEDS)
    assert fedavg["default"] is not None
    assert (
        found["measured"]["partial"]["scaffold"]["step"]
        == (found["measured"]["skewed"]["scaffold"]["step"])
    )
    count = len(ran)
    assert count == 3 * (3 + 3 + 3 * 2) + 3 * 2
    assert measurement.measure(tmp_path / "runs", jobs=1) == found
    assert len(ran) == count
