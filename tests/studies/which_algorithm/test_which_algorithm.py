"""docs/which-algorithm.md says what the results of the study say, about every method."""

from __future__ import annotations

import copy
import inspect
import json
import re
import shutil

import pytest
import torch
from small import experiment, write_data

import fafed
from fafed import ALGORITHMS, FAFED, FedAvg
from fafed.data import Text
from fafed.data.loading import steps_of_round
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from studies.which_algorithm import cifar, cifar_part, fafed_default, jobs, measurement
from studies.which_algorithm.characters import LENGTH, LETTERS, OTHER, Net, examples
from studies.which_algorithm.figure import draw
from studies.which_algorithm.jobs import AS_IT_IS, JOBS, KEPT
from studies.which_algorithm.numbers_page import render_numbers
from studies.which_algorithm.page import render
from studies.which_algorithm.results import (
    ALIKE,
    NUMBERS,
    PAGE,
    PARTIAL,
    PICTURE,
    RESULTS,
    SKEWED,
    Results,
    class_name,
)
from studies.which_algorithm.scaled_inputs import clients


@pytest.fixture(scope="module")
def results():
    return Results(json.loads(RESULTS.read_text("utf-8")))


def test_the_page_is_the_one_that_the_results_give(results, monkeypatch):
    page = PAGE.read_text("utf-8")
    for name in results.not_measured:
        if class_name(name) not in page:  # registered after the page was written
            monkeypatch.delitem(ALGORITHMS, name)
    assert page == render(results), "python -m studies.which_algorithm --render-only"
    assert NUMBERS.read_text("utf-8") == render_numbers(results), "the same"
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


def test_every_method_had_the_same_trials_on_every_job(results):
    for job in JOBS:
        assert results.content["targets"][job] == jobs.TARGETS[job]
        assert set(results.parts[job]) == set(jobs.names(job)) - set(results.not_measured)
        for name in results.parts[job]:
            tried = [tuple(trial["setting"].items()) for trial in results.grid(job, name)]
            assert len(tried) == 4
            assert tried == jobs.grid(SKEWED, name)


def test_the_chosen_setting_has_the_highest_accuracy_on_held_out_data(results):
    for job in JOBS:
        for name in results.parts[job]:
            best = max(results.grid(job, name), key=lambda trial: trial["accuracy"] or 0)
            assert results.parts[job][name]["setting"] == best["setting"]


def test_no_choice_has_seen_the_seeds_that_are_measured(results):
    seeds = results.content["seeds"]
    assert seeds["choosing"] not in seeds["measuring"]
    assert seeds["one"] in seeds["measuring"]


def test_the_rule_takes_the_setting_that_loses_least_in_the_worst_job():
    table = {"skewed": [0.8, 0.7, 0.79, 0.1], "iid": [0.6, 0.9, 0.87, 0.2]}
    grid = [dict(setting) for setting in jobs.grid(SKEWED, "fedpd")]
    trials = {
        job: {"fedpd": [{"setting": s, "accuracy": a} for s, a in zip(grid, row, strict=True)]}
        for job, row in table.items()
    }
    found = measurement.rule({**trials, "partial": {}}, "fedpd")
    assert found["rule"] == grid[2]
    assert found["rule_loss"] == pytest.approx(0.03)
    assert found["before"] == {"eta": 0.01} == grid[0]
    assert found["before_loss"] == pytest.approx(0.3)
    assert measurement.new_default({"fedpd": found}, "fedpd") == tuple(grid[2].items())
    close = found | {"before_loss": found["rule_loss"] + measurement.WORTH / 2}
    assert measurement.new_default({"fedpd": close}, "fedpd") == tuple(grid[0].items())


def test_the_library_has_the_defaults_that_the_page_says(results):
    for name, entry in results.parts[SKEWED].items():
        expected = results.defaults[name]["before"] if name in KEPT else entry["default"]
        assert dict(jobs.default(name)) == expected
        assert dict(jobs.before(name)) == results.defaults[name]["before"]
    assert (FAFED.paper().eta, FAFED.paper().alpha) == (0.01, 0.9)


