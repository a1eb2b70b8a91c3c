"""Labels that a loss ignores: in means over batches, and in batches that have no others."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.core.batch import Batch
from fafed.data.sources.examples import Examples
from fafed.models import LSTMLanguageModel, token_cross_entropy
from fafed.objectives.labels import averaged
from fafed.objectives.metrics import accuracy
from fafed.objectives.module import Model
from fafed.training.build import build
from fafed.training.evaluation import chunks, evaluator

WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)


def own(outputs, targets, ignore_index=2):
    kept = targets != ignore_index
    each = F.cross_entropy(outputs, targets.where(kept, 0), reduction="none")
    return (each * kept).sum() / kept.sum()


LOSSES = {
    "torch's": (F.cross_entropy, -100),
    "partial": (partial(F.cross_entropy, ignore_index=1, label_smoothing=0.1), 1),
    "module": (nn.CrossEntropyLoss(ignore_index=0), 0),
    "partial module": (partial(nn.CrossEntropyLoss(ignore_index=3)), 3),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=0), 0),
    "partial class weights": (partial(F.cross_entropy, weight=WEIGHTS), -100),
    "own": (own, 2),
    "partial own": (partial(own, ignore_index=3), 3),
}
some = pytest.mark.parametrize(("loss", "ignored"), LOSSES.values(), ids=LOSSES)


@some
def test_the_ignored_label_is_known(loss, ignored):
    assert averaged(loss).ignored == ignored


@pytest.mark.parametrize("loss", [lambda o, y: F.cross_entropy(o, y), F.mse_loss, nn.MSELoss()])
def test_every_example_counts_where_no_label_is_known_to_be_ignored(loss):
    assert averaged(loss).ignored is None
    assert averaged(loss).weight(torch.tensor([0, -100])) is None


def data(ignored, n=40, after=()):
    """The first ten examples have no label but the ignored, the others some."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, *after, dtype=torch.float64, generator=g)
    y = torch.randint(0, 4, (n, *after), generator=g)
    y[:10] = ignored
    y[10:][torch.rand(y[10:].shape, generator=g) < 0.4] = ignored
    return x, y


def network(*layers):
    """The layers, with weights that do not depend on what ran before."""
    torch.manual_seed(0)
    for layer in layers:
        layer.reset_parameters()
    return nn.Sequential(*layers).double()


def measured(objective, pool, **metrics):
    parts = {"test": lambda: chunks(pool, 10)}
    return evaluator(objective, parts, metrics)(objective.x0, ())["test"]


@some
def test_means_are_over_the_labels_that_count(loss, ignored):
    pool = data(ignored)
    objective = Model(network(nn.Linear(6, 4)), loss)
    objective.probe(Batch(pool, torch.tensor(0), torch.tensor(True)))
    found = measured(objective, pool, accuracy=accuracy, rows=lambda o, y: len(y) / 40)
    with torch.no_grad():
        outputs = objective.module(pool[0])
    kept = pool[1] != ignored
    right = outputs.argmax(1)[kept] == pool[1][kept]
    assert found["loss"] == pytest.approx(float(loss(outputs, pool[1])), rel=1e-12)
    assert found["accuracy"] == pytest.approx(float(right.double().mean()), rel=1e-12)
    assert found["rows"] == 1.0  # a metric of one's own sees the whole set


