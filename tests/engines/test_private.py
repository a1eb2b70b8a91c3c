"""Runs that are private for every example, in simulation. The oracle of clipping is opacus."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from problem import Problem, close
from torch import nn
from torch.nn import functional as F

import fafed
from fafed import FAFED, STEM, ConfigError, FedAvg, Mime, Privacy
from fafed.data.sources.examples import examples_of
from fafed.engines.private import Private
from fafed.experiments import checkpoint
from fafed.kernels import build as kernels
from fafed.objectives.function import Function
from fafed.objectives.layerwise import Layerwise
from fafed.objectives.module import Model
from fafed.training.build import build

DELTA = 1e-5


def has_compiler():
    return kernels.available(torch.float64)


def private(**changes):
    return Privacy(**{"level": "example", "noise": 1.0, "clip": 0.5, "delta": DELTA} | changes)


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    return torch.randn(n, 6, generator=g, dtype=torch.float64) + y[:, None], y


def net(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *more, nn.Linear(8, 3)).double()


def started(module, algorithm=None, *, rounds=3, steps=2, sizes=(60, 50, 70), b=10, **options):
    source = examples_of([data(n, s) for s, n in enumerate(sizes)], batch_size=b, anchor_size=2 * b)
    objective = Model(module, F.cross_entropy, **options.pop("model", {}))
    settings = {"rounds": rounds, "local_steps": steps, "privacy": private()} | options
    return build(algorithm or FedAvg(0.1), objective, source, **settings)


def first_batch(run):
    source = run.engine.task.source
    (batch,) = source.batches(source.draw(("round",), 0, 0, 1))
    return batch


def test_the_clipped_sum_is_that_of_opacus():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

    module = net()
    run = started(module)
    batch, objective = first_batch(run), run.engine.objective
    inputs, targets = batch.data.data
    assert len(targets) == len(batch.data.rows) > 0
    sampled = GradSampleModule(copy.deepcopy(module))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F.cross_entropy(sampled(inputs), targets, reduction="sum").backward()
    rows = torch.cat([p.grad_sample.flatten(1) for p in sampled.parameters()], 1)
    norms = rows.norm(dim=1, keepdim=True)
    assert (norms > 0.5).any()
    due = (rows * (0.5 / norms).clamp(max=1)).sum(0)
    close(objective.clipped_sum(objective.x0, batch, objective.start()), due, atol=1e-12)


def test_noise_is_added_once_and_the_sum_divided_by_the_expected_size():
    run = started(net())
    batch, objective = first_batch(run), run.engine.objective
    x, memory = objective.x0, objective.start()
    total = objective.clipped_sum(x, batch, memory)

    def noise(objective, batch=batch):
        own = objective.clipped_sum(x, batch, memory)
        return objective.evaluate(x, batch, memory).gradient * 10 - own

    visit = objective.for_visit()
    first, again = noise(visit), noise(visit)
    assert float(first.std()) == pytest.approx(0.5, rel=0.3)  # noise * clip
    assert torch.equal(noise(objective.for_visit()), first)
    # a second gradient on the batch, another step, client or exchange: other noise
    source = run.engine.task.source
    (step,) = source.batches(source.draw(("round",), 0, 1, 1))
    (client,) = source.batches(source.draw(("round",), 1, 0, 1))
    anchor = source.batches(source.draw(("anchor",), 0, 0, 1)).anchor
    others = [again, *(noise(objective.for_visit(), b) for b in (step, client))]
    others.append(noise(objective.for_visit(), anchor))
    objective.exchange = 1
    others.append(noise(objective.for_visit()))
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 0.5
    assert total.norm() > 0


def test_weight_decay_comes_after_the_noise():
    plain, decayed = (started(net(), model={"weight_decay": w}) for w in (0.0, 0.1))
    batch = first_batch(plain)
    a, b = (
        run.engine.objective.evaluate(plain.engine.objective.x0, batch, objective_memory(run))
        for run in (plain, decayed)
    )
    close(b.gradient, a.gradient + 0.1 * plain.engine.objective.x0, atol=1e-12)


def objective_memory(run):
    return run.engine.objective.start()


class OneByOne(nn.Module):
    """Does something that vmap cannot."""

    def __init__(self):
        super().__init__()
        self.inner = net(nn.LayerNorm(8).double())

    def forward(self, x):
        return self.inner(x * (1.0 if float(x.sum()) < 1e9 else 0.0))


def test_models_that_vmap_cannot_do_are_computed_one_by_one(caplog):
    run, plain = started(OneByOne()), started(net(nn.LayerNorm(8).double()))
    assert not run.engine.objective.vectorised
    assert plain.engine.objective.vectorised
    assert plain.engine.objective.layers is None
    assert "computed one by one" in caplog.text
    list(run)
    list(plain)
    close(run.state.shared.x, plain.state.shared.x, atol=1e-10)


def convolutions():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 3, 2, padding=1, stride=1),
        nn.Tanh(),
        nn.Conv2d(3, 2, (1, 2), dilation=(1, 2), bias=False),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


def pooled():
    """A network that is written in C, for images."""
    torch.manual_seed(2)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(27, 5), nn.ReLU(), nn.Linear(5, 3)),
    ).double()


def on_images(module):
    clients = [
        (x.repeat(1, 11)[:, :64].reshape(-1, 1, 8, 8), y) for x, y in map(data, (40, 40), (0, 1))
    ]
    source = examples_of(clients, batch_size=10)
    settings = {"rounds": 1, "local_steps": 1, "privacy": private()}
    return build(FedAvg(0.1), Model(module, F.cross_entropy), source, **settings)


@pytest.mark.parametrize(
    ("module", "in_c"), [(net, True), (net, False), (pooled, True), (convolutions, False)]
)
@pytest.mark.parametrize("keep", [None, 0.9, torch.tensor(0.4, dtype=torch.float64)])
def test_fast_sums_are_those_of_a_loop_over_examples(module, in_c, keep):
    """One gradient of each example, or the difference of two at near points, which is clipped."""
    run = on_images(module()) if module is pooled else started(module())
    batch, objective = first_batch(run), run.engine.objective
    assert (objective.network is not None) == (module is not convolutions and has_compiler())
    if not in_c:
        objective.network, objective.layers = None, Layerwise(objective.inner)
    x, memory = objective.x0, objective.start()
    near = x + 1e-3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).double()
    points = [(x, 1.0)] if keep is None else [(x, 1.0), (near, -keep)]
    (inputs, labels), rows, _ = batch.data

    def gradient(point, i):
        def loss(x):
            part = batch._replace(data=(inputs[i : i + 1], labels[i : i + 1]))
            return objective.inner._loss(x, part, memory)[0]

        return torch.func.grad(loss)(point)

    for clip in (0.05, 0.5):
        due, clipped = torch.zeros_like(x), 0
        for i in range(int((rows >= 0).sum())):
            g = sum(factor * gradient(point, i) for point, factor in points)
            clipped += float(g.norm()) > clip
            due += g * min(1.0, clip / float(g.norm()))
        assert clipped or clip == 0.5
        objective.norm = clip
        close(objective.combined_sum(points, batch, memory), due, atol=1e-12)


def test_without_a_compiler_sums_are_made_layer_by_layer(monkeypatch):
    monkeypatch.setattr("fafed.kernels.build.available", lambda dtype: False)
    objective = started(net()).engine.objective
    assert objective.network is None
    assert objective.layers is not None


def test_layers_that_cannot_be_split_use_vmap():
    tied = net()
    tied.append(nn.Linear(3, 3, bias=False).double())
    tied.append(tied[-1])
    for module in (net(nn.LayerNorm(8).double()), tied):
        objective = started(module).engine.objective
        assert objective.layers is None
        assert objective.vectorised


@pytest.mark.parametrize("algorithm", [FAFED(0.05, alpha=0.2), STEM(0.1, alpha=0.2)])
def test_a_combined_query_is_fafed_with_one_answer_per_step(algorithm):
    """By hand: m = clipped difference + noise + (1 - alpha) m, and v collects the squares of m."""
    run = started(net(), algorithm, rounds=1, sizes=(60,), privacy=private(combine=True))
    source, objective = run.engine.task.source, run.engine.objective
    run.round()
    objective.exchange = 0
    visit, memory = objective.for_visit(), objective.start()
    anchor = source.batches(source.draw(("anchor",), 0, 0, 2)).anchor
    m = visit.evaluate(objective.x0, anchor, memory).gradient
    v, before = m**2, objective.x0
    x = before - algorithm.eta * m
    objective.exchange = 1  # the second exchange of the round
    visit = objective.for_visit()
    scale = 1.0 if isinstance(algorithm, STEM) else v.sqrt() + algorithm.rho
    for batch in source.batches(source.draw(("round",), 0, 0, 2)):
        points = [(x, 1.0), (before, -0.8)]
        total = objective.combined_sum(points, batch, memory)
        noise = visit.difference(x, x, 1.0, batch, memory).gradient  # the difference is zero
        m = total / 10 + noise + 0.8 * m
        v = 0.9 * v + 0.1 * m**2
        before, x = x, x - algorithm.eta * m / scale
    if isinstance(algorithm, FAFED):
        x = before - algorithm.eta * m / (v.sqrt() + algorithm.rho)
        close(run.state.shared.v, v, atol=1e-12)
    close(run.state.shared.m, m, atol=1e-12)
    close(run.state.shared.x, x, atol=1e-12)


def test_a_combined_query_costs_what_one_gradient_costs():
    plain, combined = (
        started(net(), FAFED(0.1), privacy=private(combine=c)) for c in (False, True)
    )
    later = combined.budget.accountant.costs.later
    assert later == started(net()).budget.accountant.costs.later
    assert plain.budget.accountant.epsilon(3) > 1.2 * combined.budget.accountant.epsilon(3)
    records = list(combined)
    assert records[-1].gradients == 3 * (1 + 2 * 2 * 3) + 3  # anchors are twice as large


def test_masks_of_dropout_belong_to_the_example():
    """Another example in the batch changes no other example's gradient."""
    run = started(net(nn.Dropout(0.5)))
    batch, objective = first_batch(run), run.engine.objective
    memory, (inner, rows, expected) = objective.start(), batch.data
    alone = [
        objective.clipped_sum(
            objective.x0,
            batch._replace(
                data=type(batch.data)(
                    tuple(part[i : i + 1] for part in inner), rows[i : i + 1], expected
                )
            ),
            memory,
        )
        for i in range(len(rows))
    ]
    close(objective.clipped_sum(objective.x0, batch, memory), sum(alone), atol=1e-12)