def test_fafeds_options_were_chosen_by_the_rule_and_are_the_default(results):
    found = results.content["fafed_options"]
    tried = [tuple(entry["setting"].items()) for entry in found]
    assert sorted(tried) == sorted(fafed_default.candidates())
    cells = [(job, kind) for job in JOBS for kind in fafed_default.KINDS]
    top = {(j, k): max(e["accuracy"][j][k] for e in found) for j, k in cells}
    for entry in found:
        worst = max(top[j, k] - entry["accuracy"][j][k] for j, k in cells)
        assert entry["worst_loss"] == pytest.approx(worst, abs=1e-6)
    best = min(found, key=lambda entry: entry["worst_loss"])
    assert best == found[0]
    assert all(getattr(FAFED(), key) == value for key, value in best["setting"].items())


def test_a_first_call_of_fafed_was_measured_as_it_is_made(results):
    """On every job, with the steps and examples that `fafed.train` has by itself."""
    asked = inspect.signature(fafed.start).parameters["batch_size"].default
    assert fafed_default.CALLED["batch_size"] == asked
    assert fafed_default.CALLED["local_steps"] == steps_of_round(None, None, asked, [100])
    found = results.content["fafed_as_called"]
    assert list(found) == [*JOBS, *jobs.ELSEWHERE]
    assert max(one["fedavg"] - one["fafed"] for one in found.values()) <= 0.02
    for job in found:
        e = fafed_default.called(job, "fafed", jobs.default("fafed"), "constant", 1)
        assert e.algorithm.options == dict(jobs.default("fafed"))
        assert (e.rounds, e.local_steps, e.batch_size) == tuple(fafed_default.CALLED.values())
    content = copy.deepcopy(results.content)
    content["fafed_as_called"]["mnist"]["fafed"] -= 0.1
    worse = Results(content)
    worse.cards = results.cards
    assert "So run, FAFED ends at most 10.5 points below FedAvg" in " ".join(render(worse).split())


def test_step_sizes_fall_in_every_method_that_allows_it():
    for name in jobs.names("iid"):
        options = jobs.run("iid", name, jobs.default(name), "linear", 1).algorithm.options
        assert (name in AS_IT_IS) == isinstance(options["eta"], float)
        constant = jobs.run("iid", name, jobs.default(name), "constant", 1).algorithm.options
        assert constant["eta"] == dict(jobs.default(name))["eta"]


def test_other_numbers_give_another_page(results):
    content = copy.deepcopy(results.content)
    content["measured"]["skewed"]["domo"]["accuracy"] = [0.9, 0.9, 0.9]
    changed = Results(content)
    changed.cards = results.cards
    assert "90.0 ± 0.0 %" in render_numbers(changed)
    assert "| 90.0 |" in render(changed)


def test_a_finding_that_the_numbers_do_not_bear_out_is_left_out(results):
    content = copy.deepcopy(results.content)
    finding = "Correcting drift helps where there is drift"
    assert finding in render(results)
    skewed = content["measured"]["skewed"]
    skewed["scaffold"], skewed["fedavg"] = skewed["fedavg"], skewed["scaffold"]
    swapped = Results(content)
    swapped.cards = results.cards
    assert finding not in render(swapped)


def test_tables_of_the_advice_fit_a_phone(results):
    """A screen has about 48 characters in a line."""
    for line in render(results).splitlines():
        if line.startswith("|"):
            seen = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
            assert len(seen.strip("| ")) <= 64, line


def test_a_job_that_was_not_run_judges_nobody(results):
    content = copy.deepcopy(results.content)
    content["elsewhere"].pop("moderate", None)
    less = Results(content)
    less.cards = results.cards
    assert "moderate" not in less.judged
    assert "Not run yet: *moderate*" in render(less)
    assert less.worst_gap("fedcm") <= results.worst_gap("fedcm")


def test_the_language_model_sees_only_what_was_before():
    torch.manual_seed(0)
    net, one = Net(), torch.randint(OTHER, (2, LENGTH))
    other = one.clone()
    other[:, 10] = OTHER - other[:, 10]
    outputs = net(one), net(other)
    assert outputs[0].shape == (2, OTHER + 1, LENGTH)
    assert torch.equal(outputs[0][..., :10], outputs[1][..., :10])
    assert not torch.allclose(outputs[0][..., 10:], outputs[1][..., 10:])


