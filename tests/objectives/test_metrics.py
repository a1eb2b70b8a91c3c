"""The metrics that come with fafed, against torchmetrics, and what they refuse."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
import torchmetrics.classification as reference
from torch.nn import functional as F

import fafed
from fafed.objectives import metrics


def logits(n=60, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, classes, generator=g), torch.randint(0, classes, (n,), generator=g)


def test_classes_as_torchmetrics_counts_them():
    outputs, targets = logits(classes=7)
    targets[targets == 6] = 0
    outputs[:, 6] = -9.0  # a class that is neither there nor predicted
    for name, expected in {
        "accuracy": reference.MulticlassAccuracy(7, average="micro"),
        "top5": reference.MulticlassAccuracy(7, average="micro", top_k=5),
        "f1": reference.MulticlassF1Score(7, average="macro"),
    }.items():
        found = float(metrics.METRICS[name](outputs, targets))
        assert found == pytest.approx(float(expected(outputs, targets)), rel=1e-6), name


def test_two_classes_as_torchmetrics_counts_them():
    outputs, targets = logits(classes=2)
    score = (outputs[:, 1] - outputs[:, 0]).round(decimals=1)  # with equal scores
    area, f1 = reference.BinaryAUROC(), reference.BinaryF1Score()
    assert metrics.auc(score, targets) == pytest.approx(float(area(score, targets)), rel=1e-6)
    expected = pytest.approx(float(f1(score, targets)), rel=1e-6)
    assert metrics.f1(score, targets) == metrics.f1_binary(score[:, None], targets) == expected
    twice = torch.stack([torch.zeros_like(score), score], 1)
    assert metrics.auc(twice, targets) == metrics.auc(score, targets.float())
    assert metrics.f1_binary(twice, targets) == expected
    assert math.isnan(metrics.auc(score, torch.ones_like(targets)))


def test_perplexity_and_errors():
    outputs, targets = logits()
    found = metrics.perplexity(outputs, targets)
    assert found == pytest.approx(math.exp(float(F.cross_entropy(outputs, targets))), rel=1e-6)
    assert metrics.perplexity(1e4 * outputs, targets) == math.inf
    a, b = torch.randn(9, 2), torch.randn(9, 2)
    assert float(metrics.mse(a, b)) == pytest.approx(float(F.mse_loss(a, b)))
    assert float(metrics.mae(a[:, :1], b[:, 0])) == pytest.approx(
        float(F.l1_loss(a[:, 0], b[:, 0]))
    )


def test_labels_at_every_place_of_an_example():
    outputs, targets = torch.randn(5, 4, 6), torch.randint(0, 4, (5, 6))
    right = (outputs.argmax(1) == targets).double().mean()
    assert float(metrics.accuracy(outputs, targets)) == float(right)
    assert float(metrics.accuracy(outputs.movedim(1, -1), targets)) == float(right)
    flat = outputs.movedim(1, -1).flatten(0, 1), targets.flatten()
    assert metrics.f1(outputs, targets) == metrics.f1(*flat)
    assert metrics.perplexity(outputs, targets) == pytest.approx(metrics.perplexity(*flat))


@pytest.mark.parametrize("name", ["accuracy", "top5", "f1", "f1_binary", "auc", "perplexity"])
def test_ignored_labels_are_left_out(name):
    outputs, targets = logits(classes=2)
    targets[::3] = -100
    metric, kept = metrics.METRICS[name], targets != -100
    found = float(metric(outputs, targets))
    assert found == pytest.approx(float(metric(outputs[kept], targets[kept])), rel=1e-6)
    bound = metrics.bound(metric, 0)
    assert bound.keywords == {"ignore_index": 0}


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "words"),
    [
        (
            "accuracy",
            (5, 3),
            torch.zeros(5),
            "accuracy needs class numbers .* torch.float32: .*mse",
        ),
        ("accuracy", (5, 3), torch.zeros(5, 3).long(), r"outputs \(5, 3\) with targets \(5, 3\)"),
        ("accuracy", (5,), torch.zeros(5).long(), r"outputs \(5,\) with targets \(5,\)"),
        ("accuracy", (5, 1), torch.zeros(5).long(), r"an output for each class, got .*\(5, 1\)"),
        ("f1", (5, 3), torch.zeros(4).long(), "f1 cannot compare"),
        ("perplexity", (5, 3), torch.zeros(5), "perplexity needs class numbers"),
        ("auc", (5, 3), torch.zeros(5).long(), "auc is for two classes"),
        ("auc", (5,), torch.full((5,), 2), "auc needs targets 0 and 1, got 2"),
        ("mse", (5, 3), torch.zeros(5), r"mse cannot compare outputs \(5, 3\)"),
    ],
)
def test_what_makes_no_sense_is_refused(name, outputs, targets, words):
    with pytest.raises(fafed.ConfigError, match=words):
        metrics.METRICS[name](torch.zeros(outputs), targets)
    with pytest.raises(fafed.ConfigError, match="a tensor of outputs with a tensor of targets"):
        metrics.METRICS[name]((torch.zeros(5, 3),), targets)


@pytest.mark.parametrize("value", [0.5, 1, True, math.nan, np.float32(0.5), torch.tensor([[0.5]])])
def test_one_number(value):
    found = metrics.one_number("own", value)
    assert isinstance(found, float)
    assert found == float(value) or math.isnan(found)


@pytest.mark.parametrize("value", [None, "0.5", torch.zeros(2), np.zeros(2), {"a": 1.0}, 1j, [0.5]])
def test_anything_else_is_not_one_number(value):
    with pytest.raises(fafed.ConfigError, match="metric 'own' must return one number, got"):
        metrics.one_number("own", value)


def test_a_mean_with_other_options_is_still_a_mean():
    of_batch, finish = metrics.as_mean(partial(metrics.perplexity, ignore_index=3))
    assert of_batch.keywords == {"ignore_index": 3}
    assert finish(0.0) == 1.0
    assert metrics.as_mean(lambda outputs, targets: 0.0) is None
    assert metrics.as_mean(metrics.mean(lambda outputs, targets: 0.0)) is not None