def test_examples_without_a_label_that_counts_add_nothing():
    clients = [data(40, s) for s in range(3)]
    for _, labels in clients:
        labels[1:] = -100
    source = examples_of(clients, batch_size=20)
    settings = {"rounds": 1, "local_steps": 1, "privacy": private()}
    run = build(FedAvg(0.1), Model(net(), F.cross_entropy), source, **settings)
    batch, objective = first_batch(run), run.engine.objective
    found = objective.clipped_sum(objective.x0, batch, objective.start())
    assert torch.isfinite(found).all()
    assert float(found.norm()) <= 0.5 + 1e-9


def test_no_loss_leaves_a_client_and_counts_are_the_expected_ones():
    run = started(net(), rounds=2)
    records = list(run)
    assert [record.train_loss for record in records] == [None, None]
    assert [record.samples for record in records] == [3 * 2 * 10, 2 * 3 * 2 * 10]
    assert [record.gradients for record in records] == [6, 12]


@pytest.mark.parametrize("algorithm", [FedAvg(0.1), FAFED(0.05), Mime(0.1)])
def test_every_record_has_epsilon_and_a_resumed_run_goes_on(algorithm, tmp_path):
    run = started(net(), algorithm, rounds=4)
    first = [run.round(), run.round()]
    path = checkpoint.save(run, tmp_path, "d")
    spent = [record.diagnostics["epsilon"] for record in (*first, *run)]
    assert 0 < spent[0] < spent[1] < spent[2] < spent[3]
    again = started(net(), algorithm, rounds=4)
    checkpoint.load(again, path, "d")
    assert [record.diagnostics["epsilon"] for record in again] == spent[2:]
    assert torch.equal(again.state.shared.x, run.state.shared.x)


