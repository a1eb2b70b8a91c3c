"""The driver and the decisions on a tiny job: what is run and chosen; nothing is run twice."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from small import experiment, write_data

from fafed.errors import ConfigError, FafedError
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.experiments.tuning import GRIDS
from fafed.training.loop import Diverged
from studies.paper import decay, document, driver, figures, text, verdicts
from studies.paper.decisions import (
    Decisions,
    first_round_at,
    missing,
    multiples,
    points,
    score,
    subset,
)
from studies.paper.findings import Findings, perplexity, read_at, rises
from studies.paper.ledger import Job, Ledger, Missing, Outcome, compact_record
from studies.paper.protocol import Protocol

REPOSITORY = Path(__file__).parents[3]
STUDY = REPOSITORY / "studies" / "paper"
GRID = {
    "fedavg": {"eta": [0.001, 0.02, 0.2]},
    "fafed": {"eta": [0.001, 0.02, 0.05], "alpha": [0.1, 0.9], "beta": [0.9], "rho": [0.1]},
}
LEVELS = ("tiny-low",)
RUNGS = [
    {"share": 0.1, "keep": 4, "tail": 1},
    {"share": 0.5, "keep": 2, "tail": 2},
    {"share": 1.0, "keep": 1, "tail": 3},
]


@pytest.fixture
def tiny(tmp_path):
    """The real protocol with a tiny experiment in place of each, and short grids."""
    write_data(tmp_path / "data")
    content = tomllib.loads((STUDY / "configs" / "protocol.toml").read_text("utf-8"))
    base = experiment(tmp_path / "data", search=GRID, eval_every=1, checkpoint_every=100)
    names = [*LEVELS, "tiny-low-b10", "other", "text", "text-large"]
    data = {"mnist": ["other"], "cifar-10": ["other"]}
    content |= {
        "methods": ["fedavg", "fafed"],
        "tail": 2,
        "seeds": [1, 2],
        "fewest_rounds": 1,
        "on_request": ["text-large"],
        "table2": {name: {"fedavg": 0.6, "fafed": 0.7} for name in LEVELS},
        "readings": {
            "tiny-low-b10": {"column": "tiny-low", "about": "low with b = 10", "why": "It is open."}
        },
        "fair": {"trials": 20, "rungs": RUNGS},
        "budget": {"algorithm": "fedavg", "rounds": 12},
        "curves": content["curves"] | {"rounds": 4, "trials": 2, "data": data},
        "language": {
            "text-large": {
                "about": "tiny",
                "methods": ["fafed", "stem"],
                "seed": 1,
                "control": {"eta": 0.1},
            }
        },
        "decay": content["decay"]
        | {
            "methods": ["fedavg", "fafed", "fedcm"],
            "seeds": [4, 5],
            "readings": 2,
            "trials": 4,
            "rungs": [{"share": 0.5, "keep": 1, "tail": 1}],
            "eta_times": [0.5, 1.0],
            "grids": {"fedcm": {"eta": [0.05, 0.1], "alpha": [0.1, 0.5]}},
        },
        "text": content["text"]
        | {
            "experiment": "text",
            "methods": ["fedavg", "fafed"],
            "seeds": [1, 2],
            "trials": 2,
            "grids": {
                "fedavg": {"eta": [0.02, 0.2]},
                "fafed": {"eta": [0.02], "alpha": [0.1, 0.9], "rho": [0.1]},
            },
        },
        "first_rounds": {
            "experiment": "text",
            "rounds": 2,
            "seed": 1,
            "cases": [
                {"about": "as it is", "algorithm": "fafed", "settings": {"eta": 0.02}},
                {
                    "about": "no clipping",
                    "algorithm": "fafed",
                    "settings": {"eta": 0.02},
                    "changes": {"clip": 1e6},
                },
                {"about": "STEM", "algorithm": "stem", "settings": {"eta": 0.02}},
            ],
        },
        "again": content["again"]
        | {"rounds": 4, "trials": 2, "seeds": [1], "data": {"mnist": ["other"]}},
        "experiments": {
            name: Experiment.from_dict(
                base | {"name": name} | ({"batch_size": 10} if "b10" in name else {})
            )
            for name in names
        },
    }
    content["tuned"] |= {"trials": 5, "eta_times": [1.0, 2.0]}
    server, _, estimate = content["momentum"]
    content["momentum"] = [server, estimate]
    server |= {"methods": ["fafed"], "eta_times": [0.5]}
    estimate |= {"methods": ["fafed"], "grid": {"old_grad_scale": [0.0]}}
    content["sensitivity"] |= {
        "experiment": "tiny-low",
        "values": {"algorithm.alpha": [0.5, 1.0], "local_steps": [1, 2]},
    }
    content["deviations"] = [
        {
            "about": "larger batches",
            "experiment": "tiny-low",
            "methods": ["fafed"],
            "changes": {"batch_size": 10},
            "settings": {"beta": 0.5},
        }
    ]
    return Protocol.model_validate(content)


@pytest.fixture
def ran(monkeypatch):
    """Runs are made in this process; the list says which."""
    made = []

    def in_this_process(experiments, root, jobs, on_tick=None, *, threads=None):
        places = [RunDir.for_experiment(e, root) for e in experiments]
        for e, place in zip(experiments, places, strict=True):
            if not place.finished():
                made.append(place)
                execute(e, place, prepare=partial(prepare, workers=1))
            on_tick([place])
        return places

    monkeypatch.setattr(driver, "run_all", in_this_process)
    monkeypatch.setattr(driver, "PAUSE", -1.0)
    monkeypatch.setattr(
        "fafed.experiments.folder._git_revision", lambda: None
    )  # it takes longer than a run
    return made


def test_everything_once(tiny, ran, tmp_path):
    root, results = tmp_path / "runs", tmp_path / "results"
    said = []
    driver.run(tiny, root, results, say=said.append)
    assert said[-1] == "first-rounds: done"
    assert not any(line.startswith("text-large") for line in said)
    count = len(ran)
    assert len({place.path for place in ran}) == count
    assert not any(place.checkpoints.exists() for place in ran)
    driver.run(tiny, root, results)
    assert len(ran) == count
    assert not list(results.glob("*"))  # they are taken over with the documents

    decisions = Decisions(tiny, driver.all_records(root, results))
    rounds = decisions.budget("tiny-low")
    assert rounds.reached
    assert rounds.count < 12
    race = decisions.fair("tiny-low", "fafed")
    assert [len(rung) for rung in race.rungs] == [6, 4, 2]
    coarse, middle, fine = race.rungs
    assert all(o.job.changes["data.validation"] == 0.1 for rung in race.rungs for o in rung)
    best = sorted((score(o, 1) for o in coarse), reverse=True)[:4]
    kept = [o.job.settings for o in middle]
    assert [score(o, 1) for o in coarse if o.job.settings in kept] == best
    assert score(race.winner, 3) == max(score(o, 3) for o in fine)
    assert {o.job.rounds for o in fine} == {rounds.count}
    final = decisions.final("tiny-low", "fafed", 2)
    assert final.job.settings == race.winner.job.settings
    assert (final.job.seed, final.job.rounds, final.job.changes) == (2, rounds.count, {})
    assert decisions.long("tiny-low", "fafed", 1).job.rounds == 3 * rounds.count
    tuned = decisions.tuned("tiny-low", "fafed")
    assert [len(rung) for rung in tuned.rungs] == [5, 5, 3]
    last = tiny.tuned.rungs[-1]
    seeds = {
        o.job.seed for o in decisions.ledger.outcomes.values() if "data.validation" in o.job.changes
    }
    assert seeds == {0, *last.more_seeds}

    def mean(outcome):
        own = [replace(outcome.job, seed=seed) for seed in (0, *last.more_seeds)]
        return sum(score(o, last.tail) for o in decisions.ledger.need(own))

    assert mean(tuned.winner) == max(map(mean, tuned.rungs[-1]))
    also = decisions.tuned_also("tiny-low", "fafed", 2).job
    assert also.settings == tuned.winner.job.settings | {"v_bits": 8}
    best = tuned.winner.job.settings
    faster = decisions.momentum("tiny-low", "fafed")  # from both choices, and one without
    tried = [o.job.settings for o in faster.rungs[0]]
    bases = race.winner.job.settings, best
    pushed = [
        {**base, "eta": 0.5 * base["eta"], "server_momentum": mu}
        for base in bases
        for mu in (0.5, 0.7, 0.9)
    ]
    gathered = [
        {**base, "eta": pytest.approx(times * base["eta"]), "old_grad_scale": 0.0}
        for base in bases
        for times in (0.05, 0.1, 0.2, 0.4)
    ]
    assert all(settings in tried for settings in [best, *pushed, *gathered])
    assert all(settings in [best, *pushed, *gathered] for settings in tried)
    assert mean(faster.winner) == max(map(mean, faster.rungs[-1]))
    assert (
        decisions.momentum_final("tiny-low", "fafed", 2).job.settings == faster.winner.job.settings
    )
    wider = decisions.tuned("tiny-low", "fedavg")  # two step sizes and three of the server's
    assert [len(rung) for rung in wider.rungs] == [5, 5, 3]
    fair = decisions.fair("tiny-low", "fedavg").winner.job.settings["eta"]
    assert {o.job.settings["eta"] for o in wider.rungs[0]} == {fair, 2 * fair}
    assert decisions.tuned_final("tiny-low", "fedavg", 2).job.settings == wider.winner.job.settings
    read = decisions.final("tiny-low-b10", "fafed", 2).job  # the whole protocol, for the low level
    assert read.settings == decisions.fair("tiny-low-b10", "fafed").winner.job.settings
    assert read.rounds == decisions.budget("tiny-low-b10").count
    changed = decisions.deviation(tiny.deviations[0], "fafed").job
    assert changed.build(tiny).batch_size == 10
    assert changed.settings["beta"] == 0.5
    alpha = decisions.sensitivity("algorithm.alpha", 0.5).job.build(tiny)
    assert alpha.algorithm.options["alpha"] == 0.5
    assert decisions.sensitivity("local_steps", 2).job.build(tiny).local_steps == 2

    decisions.ledger.add(outcome([0.1], {"eta": 9.0}))  # of an earlier protocol
    assert len(driver.needed_records(decisions).outcomes) == len(decisions.ledger.outcomes) - 1
    findings = Findings(decisions)
    page = document.render(findings, ["table-2"])
    part = page[page.index("## Table 2") : page.index("## Figures 2")]
    assert "not run yet" not in part.replace("(not run yet)", "")
    assert findings.complete("tiny-low")
    assert findings.at_equal_cost("tiny-low", "gradients")["fedavg"] == findings.end(
        findings.finals("tiny-low", "fedavg")
    )
    runs = findings.with_momentum
    assert runs("tiny-low", "fedavg") == findings.tuned("tiny-low", "fedavg")
    assert [run.job for run in runs("tiny-low", "fafed")] == [
        decisions.momentum_final("tiny-low", "fafed", seed).job for seed in (1, 2)
    ]
    assert set(findings.training("tiny-low")) == set(tiny.methods)
    check_decay(findings)
    check_text(findings)
    assert [run.job.rounds for run in findings.again("other", "fafed")] == [4]
    costs = findings.costs("tiny-low", "fafed")
    assert costs["gradients"] > 2
    assert costs["bytes"] > 2.5
    drawable = {"table-2", "costs", "long", "tuned", "momentum", "sensitivity", "figure-2"}
    drawable |= {"decay", "first-rounds", "figure-1"}
    assert set(figures.available(findings)) == drawable
    assert figures.write(findings, tmp_path / "figures", ["costs", "figure-3"]) == ["costs"]
    assert "FAFED" in (tmp_path / "figures" / "costs.svg").read_text("utf-8")


def check_decay(findings):
    """Falling step sizes, the same number of trials, and shorter runs at equal costs."""
    decisions = findings.decisions
    name, rounds = "tiny-low", decisions.rounds("tiny-low")
    for method in findings.protocol.decay.methods:
        tried = [o.job for o in decay.chosen(decisions, name, method).rungs[0]]
        assert len({job.key for job in tried}) == 4
        assert all(job.settings["eta"]["schedule"] == "linear" for job in tried)
        assert all(job.changes["data.validation"] == 0.1 for job in tried)
        best = max(tried, key=lambda job: score(decisions.ledger.need([job])[0], 1))
        runs = findings.decayed(name, method)
        assert [run.job.seed for run in runs] == [4, 5]
        assert all(run.job.settings == best.settings for run in runs)
        assert {run.job.rounds for run in runs} == {rounds}
        assert not any("data.validation" in run.job.changes for run in runs)
    bases = [decisions.momentum(name, "fafed"), decisions.tuned(name, "fafed")]
    etas = {e for base in bases for e in multiples(base.winner.job.settings["eta"], [0.5, 1.0])}
    own = decay.chosen(decisions, name, "fafed").rungs[0]
    assert {o.job.settings["eta"]["peak"] for o in own} == etas
    whole = findings.decayed(name, "fedavg")[0]
    assert findings.decayed(name, "fedavg", "gradients")[0] is whole
    for axis in ("gradients", "bytes"):
        for run in findings.decayed(name, "fafed", axis):
            assert run.job.rounds < rounds
            assert run.job.rounds == 1 or run.columns[axis][-1] <= whole.columns[axis][-1]
    page = document.section(findings, "decay")
    assert f"{findings.decay_column(name)['fedcm'].mean:.4f}" in page


def check_text(findings):
    """The best trial for the whole length, the control, and the first rounds."""
    decisions, protocol = findings.decisions, findings.protocol
    race = text.chosen(decisions, "fafed")
    assert {o.job.rounds for o in race.rungs[0]} == {protocol.fewest_rounds}
    runs = findings.texts("fafed")
    assert [run.job.settings for run in runs] == 2 * [race.winner.job.settings]
    assert {run.job.rounds for run in runs} == {protocol.experiment("text").rounds}
    control = findings.text_control()[0].job
    assert control.algorithm == "stem"
    assert control.settings == {
        "eta": pytest.approx(0.2),
        "alpha": race.winner.job.settings["alpha"],
    }
    page = document.section(findings, "language")
    for method in protocol.text.methods:
        assert f"{findings.loss(findings.texts(method)).mean:.3f}" in page
    cases = findings.first_rounds()
    assert [case.about for case, _ in cases] == ["as it is", "no clipping", "STEM"]
    assert [run.job.changes.get("clip") for _, run in cases] == [None, 1e6, None]
    assert "| no clipping |" in page


def test_a_stage_alone_and_a_restart(tiny, ran, tmp_path, monkeypatch):
    root, results = tmp_path / "runs", tmp_path / "results"
    driver.run(tiny, root, results, only=["budget"], say=lambda line: None)
    assert {place.experiment().algorithm.name for place in ran} == {"fedavg"}
    with pytest.raises(ConfigError, match="'budgets'; did you mean 'budget'"):
        driver.run(tiny, root, results, only=["budgets"])

    def killed(experiments, root, *arguments, **options):
        """When the first of them has ended and nobody has looked yet."""
        first = experiments[0]
        execute(first, RunDir.for_experiment(first, root), prepare=partial(prepare, workers=1))
        raise KeyboardInterrupt

    count, known = len(ran), len(driver.all_records(root, results).outcomes)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "run_all", killed)
        with pytest.raises(KeyboardInterrupt):
            driver.run(tiny, root, results, say=lambda line: None)
    assert len(driver.all_records(root, results).outcomes) == known + 1
    driver.run(tiny, root, results, only=["text-large"], say=lambda line: None)
    assert len(ran) == count + 3
    findings = Findings(Decisions(tiny, driver.all_records(root, results)))
    assert list(findings.language("text-large")) == ["FAFED", "STEM"]
    compared = findings.language("text-large") | {
        "STEM, step eta/rho": findings.control("text-large")
    }
    assert compared["STEM, step eta/rho"].job.settings == {"eta": 0.1}
    assert len({len(run.columns["round"]) for run in compared.values()}) == 1
    page = document.section(findings, "language")
    for label, run in compared.items():
        end = f"{run.end('train_loss', tiny.tail):.3f}"
        assert f"{label}: {end}" in verdicts.control_words(findings)
        assert f"| {label} | {end} |" in page
    assert figures.write(findings, tmp_path, ["figure-1"]) == ["figure-1"]
    assert "training perplexity" in (tmp_path / "figure-1.svg").read_text("utf-8")


def test_a_stage_whose_data_are_not_here_is_left_out(tmp_path, ran, monkeypatch):
    monkeypatch.setenv("FAFED_DATA", str(tmp_path / "empty"))
    protocol = Protocol.read(STUDY / "configs")
    said = []
    driver.run(protocol, tmp_path / "runs", tmp_path, only=["mnist-low"], say=said.append)
    assert said == ["mnist-low: left out, mnist is not here: fafed data get mnist"]
    assert not ran


def outcome(accuracies, settings=None, **more):
    job = Job("tiny-low", "fedavg", settings or {"eta": 0.1}, 0, len(accuracies))
    columns = {
        "round": list(range(1, len(accuracies) + 1)),
        "validation_accuracy": accuracies,
        "test_accuracy": accuracies,
    }
    return Outcome(job, columns, **more)


def test_a_run_is_read_where_it_had_cost_as_much():
    columns = {
        "round": [5, 10, 15, 20],
        "bytes": [60, 110, 160, 210],  # the first round costs 20, the others 10 each
        "test_accuracy": [0.1, 0.3, 0.4, 0.4],
    }
    run = Outcome(Job("tiny-low", "fafed", {}, 0, 20), columns)
    assert read_at(run, "bytes", 210, 3, 5) == run.end("test_accuracy", 3)
    assert read_at(run, "bytes", 999, 1, 5) == 0.4
    # 135 bytes are 12.5 rounds; 5 rounds earlier are 7.5
    assert read_at(run, "bytes", 135, 1, 5) == pytest.approx(0.35)
    assert read_at(run, "bytes", 135, 2, 5) == pytest.approx((0.35 + 0.2) / 2)
    assert math.isnan(read_at(replace(run, failure="NaN"), "bytes", 135, 1, 5))


def test_rises_are_summed():
    assert rises(outcome([3.0, 2.0, 2.5, 1.0, 1.25]), "test_accuracy") == 0.75
    assert rises(outcome([3.0, 2.0]), "test_accuracy") == 0


def test_slower_step_sizes_are_not_run_beyond_the_fastest(tiny):
    (job,) = missing([lambda: Decisions(tiny, Ledger()).budget("tiny-low")])
    assert (job.settings, job.rounds) == ({"eta": 0.2}, 12)
    fast = Outcome(job, outcome([0.5, 0.6, 0.7, 0.5, 0.7]).columns)
    (job,) = missing([lambda: Decisions(tiny, Ledger([fast])).budget("tiny-low")])
    assert (job.settings, job.rounds) == ({"eta": 0.02}, 3)
    assert Decisions(tiny, Ledger()).rounds("other") == 4


def test_a_budget_that_is_never_reached(tiny):
    ledger = Ledger()
    for eta in (0.2, 0.02, 0.001):
        ledger.add(Outcome(Job("tiny-low", "fedavg", {"eta": eta}, 0, 12), outcome([0.1]).columns))
    found = Decisions(tiny, ledger).budget("tiny-low")
    assert (found.count, found.reached) == (12, False)


def test_a_run_that_is_about_to_write_its_last_checkpoint_is_left_alone(tiny, ran, tmp_path):
    job = Job("other", "fedavg", {"eta": 0.02}, 0, 2)
    batch = driver.Batch(tiny, Ledger(), [job], tmp_path, lambda line: None)
    (path,) = batch.open
    execute(batch.experiments[0], RunDir(path), prepare=partial(prepare, workers=1))
    batch.look([RunDir(path)])
    assert RunDir(path).checkpoints.exists()
    assert not batch.ledger.outcomes
    batch.look([])
    assert not RunDir(path).checkpoints.exists()
    assert list(batch.ledger.outcomes) == [job.key]


def test_a_curve_that_diverges_makes_way_for_the_next(tiny):
    """Of two trials the better one is measured first, and the other only if it fails."""
    ledger, measured = Ledger(), []
    decide = partial(Decisions(tiny, ledger).curve, "other", "fedavg")
    while todo := missing([decide]):
        for job in todo:
            final = "data.validation" not in job.changes
            failure = "round 2: NaN" if final and not measured else None
            measured += [job.settings["eta"]] if final else []
            ledger.add(Outcome(job, outcome([job.settings["eta"]]).columns, failure=failure))
    assert len(measured) == 2
    assert measured[0] > measured[1]  # the better one by its trial
    assert decide().job.settings["eta"] == measured[1]


def test_settings_are_chosen_at_the_first_level(tiny):
    curves = tiny.curves.model_copy(update={"data": {"mnist": ["other", "tiny-low-b10"]}})
    decisions = Decisions(tiny.model_copy(update={"curves": curves}), Ledger())
    wanted = []
    while todo := missing([partial(decisions.curve, "tiny-low-b10", "fedavg")]):
        for job in todo:
            wanted.append((job.experiment, "data.validation" in job.changes))
            decisions.ledger.add(Outcome(job, outcome([0.5]).columns))
    assert set(wanted) == {("other", True), ("tiny-low-b10", False)}


def test_the_end_of_a_run():
    run = outcome([0.1, None, 0.5, 0.7])
    assert run.end("test_accuracy", 2) == pytest.approx(0.6)
    assert run.series("test_accuracy") == [(1, 0.1), (3, 0.5), (4, 0.7)]
    assert first_round_at(run, "test_accuracy", 2, 0.3) == 3
    assert first_round_at(run, "test_accuracy", 2, 0.61) is None
    assert math.isnan(run.end("train_loss", 1))
    assert score(outcome([0.9], failure="round 3: NaN"), 1) == -math.inf


def test_where_a_curve_is_the_lowest_and_what_is_shown_of_perplexities():
    def run(*losses):
        plain = outcome([0.5] * len(losses))
        return replace(plain, columns=dict(plain.columns) | {"train_loss": list(losses)})

    other = run(5.0, 4.0, 3.0, 3.0)
    led = {"FAFED": run(9.0, 3.5, 2.5, 3.0), "FedAvg": other}
    assert verdicts.lowest_words(led) == "lowest in 2 of 4 rounds, from 2 to 3"
    assert verdicts.lowest_words({"FAFED": run(9.0, 4.0, 2.0, 3.5), "FedAvg": other}) == (
        "lowest in 1 of 4 rounds, round 3"
    )
    assert verdicts.lowest_words({"FAFED": other, "FedAvg": other}) == "lowest in no round"
    assert figures._later(led["FAFED"]) == pytest.approx(math.exp(3.0))
    assert perplexity(1e9) < math.inf


def test_subsets_are_the_same_every_time_and_cover_the_step_sizes():
    grid = points(GRIDS["fedadam"])
    some = subset(grid, 20)
    assert len(some) == 20
    assert some == subset(grid, 20)
    assert len({(point["eta"], point["eta_g"]) for point in some}) == 15
    assert subset(grid, 60) == grid


def test_the_ledger_on_disk(tmp_path):
    run = outcome([0.5, 0.6], {"eta": {"schedule": "power", "kappa": 1.0}}, seconds=3.5)
    (tmp_path / "gone.jsonl").touch()  # of an experiment that no decision refers to any more
    Ledger([run]).write(tmp_path)
    assert not (tmp_path / "gone.jsonl").exists()
    again = Ledger.read(tmp_path)
    assert list(again.outcomes.values()) == [run]
    with pytest.raises(Missing, match="1 runs are missing"):
        again.need([run.job, outcome([0.5]).job])
    (tmp_path / "tiny-low.jsonl").write_text('{"experiment": "x"}\n', "utf-8")
    with pytest.raises(FafedError, match="line 1 is not a record of a run"):
        Ledger.read(tmp_path)


def test_the_folder_is_checked(tmp_path, tiny):
    with pytest.raises(ConfigError, match=r"protocol\.toml cannot be read"):
        Protocol.read(tmp_path)
    (tmp_path / "protocol.toml").write_text("methods = 3", "utf-8")
    with pytest.raises(ConfigError, match="methods"):
        Protocol.read(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no nothing\.toml"):
        tiny.experiment("nothing")


def test_a_run_that_failed_in_its_first_round_comes_last(tiny, tmp_path):
    job = Job("tiny-low", "fedavg", {"eta": 3e38}, 0, 4)
    place = RunDir.for_experiment(job.build(tiny), tmp_path)
    with pytest.raises(Diverged):
        execute(job.build(tiny), place)
    failed = compact_record(job, place)
    assert score(failed, 3) == -math.inf
    assert first_round_at(failed, "test_accuracy", 1, 0.5) is None