def test_means_over_labels_at_every_place_of_an_example():
    pool = data(-100, after=(5,))
    objective = Model(network(nn.Conv1d(6, 4, 1)), F.cross_entropy)
    found = measured(objective, pool, accuracy=accuracy)
    with torch.no_grad():
        outputs = objective.module(pool[0])
    kept = pool[1] != -100
    assert found["loss"] == pytest.approx(float(F.cross_entropy(outputs, pool[1])), rel=1e-12)
    right = (outputs.argmax(1) == pool[1])[kept].double().mean()
    assert found["accuracy"] == pytest.approx(float(right), rel=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_means_over_the_tokens_of_a_recurrent_model(fused):
    torch.manual_seed(0)
    module = LSTMLanguageModel(vocabulary=7, embedding=3, hidden=4, dropout=0.0).double()
    loss = token_cross_entropy if fused else partial(token_cross_entropy, ignore_index=-100)
    objective = Model(module, loss)
    tokens, targets = torch.randint(0, 7, (2, 2, 12))
    targets[:, :4] = -100
    targets[0, 5:11] = -100

    def parts():
        key, fresh = torch.tensor(0), torch.tensor(False)
        for i in range(0, 12, 4):
            yield Batch((tokens[:, i : i + 4], targets[:, i : i + 4]), key, fresh | (i == 0))

    found = evaluator(objective, {"test": parts}, {})(objective.x0, ())
    with torch.no_grad():
        logits, _ = module.eval()(tokens, module.initial_state(2))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert found["test"]["loss"] == pytest.approx(float(expected), rel=1e-12)


def test_accuracy_leaves_ignored_labels_out():
    outputs, targets = torch.eye(4), torch.tensor([0, -100, 1, 3])
    assert float(accuracy(outputs, targets)) == pytest.approx(2 / 3)
    assert float(accuracy(outputs, targets, ignore_index=3)) == pytest.approx(1 / 3)


# Batches without any label that counts: no gradient but weight decay's, and no loss.


@some
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_batch_of_ignored_labels_has_weight_decays_gradient(loss, ignored, engine):
    pool = data(ignored)
    objective = Model(network(nn.Linear(6, 4)), loss, weight_decay=0.5)
    x = objective.x0

    def gradient(x, y):
        example = Batch((pool[0][:10], y), torch.tensor(0), torch.tensor(True))
        way = objective.evaluate_functional if engine == "vmap" else objective.evaluate
        return way(x, example, objective.start()).gradient

    xs, labels = torch.stack([x, x]), torch.stack([pool[1][:10], pool[1][10:20]])
    if engine == "vmap":
        found = torch.func.vmap(gradient)(xs, labels)
    else:
        found = torch.stack([gradient(x, y) for y in labels])
    assert torch.equal(found[0], 0.5 * x)
    assert not torch.allclose(found[1], 0.5 * x)


def run(algorithm, labels, engine, module=None, **options):
    """Clients with one example for each step."""
    labels = torch.as_tensor(labels)
    clients, steps = labels.shape[:2]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients * steps, 6, dtype=torch.float64, generator=g)
    parts = np.split(np.arange(clients * steps), clients)
    source = Examples((x, labels.flatten()), parts, batch_size=1, anchor_size="full")
    objective = Model(module or network(nn.Linear(6, 4)), F.cross_entropy)
    made = build(algorithm, objective, source, rounds=4, local_steps=1, engine=engine, **options)
    return made, source, objective


ALL_ENGINES = pytest.mark.parametrize("engine", ["loop", "vmap", "native"])
LABELS = [[-100, 1, -100, 2], [3, -100, -100, 0], [-100, -100, 1, -100]]


@ALL_ENGINES
@pytest.mark.parametrize("algorithm", [fafed.FedAvg(0.1), fafed.FAFED(0.1), fafed.Adam(0.1)])
def test_losses_that_are_not_there_are_left_out_of_the_mean(algorithm, engine):
    labels = LABELS[:1] if algorithm.population else LABELS
    weights = [1.0, 2.0, 5.0][: len(labels)]
    made, source, objective = run(algorithm, labels, engine, weights=weights)
    assert made.engine.name == engine
    for step in range(4):
        x = made.state.shared.x
        record = made.round()
        total = weight = 0.0
        for client, w in enumerate(weights):
            rows = source.draw(("round",), client, step, 1).round.rows[0]
            example = Batch(source.gather(rows), torch.tensor(0), torch.tensor(True))
            if int(example.data[1]) != -100:
                found = objective.evaluate(x, example, objective.start())
                total, weight = total + w * float(found.loss), weight + w
        if not weight:
            assert record.train_loss is None
        elif step or not made.algorithm.opening():  # an opening moves x before step 1
            assert record.train_loss == pytest.approx(total / weight, rel=1e-9)
    assert torch.isfinite(made.state.shared.x).all()


@pytest.mark.parametrize("name", fafed.ALGORITHMS)
def test_every_algorithm_goes_on_after_a_batch_of_ignored_labels(name):
    algorithm = fafed.ALGORITHMS[name]()
    labels = LABELS[:1] if algorithm.population else LABELS[:2]
    xs = []
    for engine in ("loop", "vmap", "native"):
        made, *_ = run(algorithm, labels, engine)
        list(made)
        xs.append(made.state.shared.x)
    for x in xs[1:]:
        torch.testing.assert_close(x, xs[0], rtol=1e-9, atol=1e-10)


def test_a_client_or_a_part_without_any_label_is_refused():
    x, y = data(-100)
    settings = {"rounds": 1, "local_steps": 1, "batch_size": 2}
    with pytest.raises(fafed.DataError, match="client 1 has no label but -100"):
        fafed.train(
            network(nn.Linear(6, 4)),
            [(x[10:], y[10:]), (x[:10], y[:10])],
            fafed.FedAvg(),
            **settings,
        )
    with pytest.raises(fafed.DataError, match="test has no label but 2"):
        fafed.train(
            network(nn.Linear(6, 4)),
            [(x, y.clamp(min=0))],
            fafed.FedAvg(),
            loss=nn.CrossEntropyLoss(ignore_index=2),
            test=(x[:10], torch.full((10,), 2)),
            **settings,
        )
