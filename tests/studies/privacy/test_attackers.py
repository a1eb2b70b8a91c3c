"""The study of dishonest clients: what they send, and what the page says."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fafed import FedAvg
from fafed.data.sources.examples import examples_of
from fafed.objectives.module import Model
from fafed.training.build import build
from studies.privacy import attackers
from studies.privacy.page import PAGE


def started(clients=4):
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=g, dtype=torch.float64)
    labels = torch.arange(40) % 3
    data = [(inputs[i::clients].clone(), labels[i::clients].clone()) for i in range(clients)]
    torch.manual_seed(0)
    goal = Model(nn.Linear(6, 3).double(), F.cross_entropy)
    source = examples_of(data, batch_size=5)
    return build(FedAvg(0.5), goal, source, rounds=1, local_steps=2, engine="loop")


def moved(attack, bad=()):
    run = attackers.attacked(started(), attack, bad)
    start = run.state.shared.x
    run.round()
    return run.state.shared.x - start


def test_liars_multiply_their_own_message_and_no_other():
    whole = moved("none")
    without = moved("times a million") - whole
    assert not without.any()  # nobody lies
    plain = moved("sign turned", range(1))
    for attack, factor in attackers.ATTACKS.items():
        if factor is not None:
            own = (whole - plain) / 2  # a quarter of the first client's message
            found = moved(attack, range(1))
            torch.testing.assert_close(found, whole + (factor - 1) * own, rtol=1e-9, atol=1e-9)


def test_wrong_labels_are_those_of_the_next_class_for_liars_alone():
    run = started()
    source = run.engine.task.source
    before = source.pool[1]
    kept = before.clone()
    attackers.attacked(run, "wrong labels", [2])
    after = source.pool[1]
    assert torch.equal(before, kept)  # another run may have the same tensors
    own = torch.from_numpy(source.parts[2])
    assert torch.equal(after[own], (before[own] + 1) % 3)
    assert int((after != before).sum()) == len(own)


def test_the_page_is_the_one_that_the_results_give():
    page = PAGE.read_text("utf-8")
    assert page == attackers.render(attackers.read(), page)


def test_what_was_not_measured_or_diverged_says_so():
    empty = "<!-- attackers -->\n<!-- /attackers -->\n"
    assert "Not measured yet" in attackers.render({}, empty)
    page = attackers.render({"none, no bound, 0": {"1": 0.75, "2": None}}, empty)
    assert "| none | 0 | diverges | not measured | not measured |" in page
