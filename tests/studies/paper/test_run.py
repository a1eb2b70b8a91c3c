"""The driver and the decisions on a tiny job: what is run and chosen; nothing is run twice."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fafed.errors import ConfigError
from fafed.experiments.assemble import prepare
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from studies.paper import decay, document, driver, figures, text
from studies.paper.decisions import (
    Decisions,
    multiples,
    score,
)
from studies.paper.findings import Findings
from studies.paper.ledger import Job, Outcome
from studies.paper.protocol import Protocol

REPOSITORY = Path(__file__).parents[3]
STUDY = REPOSITORY / "studies" / "paper"


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

    decisions.ledger.add(Outcome(Job("tiny-low", "fedavg", {"eta": 9.0}, 0, 1), {}))  # an old one
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
        twice = "eta_g" in tried[0].settings and method in ("fedadam", "fedams")
        assert len({job.key for job in tried}) == (8 if twice else 4)
        falling = [job for job in tried if isinstance(job.settings.get("eta_g"), dict)]
        assert len(falling) == (4 if twice else 0)
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
        "eta": pytest.approx(0.5),
        "alpha": race.winner.job.settings["alpha"],
    }
    page = document.section(findings, "language")
    for method in protocol.text.methods:
        assert f"{findings.loss(findings.texts(method)).mean:.3f}" in page
    checked = [text.checked(decisions, method).winner for method in protocol.text.methods]
    assert {o.job.experiment for o in checked} == {"text-wide"}
    ends = sorted(run.end("validation_loss", 1) for run in checked)
    assert re.search(rf"more\s+dimensions:\s+\w+\s+{ends[0]:.3f},\s+\w+\s+{ends[1]:.3f}\.", page)
    assert "of 1 pairs of methods" in " ".join(page.split())
    cases = findings.first_rounds()
    assert [case.about for case, _ in cases] == ["as it is", "no clipping", "STEM"]
    assert [run.job.changes.get("clip") for _, run in cases] == [None, 1e6, None]
    shares = [y for _, y in cases[0][1].series("adaptive_fraction")]
    assert f"{100 * shares[0]:.2g} %, {100 * shares[-1]:.2g} % |" in page
    ends = [run.end("train_loss", 1) for _, run in (cases[0], cases[2])]
    assert f"{ends[0]:.2f} against {ends[1]:.2f} (alpha = 0.5)" in page
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

    known = len(driver.all_records(root, results).outcomes)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "run_all", killed)
        with pytest.raises(KeyboardInterrupt):
            driver.run(tiny, root, results, say=lambda line: None)
    assert len(driver.all_records(root, results).outcomes) == known + 1
    driver.run(tiny, root, results, only=["text", "text-large"], say=lambda line: None)
    findings = Findings(Decisions(tiny, driver.all_records(root, results)))
    runs = findings.language("text-large")
    assert list(runs) == ["FAFED", "STEM"]
    best = text.chosen(findings.decisions, "fafed").winner.job.settings
    assert runs["FAFED"].job.settings == best  # all trials have the paper's step here
    stem = {"eta": 0.05, "alpha": 0.5}  # the paper's step, not the best one
    assert runs["STEM"].job.settings == stem
    control = findings.control("text-large")
    assert control.job.settings == {"eta": pytest.approx(0.5), "alpha": best["alpha"]}
    page = document.section(findings, "language")
    for label, run in {**runs, "STEM, step eta/rho": control}.items():
        assert f"| {label} | {run.end('train_loss', tiny.tail):.3f} |" in page
    assert "Whether one of more dimensions does is not known" in page
    assert figures.write(findings, tmp_path, ["figure-1"]) == ["figure-1"]
    assert "training perplexity" in (tmp_path / "figure-1.svg").read_text("utf-8")


def test_a_stage_whose_data_are_not_here_is_left_out(tmp_path, ran, monkeypatch):
    monkeypatch.setenv("FAFED_DATA", str(tmp_path / "empty"))
    protocol = Protocol.read(STUDY / "configs")
    said = []
    driver.run(protocol, tmp_path / "runs", tmp_path, only=["mnist-low"], say=said.append)
    assert said == ["mnist-low: left out, mnist is not here: fafed data get mnist"]
    assert not ran