def test_the_letters_of_the_language_model():
    words = ("<eos>", "Ab", "1999", "é")
    stream = torch.tensor([1, 2, 3, 0] * 20)
    text = Text(stream, stream, stream, words)
    inputs, targets = examples(stream, text)
    written = " ".join(["ab 0000 é \n"] * 20)
    assert inputs.shape == targets.shape == ((len(written) - 1) // LENGTH, LENGTH)
    expected = [OTHER if c == "é" else LETTERS.index(c) for c in written]
    assert inputs.flatten().tolist() == expected[: inputs.numel()]
    assert targets.flatten().tolist() == expected[1 : 1 + inputs.numel()]


def test_the_picture_is_drawn(results, tmp_path):
    draw(results, tmp_path / "images" / "picture.svg")
    assert "LocalAMSGrad" in (tmp_path / "images" / "picture.svg").read_text("utf-8")


def test_a_run_on_cifar_that_is_missing_is_marked_and_nobody_wins(monkeypatch):
    job, grid = cifar.JOBS[0], {name: cifar.GRIDS[name] for name in ("fedavg", "fedcm")}
    monkeypatch.setattr(cifar_part, "GRIDS", grid)
    monkeypatch.setattr(cifar, "GRIDS", grid)
    found = cifar.Found()
    assert cifar_part.NOT_YET in cifar_part.cifar_part(found).lower()
    order = []
    while (wanted := next(found.missing(job), None)) is not None:
        name, setting, seed = wanted
        assert "There is no ranking yet" in cifar_part.first(found, job)
        order.append((name, seed))
        entry = {"method": name, "setting": dict(setting), "seed": seed}
        good = {"fedavg": 0.3, "fedcm": 0.5}[name] + dict(setting)["eta"] / 10 + seed / 1000
        key = "accuracy" if seed else "held_out"
        found.runs.append({"job": job} | entry | {key: good})
    assert len(order) == 12
    assert [seed for _, seed in order] == sorted(seed for _, seed in order)
    assert dict(found.chosen(job, "fedcm")) == {"eta": 1.0}
    assert "FedCM ends highest: 60.2 ± 0.1 %" in cifar_part.first(found, job)
    page = cifar_part.cifar_part(found)
    assert "12 of 24 runs" in page
    assert not cifar_part.deeper(found)  # the other job is missing
    assert cifar_part.TITLES[cifar.JOBS[1]] in page.partition("Not run yet: ")[2]
    with monkeypatch.context() as patch:
        patch.setattr(cifar_part, "JOBS", (job,))
        told = " ".join(cifar_part.deeper(found))
        assert "FedCM ends highest, at 60.2 ± 0.1 %. FedAvg ends at" in told
    for entry in found.runs:
        entry["accuracy"] = 0.5 + entry["seed"] / 10
    assert "does not tell it apart from" in cifar_part.first(found, job)


def test_the_runs_on_cifar_are_written_one_by_one_and_go_on(tmp_path, monkeypatch):
    made = []

    def broken_off(self, what, wanted):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(next(iter(wanted)))
        return {key: RunDir(tmp_path) for key in wanted}

    monkeypatch.setattr(cifar.Runs, "__call__", broken_off)
    monkeypatch.setattr(cifar, "held_out", lambda place: 0.5)
    monkeypatch.setattr(cifar, "made_with", lambda place: {"parameters": 7})
    place = tmp_path / "cifar.jsonl"
    with pytest.raises(KeyboardInterrupt):
        cifar.measure(tmp_path, place)
    found = cifar.Found.read(place)
    assert [run["method"] for run in found.runs] == ["fedavg", "fedavgm"]
    assert [run["job"] for run in found.runs] == [cifar.JOBS[0]] * 2
    assert next(found.missing(cifar.JOBS[0]))[0] == "scaffold"


def test_the_jobs_on_cifar_are_the_presets_made_small():
    for job in cifar.JOBS:
        small, preset = cifar.experiment(job), Experiment.read(job.replace("cifar-", "cifar-10-"))
        assert (small.data.clients, small.participation) == (
            preset.data.clients,
            preset.participation,
        )
        assert small.eval_every == small.rounds
        for name, grid in cifar.GRIDS.items():
            assert len(grid) == 3
            for setting in grid:
                cifar.run(job, name, setting, 1).check()


def test_the_methods_on_cifar_follow_the_rule(results):
    named = {cifar.algorithm(name) for name in (*cifar.KNOWN, *cifar.OURS)}
    others = [n for n in results.advisable() if n not in named and n in results.parts["partial"]]
    best = sorted(others, key=lambda n: -sum(results.mean(part, n) for part in jobs.JOBS))[:2]
    assert tuple(best) == cifar.BEST
    assert [*cifar.KNOWN, *cifar.OURS, *cifar.BEST] == list(cifar.GRIDS)


def test_the_badly_scaled_job_has_what_it_says():
    shards, (x, y) = clients()
    sizes = x.std(0)
    assert 50 < sizes.max() / sizes.min() < 200
    assert len(shards) == jobs.experiment("scaled").data.clients
    assert set(y.tolist()) == set(range(jobs.experiment("scaled").model.options["outputs"]))


def test_measuring_on_a_tiny_job(tmp_path, monkeypatch):
    data = tmp_path / "data"
    write_data(data)
    plain = experiment(data, rounds=2, algorithm={"name": "fedavg"})
    plain["data"] = plain["data"] | {"validation": 0.2}
    grids = {"search": {"fedavg": {"eta": [0.001, 0.1]}, "scaffold": {"eta": [0.02, 0.1]}}}
    half = {"participation": 0.5, "settings": {"scaffold": {"wire": "full"}}}
    alone = {"search": {"adam": {"eta": [0.001, 0.01]}}, "algorithm": {"name": "adam"}}
    for job in (*JOBS, *jobs.ELSEWHERE, jobs.POOLED):
        content = plain | {"name": job} | (half if job == PARTIAL else grids)
        if job == jobs.POOLED:
            write_data(tmp_path / "one", clients=1)
            content = plain | {"name": job} | alone
            content["data"] = plain["data"] | {"folder": str(tmp_path / "one")}
        text = Experiment.from_dict(content).to_toml()
        (tmp_path / f"{job}.toml").write_text(text, "utf-8")
    ran = []

    def in_this_process(experiments, root, processes, **options):
        places = [RunDir.for_experiment(e, root) for e in experiments]
        for e, place in zip(experiments, places, strict=True):
            if not place.finished():
                ran.append(place)
                execute(e, place)
        return places

    monkeypatch.setattr(jobs, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(measurement, "run_all", in_this_process)
    jobs.experiment.cache_clear()
    make = measurement.Runs(tmp_path / "runs", 1)
    try:
        found = measurement.measure(make)
        fedavg = found["measured"]["iid"]["fedavg"]
        best = max(found["trials"]["iid"]["fedavg"][:2], key=lambda trial: trial["accuracy"])
        assert fedavg["setting"] == best["setting"]
        assert len(fedavg["accuracy"]) == len(jobs.SEEDS)
        assert fedavg["equal"]["bytes"] == {"rounds": 2, "accuracy": fedavg["accuracy"][0]}
        assert found["elsewhere"]["wide"]["fedavg"]["tuned"]["setting"]["eta"] in (0.001, 0.1)
        assert set(found["pooled"]) == {"adam"}
        count = len(ran)
        assert measurement.measure(make) == found
        assert len(ran) == count
        less = copy.deepcopy(found)
        for part in ("trials", "measured", "elsewhere"):
            for job in less[part].values():
                job.pop("scaffold", None)
        assert measurement.measure(make, less) == found
        assert measurement.measure(measurement.Runs(tmp_path / "other", 1), found) == found
        assert len(ran) == count
        less = copy.deepcopy(found)
        less["elsewhere"]["mnist"] = {}
        less["elsewhere"]["wide"] = {}
        for part in ("mnist/scaffold-seed1-*", "wide/fedavg-seed0-*"):
            for place in (tmp_path / "runs").glob(part):
                shutil.rmtree(place)
        some = measurement.Runs(tmp_path / "runs", 1, collect=True)
        part = measurement.measure(some, less)["elsewhere"]
        assert "scaffold" not in part["mnist"]
        assert set(part["wide"]["fedavg"]) == {"default", "before"}
        assert {**part, "mnist": {}, "wide": {}} == {**found["elsewhere"], "mnist": {}, "wide": {}}
        assert len(ran) == count
    finally:
        jobs.experiment.cache_clear()
