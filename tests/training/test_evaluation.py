"""Losses and metrics of the server's model, whoever computes them."""

from __future__ import annotations

import copy
import math
import statistics
import threading
import time
from functools import partial

import pytest
import torch
from modules import batch, model
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

import fafed
from fafed.core import randomness
from fafed.core.batch import Batch
from fafed.data.client_test import without_client_test
from fafed.data.sources.base import ClientBatches
from fafed.data.sources.examples import examples_of
from fafed.data.sources.streams import passage
from fafed.models import LSTMLanguageModel, token_cross_entropy
from fafed.objectives import metrics
from fafed.objectives.metrics import accuracy
from fafed.objectives.module import Model
from fafed.training.evaluation import chunks, evaluator

WORKERS = [1, 2, 5]


def convolutions():
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    return norm.double(), (torch.randn(37, 1, 6, 6).double(), torch.randint(0, 3, (37,)))


@pytest.mark.parametrize("workers", WORKERS)
def test_means_over_the_examples_not_over_the_batches(workers):
    module, data = convolutions()
    objective = model(module, Batch(data, torch.tensor(0), torch.tensor(True)))
    buffers = objective.start().buffers
    parts = {"test": lambda: chunks(data, 10), "train": lambda: chunks(data, 37)}
    found = evaluator(objective, parts, {"accuracy": accuracy}, workers=workers)(
        objective.x0, buffers
    )
    with torch.no_grad():
        outputs = objective.predict(objective.x0, buffers)(data[0])
    expected = {"loss": F.cross_entropy(outputs, data[1]), "accuracy": accuracy(outputs, data[1])}
    for part in parts:
        assert found[part] == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-12)
    assert all(m.training for m in objective.module.modules())


def test_no_digit_depends_on_the_workers():
    module, data = convolutions()
    objective = model(module.float(), Batch((data[0].float(), data[1]), *batch()[1:]))
    parts = {"test": lambda: chunks(data, 4)}
    found = [
        evaluator(objective, parts, {}, workers=workers)(objective.x0, objective.start().buffers)
        for workers in WORKERS
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_text_is_read_from_its_beginning_to_its_end(workers, fused):
    torch.manual_seed(0)
    module = LSTMLanguageModel(vocabulary=19, embedding=5, hidden=4).double()
    own = (
        token_cross_entropy
        if fused
        else lambda logits, targets: token_cross_entropy(logits, targets)
    )
    objective = Model(module, own)
    assert objective.fused == fused
    text = torch.randint(0, 19, (203,))
    objective.probe(next(iter(passage(text, columns=3, bptt=7))))
    parts = {
        "test": lambda: passage(text, columns=3, bptt=7),
        "validation": lambda: passage(text[:90], columns=3, bptt=7),
    }
    found = evaluator(objective, parts, {}, workers=workers)(objective.x0, ())
    module.eval()
    for part, tokens in {"test": text, "validation": text[:90]}.items():
        grid = tokens[: len(tokens) // 3 * 3].reshape(3, -1)
        with torch.no_grad():
            logits, _ = module(grid[:, :-1], module.initial_state(3))
        assert found[part]["loss"] == pytest.approx(float(own(logits, grid[:, 1:])), rel=1e-12)


def test_nothing_to_measure_on():
    assert evaluator(model(nn.Linear(6, 3).double(), batch()), {}, {}) is None


def test_metrics_that_keep_a_state_are_called_one_at_a_time():
    """As those of well-known packages do, which forget their sums and put them back in a call."""
    inside = threading.Lock()

    def metric(outputs, targets):
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        inside.release()
        return 1.0

    objective = model(nn.Linear(6, 3).double(), batch())
    parts = {"test": lambda: chunks(batch(n=40).data, 2)}
    found = evaluator(objective, parts, {"own": metric}, workers=4)(objective.x0, ())
    assert found["test"]["own"] == 1.0


class Noisy(nn.Module):
    """Draws numbers when it is measured, too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x) + torch.randn(len(x), 3, dtype=x.dtype)


def test_a_model_that_draws_numbers_measures_the_same_each_time():
    objective = model(Noisy().double(), batch())
    before = torch.get_rng_state()
    parts = {"test": lambda: chunks(batch(n=40).data, 3)}
    found = [
        evaluator(objective, parts, {}, workers=workers)(objective.x0, ()) for workers in WORKERS
    ]
    assert found[0] == found[1] == found[2]
    assert torch.equal(torch.get_rng_state(), before)


# Metrics of the whole set.


def spread(outputs, targets):
    """Not a mean of the batches' values."""
    return outputs[:, 0].max() - outputs[:, 0].min()


@pytest.mark.parametrize("size", [3, 7, 40])
@pytest.mark.parametrize("workers", [1, 3])
def test_metrics_see_the_whole_set(size, workers):
    """A function of one's own, objects of torchmetrics, and a mean."""
    torch.manual_seed(0)
    data = batch(n=40).data
    objective = model(nn.Linear(6, 3).double(), batch())
    own = {
        "spread": spread,
        "f1": MulticlassF1Score(3, average="macro"),
        "auroc": MulticlassAUROC(3),
        "ours": metrics.f1,
        "perplexity": metrics.perplexity,
    }
    parts = {"test": lambda: chunks(data, size), "validation": lambda: chunks(data, 40)}
    found = evaluator(objective, parts, own, workers=workers)(objective.x0, ())
    with torch.no_grad():
        outputs = objective.module(data[0])
    expected = {
        "loss": F.cross_entropy(outputs, data[1]),
        "spread": spread(outputs, data[1]),
        "f1": MulticlassF1Score(3, average="macro")(outputs, data[1]),
        "auroc": MulticlassAUROC(3)(outputs, data[1]),
        "ours": metrics.f1(outputs, data[1]),
        "perplexity": F.cross_entropy(outputs, data[1]).exp(),
    }
    for part in parts:
        assert list(found[part]) == list(expected)
        assert found[part] == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-6)
    again = evaluator(objective, parts, own, workers=2)(objective.x0, ())
    assert again == found


def test_batches_are_read_when_they_are_needed():
    objective = model(nn.Linear(6, 3).double(), batch())
    most, open_now = 0, []

    def part():
        nonlocal most
        for one in chunks(batch(n=40).data, 4):
            open_now.append(1)
            most = max(most, len(open_now))
            yield one

    @metrics.mean
    def closing(outputs, targets):
        open_now.pop()
        return 0.0

    evaluator(objective, {"test": part}, {"own": closing}, workers=1)(objective.x0, ())
    assert most == 1


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda o, y: o[:, 0], r"test: metric 'own' must return one number, got a tensor of shape"),
        (lambda o, y: None, "must return one number, got None"),
        (lambda o, y: "good", "must return one number, got 'good'"),
        (MulticlassF1Score(3, average="none"), r"one number, got a tensor of shape \(3,\)"),
        (lambda o, y: o.no_such_thing, "metric 'own' failed: AttributeError"),
        (lambda o: 0.0, "metric 'own' failed: TypeError"),
        (0.5, "metric 'own' is a float: give a function"),
    ],
)
@pytest.mark.parametrize("part", ["test", "validation", "client_test"])
def test_wrong_metrics_are_refused_before_the_first_round(metric, words, part):
    shards = [batch(n=12, seed=i).data for i in range(3)]
    data = shards if part == "client_test" else shards[0]
    with pytest.raises(fafed.ConfigError, match=words.replace("test: ", f"{part}.*: ")):
        fafed.train(
            nn.Linear(6, 3).double(),
            shards,
            Never(),
            rounds=1,
            batch_size=4,
            metrics={"own": metric},
            **{part: data},
        )