def test_the_run_stops_before_max_epsilon_is_passed(caplog):
    whole = [r.diagnostics["epsilon"] for r in started(net(), rounds=4)]
    limited = started(net(), rounds=4, privacy=private(max_epsilon=whole[2] * 1.0001))
    spent = [record.diagnostics["epsilon"] for record in limited]
    assert spent == pytest.approx(whole[:3])
    assert "stopped after round 3 of 4: one more would pass max_epsilon" in caplog.text
    with pytest.raises(ConfigError, match=r"max_epsilon = 0.1 is less than one round costs"):
        started(net(), privacy=private(max_epsilon=0.1))


def test_a_limit_that_was_passed_before_is_an_error(tmp_path):
    run = started(net(), rounds=4)
    spent = [run.round().diagnostics["epsilon"] for _ in range(3)]
    path = checkpoint.save(run, tmp_path, "d")
    limited = started(net(), rounds=4, privacy=private(max_epsilon=spent[1]))
    checkpoint.load(limited, path, "d")
    with pytest.raises(ConfigError, match="is already passed: the 3 rounds so far have spent"):
        list(limited)


def test_the_number_of_workers_and_secure_sums():
    one, two = (started(net(), workers=w) for w in (1, 2))
    list(one)
    list(two)
    assert torch.equal(one.state.shared.x, two.state.shared.x)
    both = started(net(), privacy=private(secure=True))
    list(both)
    close(both.state.shared.x, one.state.shared.x, atol=1e-8)