class Never(fafed.FedAvg):
    """An algorithm whose clients must not be asked."""

    def local(self, grad, down, local, batches):
        raise AssertionError("a round has begun")


def test_a_metric_that_needs_more_than_a_few_examples_is_not_refused():
    def needs_all(outputs, targets):
        assert len(targets) == 30
        return math.nan

    data = batch(n=30).data
    found = fafed.train(
        nn.Linear(6, 3).double(),
        [data],
        fafed.FedAvg(),
        rounds=1,
        batch_size=4,
        test=data,
        metrics={"own": needs_all},
        eval_batch_size=7,
    )
    assert math.isnan(found.history[-1].test["own"])


def test_accuracy_of_a_regression_is_refused():
    data = batch(n=30).data[0], torch.zeros(30, 3, dtype=torch.float64)
    with pytest.raises(fafed.ConfigError, match="test: accuracy needs class numbers"):
        fafed.train(
            nn.Linear(6, 3).double(),
            [data],
            fafed.FedAvg(),
            rounds=1,
            batch_size=4,
            loss=F.mse_loss,
            test=data,
            metrics={"accuracy": accuracy},
        )


# Each client's own test data.


def test_every_client_is_measured_on_its_own_data():
    shards = [batch(n=20 + i, seed=i).data for i in range(12)]
    tests = [batch(n=5 + i, seed=50 + i).data for i in range(12)]
    result = fafed.train(
        nn.Linear(6, 3).double(),
        shards,
        fafed.FedAvg(0.1),
        rounds=2,
        eval_every=2,
        batch_size=4,
        client_test=tests,
        metrics={"accuracy": accuracy},
    )
    first, last = result.history
    assert (first.clients_test, first.client_values) == ({}, {})
    with torch.no_grad():
        own = [float(accuracy(result.model(x), y)) for x, y in tests]
        losses = [float(F.cross_entropy(result.model(x), y)) for x, y in tests]
    sizes = [5 + i for i in range(12)]
    values = last.client_values["clients_test"]
    assert values["accuracy"] == own
    assert values["loss"] == pytest.approx(losses, rel=1e-12)
    found = last.clients_test["accuracy"]
    assert found["mean"] == pytest.approx(sum(own) / 12)
    assert found["weighted"] == pytest.approx(
        sum(a * n for a, n in zip(own, sizes, strict=True)) / sum(sizes)
    )
    assert found["std"] == pytest.approx(statistics.pstdev(own))
    assert (found["worst"], found["worst_decile"], found["clients"]) == (min(own), min(own), 12)
    assert last.clients_test["loss"]["worst"] == pytest.approx(max(losses))


def test_a_share_is_held_out_from_every_client_and_not_trained_on():
    shards = [batch(n=n, seed=n).data for n in (10, 25, 2)]
    source = examples_of(shards, batch_size=4)
    left, held = without_client_test(source, 0.2, seed=3)
    assert [len(y) for _, y in held] == [2, 5, 1]
    assert left.examples == (8, 20, 1)
    for client, (x, _) in enumerate(held):
        rows = torch.cat([x, left.pool[0][torch.from_numpy(left.parts[client])]])
        assert torch.equal(rows.sort(0).values, shards[client][0].sort(0).values)
    assert torch.equal(without_client_test(source, 0.2, seed=3)[1][1][0], held[1][0])
    assert not torch.equal(without_client_test(source, 0.2, seed=4)[1][1][0], held[1][0])
    assert torch.equal(source.pool[0], torch.cat([x for x, _ in shards]))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (1.5, "client_test must be a share between 0 and 1, or a list .* 3 clients, got 1.5"),
        ([batch().data] * 2, "3 clients, got 2 of them"),
        ([batch().data, batch().data, batch(d=5).data], r"client_test of client 2: an example is"),
        ([batch().data, batch(classes=9, n=50).data, batch().data], "client_test of client 1 has"),
    ],
)
def test_wrong_test_data_of_clients_is_refused(wanted, words):
    shards = [batch(n=10, seed=i).data for i in range(3)]
    with pytest.raises(fafed.FafedError, match=words):
        fafed.train(
            nn.Linear(6, 3).double(), shards, Never(), rounds=1, batch_size=4, client_test=wanted
        )
    with pytest.raises(fafed.DataError, match="client 0 has 1 example: client_test"):
        without_client_test(examples_of([batch(n=1).data]), 0.5, 0)


@pytest.mark.parametrize(("workers", "seed"), [(1, 5), (3, 0)])
def test_clients_that_adapt_the_model_to_their_own_data(workers, seed):
    """Measured as if each had made the steps itself; nothing in the run changes."""
    shards = [batch(n=20, seed=i).data for i in range(4)]
    common = {"rounds": 2, "batch_size": 4, "local_steps": 3, "client_test": 0.25, "seed": seed}
    plain = fafed.train(nn_linear(), shards, fafed.FedAvg(0.05), **common)
    found = fafed.train(
        nn_linear(), shards, fafed.FedAvg(0.05), **common, personalise=2, workers=workers
    )
    assert torch.equal(found.x, plain.x)
    last = found.history[-1]
    assert last.clients_test == plain.history[-1].clients_test
    assert (plain.history[-1].personalised, set(last.personalised)) == ({}, {"loss"})
    source, tests = without_client_test(examples_of(shards, batch_size=4, seed=seed), 0.25, seed)
    other = source.with_seed(int(randomness.keys("personalise", seed)) >> 1)
    for client, (x, y) in enumerate(tests):
        module = copy.deepcopy(found.model)
        draws = other.draw(("round",), client, 6, 2)
        for one in ClientBatches(other.gather, draws):
            loss = F.cross_entropy(module(one.data[0]), one.data[1])
            grads = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for p, g in zip(module.parameters(), grads, strict=True):
                    p -= 0.05 * g
        with torch.no_grad():
            expected = float(F.cross_entropy(module(x), y))
        values = last.client_values["personalised"]["loss"]
        assert values[client] == pytest.approx(expected, rel=1e-10)
    more = fafed.train(
        nn_linear(), shards, fafed.FedAvg(0.05), **common, personalise=2, personalise_eta=0.5
    )
    assert more.history[-1].personalised != last.personalised


def nn_linear():
    torch.manual_seed(0)
    return nn.Linear(6, 3).double()


def test_personalise_needs_test_data_and_a_step_size():
    call = partial(fafed.train, nn_linear(), [batch(n=20).data], rounds=1, batch_size=4)
    with pytest.raises(fafed.ConfigError, match="personalise=3 needs test data of each client"):
        call(fafed.FedAvg(), personalise=3)
    with pytest.raises(fafed.ConfigError, match="personalise must be a number of local steps"):
        call(fafed.FedAvg(), personalise=0.5, client_test=0.2)
    with pytest.raises(fafed.ConfigError, match="needs a step size above 0, got None"):
        call(fafed.STORM(), personalise=3, client_test=0.2)