def test_functions_without_a_module():
    p = Problem(4, examples=40)
    run = p.run(FedAvg(0.05), 2, 2, privacy=private())
    list(run)
    assert isinstance(run.engine.objective, Private)
    assert torch.isfinite(run.state.shared.x).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: started(net(nn.BatchNorm1d(8).double())),
            "2 is a BatchNorm1d, .*use nn.GroupNorm",
        ),
        (lambda: started(net(), engine="vmap"), "engine = 'vmap' cannot clip example by example"),
        (lambda: started(net(), privacy=private(delta=0.1)), "delta = 0.1 promises nothing"),
        (lambda: private(delta=None), "needs privacy.delta: a probability well below"),
        (lambda: private(noise=None), "needs privacy.noise: how much noise"),
        (lambda: private(combine=1), "privacy.combine must be true or false, got 1"),
        (lambda: Privacy(combine=True), "privacy.combine = True does nothing without"),
        (lambda: started(net(), privacy=private(combine=True)), "does nothing for FedAvg"),
        (
            lambda: started(net(), FAFED(0.1), model={"clip": 1.0}, privacy=private(combine=True)),
            "leave out clip and sam",
        ),
        (lambda: private(noise=0), "privacy.noise must be > 0, got 0.0"),
        (lambda: private(delta=2), r"privacy.delta must be in \(0, 1\), got 2.0"),
        (lambda: Privacy(noise=1.0), "privacy.noise = 1.0 does nothing without privacy.level"),
        (lambda: Privacy(level="silo"), "privacy.level must be 'example' or 'client', got 'silo'"),
        (lambda: Privacy(secure="yes"), "privacy.secure must be true or false"),
        (lambda: Privacy.from_dict({"sigma": 1}), "privacy.sigma: no such setting"),
    ],
)
def test_what_cannot_be_promised_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_class_weights_are_refused():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    source = examples_of([data(60, s) for s in range(3)], batch_size=10)
    with pytest.raises(ConfigError, match="the loss has class weights"):
        build(FedAvg(0.1), Model(net(), loss), source, rounds=1, local_steps=1, privacy=private())


def test_train_with_little_noise_learns():
    clients = [data(300, s) for s in range(3)]
    result = fafed.train(
        net(),
        clients,
        FedAvg(0.5),
        rounds=15,
        local_steps=3,
        batch_size=50,
        test=data(300, 9),
        metrics={"accuracy": fafed.metrics.accuracy},
        privacy=private(noise=0.6, clip=1.0),
    )
    assert result.history[-1].test["accuracy"] > 0.55
    assert math.isfinite(result.history[-1].diagnostics["epsilon"])


def test_the_noise_of_steps_leaves_and_clients_is_independent():
    """An objective without a slope shows the noise alone."""
    d, sigma = 10_000, 1.7
    objective = Function(lambda x, data: 0 * x.sum(), torch.zeros(2 * d), shapes=[(d,), (d,)])
    run = build(
        FedAvg(1.0),
        objective,
        examples_of([data(40, s) for s in range(2)], batch_size=10),
        rounds=1,
        local_steps=1,
        privacy=private(noise=sigma, clip=2.0),
    )
    source, own = run.engine.task.source, run.engine.objective
    seen = []
    for client in range(2):
        for batch in source.batches(source.draw(("round",), client, 0, 2)):
            visit = own.for_visit()
            for _ in range(2):  # gradients on the same batch
                g = visit.evaluate(own.x0, batch, own.start()).gradient
                seen += (10 * g.double()).split(d)
    noise = torch.stack(seen) / (sigma * 2.0)
    assert noise.shape == (2 * 2 * 2 * 2, d)
    assert noise.mean(1).abs().max() < 5 / math.sqrt(d)
    assert (noise.var(1) - 1).abs().max() < 5 * math.sqrt(2 / d)
    others = torch.corrcoef(noise) - torch.eye(len(noise), dtype=torch.float64)
    assert others.abs().max() < 5 / math.sqrt(d)
