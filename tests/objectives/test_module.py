"""nn.Module + loss as a function of a flat vector."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from modules import Assigned, InPlace, batch, model
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.core.batch import Batch
from fafed.core.randomness import KeyedDropout, keep_mask
from fafed.data.sources.examples import Examples, examples_of
from fafed.objectives.base import Memory
from fafed.objectives.module import Model
from fafed.training.build import build


def net(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), *middle, nn.Linear(10, 3)).double()


@pytest.mark.parametrize("way", ["evaluate", "evaluate_functional", "evaluate_native"])
def test_gradient_is_autograds(way):
    module, example = net(), batch()
    objective = model(module, example)
    found = getattr(objective, way)(objective.x0, example, objective.start())
    loss = F.cross_entropy(module(example.data[0]), example.data[1])
    loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(found.gradient, expected)
    torch.testing.assert_close(found.loss, loss.detach())


def test_the_module_passed_in_is_not_changed():
    module = net(nn.BatchNorm1d(10))
    before = copy.deepcopy(module.state_dict())
    clients = [tuple(batch(seed=s).data) for s in range(3)]
    result = fafed.train(module, clients, fafed.FedAvg(0.1), rounds=2, local_steps=2, batch_size=4)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert module.training
    assert not result.model.training
    flat = torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])
    assert torch.equal(flat, result.x)


def test_clip_bounds_the_norm_and_leaves_small_gradients_alone():
    example = batch()
    plain = model(net(), example)
    g = plain.evaluate(plain.x0, example, plain.start()).gradient
    norm = float(g.norm())
    for clip, factor in [(norm / 2, 0.5), (norm * 2, 1.0)]:
        objective = model(net(), example, clip=clip)
        found = objective.evaluate(plain.x0, example, plain.start()).gradient
        torch.testing.assert_close(found, g * factor, rtol=1e-14, atol=0)


def test_weight_decay_is_added_before_clipping():
    example = batch()
    plain = model(net(), example)
    g = plain.evaluate(plain.x0, example, plain.start()).gradient
    expected = g + 0.3 * plain.x0
    decayed = model(net(), example, weight_decay=0.3)
    found = decayed.evaluate(plain.x0, example, plain.start()).gradient
    torch.testing.assert_close(found, expected)
    both = model(net(), example, weight_decay=0.3, clip=0.1)
    found = both.evaluate(plain.x0, example, plain.start()).gradient
    torch.testing.assert_close(found, 0.1 * expected / expected.norm())


def test_frozen_parameters_are_not_in_the_vector():
    module = net()
    module[0].weight.requires_grad_(False)
    objective = model(module, batch())
    assert objective.x0.numel() == sum(p.numel() for p in module.parameters()) - 60
    trained = objective.predict(objective.x0 + 1, ())
    assert torch.equal(trained[0].weight, module[0].weight)
    assert torch.equal(trained[0].bias, module[0].bias + 1)


def test_tied_parameters_appear_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6, bias=False)
            self.b = nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    example = batch(classes=6)
    objective = model(Tied().double(), example)
    assert objective.x0.numel() == 36
    trained = objective.predict(objective.x0 * 2, ())
    assert trained.b.weight is trained.a.weight


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.again = self.a

    def forward(self, x):
        return self.again(torch.tanh(self.a(x)))


def shared_layer():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer)


def shared_weight():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


@pytest.mark.parametrize("build", [Twice, shared_layer, shared_weight])
@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
def test_layers_and_weights_that_are_used_twice(build, engine):
    torch.manual_seed(0)
    module, example = build().double(), batch(classes=6)
    objective = model(module, example)
    way = "evaluate_functional" if engine == "vmap" else "evaluate"
    found = getattr(objective, way)(objective.x0, example, Memory())
    loss = F.cross_entropy(module(example.data[0]), example.data[1])
    expected = torch.autograd.grad(loss, list(module.parameters()))
    torch.testing.assert_close(found.gradient, torch.cat([g.reshape(-1) for g in expected]))
    clients = [batch(n=30, classes=6, seed=i).data for i in range(3)]
    call = {"rounds": 2, "local_steps": 2, "batch_size": 4, "engine": engine, "workers": 1}
    result = fafed.train(module, clients, fafed.FedAvg(eta=0.1), **call)
    own = torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])
    assert torch.equal(own, result.x)


def test_half_precision_is_trained_in_float32():
    clients = [(torch.randn(8, 6).bfloat16(), torch.randint(0, 3, (8,))) for _ in range(2)]
    result = fafed.train(
        net().to(torch.bfloat16), clients, fafed.FAFED(), rounds=1, local_steps=2, batch_size=4
    )
    assert result.x.dtype == torch.float32
    assert result.model[0].weight.dtype == torch.bfloat16


# The same-sample rule.

RANDOM = {
    "dropout": lambda: nn.Dropout(0.5),
    "noise": lambda: Noise(),
}


class Noise(nn.Module):
    def forward(self, x):
        return x * torch.rand_like(x) if self.training else x


@pytest.mark.parametrize("kind", RANDOM)
def test_difference_vanishes_as_the_points_meet(kind):
    example = batch()
    objective = model(net(RANDOM[kind]()), example)
    assert objective.stochastic
    x, start = objective.x0, objective.start()
    direction = torch.randn_like(x)

    def difference(gap, other=example):
        a = objective.evaluate(x, example, start).gradient
        b = objective.evaluate(x + gap * direction, other, start).gradient
        return float((a - b).norm())

    gaps = [1e-2, 1e-4, 1e-6]
    sizes = [difference(gap) for gap in gaps]
    assert all(0 < s < 50 * gap for s, gap in zip(sizes, gaps, strict=True))
    assert difference(0.0) == 0
    assert difference(0.0, example.redrawn()) > 0.01  # other masks, same sample


def test_masks_differ_between_steps_and_layers_and_have_the_right_rate():
    mode = KeyedDropout(torch.tensor(3))
    with mode:
        one, two = (F.dropout(torch.ones(200, 500), 0.3) for _ in range(2))
    assert not torch.equal(one, two)
    with KeyedDropout(torch.tensor(4)):
        other = F.dropout(torch.ones(200, 500), 0.3)
    assert not torch.equal(one, other)
    assert float((one == 0).double().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(one.mean()) == pytest.approx(1.0, abs=0.01)
    assert bool(keep_mask(torch.tensor(1), torch.Size([1000]), 0.0).all())


def test_channel_dropout_drops_whole_channels():
    with KeyedDropout(torch.tensor(3)):
        found = F.dropout2d(torch.ones(10, 40, 3, 3), 0.5)
    assert set(found.flatten(2).sum(-1).flatten().tolist()) == {0.0, 18.0}


KINDS = {  # what is dropped, and the shapes that it takes
    F.dropout: [(30, 4), (4, 5, 6)],
    torch.dropout: [(30, 4)],
    torch.dropout_: [(30, 4)],
    F.dropout1d: [(30, 4), (6, 30, 4)],
    F.dropout2d: [(6, 30, 4), (6, 30, 4, 5)],
    F.dropout3d: [(30, 2, 3, 4), (6, 30, 2, 3, 4)],
    torch.feature_dropout: [(6, 30), (6, 30, 4)],
    torch.feature_dropout_: [(6, 30, 4)],
    F.alpha_dropout: [(30, 4), (4, 5, 6)],
    F.feature_alpha_dropout: [(6, 30), (6, 30, 4), (6, 30, 2, 2)],
}


def same_fate(kind, shape):
    """Which dimensions always share their fate: those along which two of 20 draws never differ."""
    found = [kind(torch.ones(shape), 0.5, True) for _ in range(20)]
    kept = torch.stack([one == one.max() for one in found])
    assert 0.3 < float(kept.double().mean()) < 0.7
    return [bool((kept == kept.narrow(d, 0, 1)).all()) for d in range(1, kept.ndim)]


@pytest.mark.parametrize(("kind", "shape"), [(k, s) for k, shapes in KINDS.items() for s in shapes])
@pytest.mark.filterwarnings("ignore:dropout2d")  # torch's about three dimensions
def test_dropout_drops_what_torch_drops(kind, shape):
    torch.manual_seed(0)
    expected = same_fate(kind, shape)
    with KeyedDropout(torch.tensor(3)):
        assert same_fate(kind, shape) == expected


@pytest.mark.parametrize("kind", [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d])
def test_dropout_in_place_changes_its_input(kind):
    given = torch.ones(2, 30, 4) if kind is F.dropout1d else torch.ones(2, 30, 4, 4, 4)
    with KeyedDropout(torch.tensor(3)):
        found = kind(given, 0.5, inplace=True)
    with KeyedDropout(torch.tensor(3)):
        expected = kind(torch.ones_like(given), 0.5)
    assert found is given
    assert torch.equal(given, expected)
    assert not torch.equal(given, torch.ones_like(given))


class InPlaceDropout(nn.Module):
    """Uses what it was given, not what dropout returns."""

    def forward(self, x):
        x = x * 1.0
        F.dropout(x, 0.5, self.training, inplace=True)
        return x


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_dropout_in_place_is_dropout(engine):
    clients = [tuple(batch(20, seed=s).data) for s in range(3)]
    common = {"rounds": 2, "local_steps": 2, "batch_size": 4, "engine": engine}
    found, expected = (
        fafed.train(net(layer), clients, fafed.STEM(0.1), **common).x
        for layer in (InPlaceDropout(), nn.Dropout(0.5))
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)])
def test_alpha_dropout_is_the_same_in_both_gradients_of_a_step(layer):
    objective, example = model(net(layer), batch()), batch(key=11)
    evaluate = objective.evaluate
    found = [evaluate(objective.x0, example, Memory()) for _ in range(2)]
    assert torch.equal(found[0].gradient, found[1].gradient)
    other = evaluate(objective.x0, batch(key=12), Memory())
    assert not torch.equal(found[0].gradient, other.gradient)


def test_dropout_is_the_same_in_loop_and_vmap():
    module = net(nn.Dropout(0.5))
    clients = [tuple(batch(20, seed=s).data) for s in range(3)]
    xs = [
        fafed.train(
            module, clients, fafed.FAFED(), rounds=3, local_steps=3, batch_size=4, engine=engine
        ).x
        for engine in ("loop", "vmap")
    ]
    torch.testing.assert_close(*xs, rtol=1e-10, atol=1e-10)


def test_other_randomness_runs_in_the_loop_and_says_so():
    module = net(Noise())
    clients = [tuple(batch(20, seed=s).data) for s in range(3)]
    common = {"rounds": 1, "local_steps": 2, "batch_size": 4}
    assert fafed.train(module, clients, fafed.FAFED(), **common).engine == "loop"
    with pytest.raises(fafed.ConfigError, match="engine='vmap' cannot run this"):
        fafed.train(module, clients, fafed.FAFED(), **common, engine="vmap")


def test_the_global_generator_is_left_alone():
    module = net(nn.Dropout(0.5), Noise())
    clients = [tuple(batch(20, seed=s).data) for s in range(2)]
    torch.manual_seed(5)
    fafed.train(module, clients, fafed.FAFED(), rounds=1, local_steps=2, batch_size=4)
    here = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(here, torch.rand(1))


# Buffers: moved by the evaluation at the current point alone, averaged over the clients.


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_batch_norm_statistics(engine):
    module = net(nn.BatchNorm1d(10, momentum=0.2))
    shards = [tuple(batch(12, seed=s).data) for s in range(3)]
    pool = tuple(torch.cat(parts) for parts in zip(*shards, strict=True))
    source = Examples(pool, np.split(np.arange(36), 3), batch_size="full")
    objective = Model(module, F.cross_entropy)
    algorithm = fafed.FAFED(eta=0.05, alpha=0.1)
    run = build(algorithm, objective, source, rounds=1, local_steps=2, engine=engine)
    list(run)

    def moved(mean, var, x, data):
        own = objective.predict(x, objective.start().buffers).train()
        h = own[1](own[0](data[0]))
        return 0.8 * mean + 0.2 * h.mean(0).detach(), 0.8 * var + 0.2 * h.var(0).detach()

    # by hand: the opening at x0, then two steps at each client's own current point
    x0 = objective.x0
    zero, one = torch.zeros(10, dtype=torch.float64), torch.ones(10, dtype=torch.float64)
    opened = [moved(zero, one, x0, s) for s in shards]
    mean = sum(m for m, _ in opened) / 3
    var = sum(v for _, v in opened) / 3

    def grad(x, data):
        example = Batch(data, torch.tensor(0), torch.tensor(True))
        return objective.evaluate(x, example, objective.start()).gradient

    m0 = sum(grad(x0, s) for s in shards) / 3
    A = (sum(grad(x0, s) ** 2 for s in shards) / 3).sqrt() + 0.01
    x1 = x0 - 0.05 * m0
    ends = []
    for s in shards:
        m = grad(x1, s) + 0.9 * (m0 - grad(x0, s))
        x2 = x1 - 0.05 * m / A
        ends.append(moved(*moved(mean, var, x1, s), x2, s))
    names = objective.buffer_names
    found = dict(zip(names, run.state.buffers, strict=True))
    torch.testing.assert_close(found["2.running_mean"], sum(m for m, _ in ends) / 3)
    torch.testing.assert_close(found["2.running_var"], sum(v for _, v in ends) / 3)
    assert int(found["2.num_batches_tracked"]) == 3
    trained = objective.predict(run.state.shared.x, run.state.buffers)
    assert torch.equal(trained[2].running_mean, found["2.running_mean"])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_buffers_that_a_module_assigns_are_kept(engine):
    clients = [tuple(batch(12, seed=s).data) for s in range(3)]
    source = examples_of(clients, batch_size=4)
    found = []
    for module in (InPlace(), Assigned()):
        objective = Model(module, F.cross_entropy)
        run = build(fafed.STEM(0.1), objective, source, rounds=2, local_steps=3, engine=engine)
        list(run)
        found.append((run.state.shared.x, *run.state.buffers))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    assert int(found[1][1]) == 7  # the opening step and six others
    trained = objective.predict(found[1][0], found[1][1:])
    assert torch.equal(trained.mean, found[1][2])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda old: old * 0.5, r"'n', a torch.int64 of shape \(\), a torch.float32 of shape"),
        (lambda old: old.expand(2), r"a torch.int64 of shape \(2,\)"),
        (lambda old: None, "a NoneType"),
    ],
)
def test_a_buffer_that_becomes_something_else_is_refused(value, words):
    class Changing(InPlace):
        def remember(self, x):
            self.n = value(self.n)

    with pytest.raises(fafed.ConfigError, match=words):
        model(Changing(), batch())


EXTRA_PASSES = {
    "scaffold": [{"control": "full", "wire": "full"}, {"control": "batch", "wire": "full"}],
    "mime": [{"anchor": "batch"}, {"base": "adagrad"}],
    "mimelite": [{"anchor": "batch"}, {"cold_start": True}],
    "mimeadam": [{"anchor": "batch"}],
    "fedglomo": [{"anchor": "batch"}, {"anchor": "full"}],
    "fedpd": [{"oracle": "II"}],
    "spider": [{"anchor": "batch"}],
    "localamsgrad": [{"warm_share": False}],
}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [(n, s) for n in fafed.ALGORITHMS for s in [{}, *EXTRA_PASSES.get(n, [])]],
)
def test_buffers_move_once_per_step(name, settings, engine):
    """And with the opening step of FAFED and STEM, which is one."""
    algorithm = fafed.ALGORITHMS[name](**settings)
    clients = [tuple(batch(12, seed=s).data) for s in range(algorithm.population or 2)]
    objective = Model(net(nn.BatchNorm1d(10)), F.cross_entropy)
    source = examples_of(clients, batch_size=4, anchor_size=4)
    for q in (1, 3):
        run = build(algorithm, objective, source, rounds=2, local_steps=q, engine=engine)
        list(run)
        buffers = dict(zip(objective.buffer_names, run.state.buffers, strict=True))
        opening = name in ("fafed", "stem")
        assert int(buffers["2.num_batches_tracked"]) == 2 * q + opening


def test_buffers_travel_and_are_counted():
    module = net(nn.BatchNorm1d(10))
    clients = [tuple(batch(12, seed=s).data) for s in range(2)]
    common = {"rounds": 1, "local_steps": 1, "batch_size": 4}
    with_bn = fafed.train(module, clients, fafed.FedAvg(), **common)
    bytes_of_x = with_bn.x.numel() * 8
    assert with_bn.history[0].bytes_up == 2 * (bytes_of_x + 2 * 10 * 8)


@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (nn.Flatten(), F.cross_entropy, "no trainable parameters"),
        (net(), lambda o, y: F.cross_entropy(o, y, reduction="none"), r"one number.*\(8,\).*mean"),
        (net(), lambda o, y: 3.0, "one number"),
        (net(), lambda o, y: F.mse_loss(o, y[:, None, None]), "one number|loss cannot compare"),
        (nn.Linear(5, 3).double(), F.cross_entropy, r"cannot take a batch of shape \(8, 6\)"),
        (
            nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3).double()),
            F.cross_entropy,
            "must have the same dtype",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_cannot_work_is_refused_when_built(module, loss, words):
    clients = [tuple(batch(12).data)]
    if words.startswith("one number|"):
        loss = lambda o, y: o @ y.double()  # noqa: E731
        words = "loss cannot compare outputs"
    with pytest.raises(fafed.ConfigError, match=words):
        fafed.train(
            module, clients, fafed.FedAvg(), rounds=1, local_steps=1, batch_size=8, loss=loss
        )


class Viewing(nn.Module):
    """Code that needs the usual layout of images."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 3, 3), nn.Linear(3 * 16, 4)

    def forward(self, x):
        return self.linear(self.conv(x).view(len(x), -1))


class Flattening(Viewing):
    def forward(self, x):
        return self.linear(self.conv(x).flatten(1))


def test_channels_last_only_where_the_model_can_take_it():
    torch.manual_seed(0)
    example = Batch(
        (torch.randn(5, 2, 6, 6), torch.randint(4, (5,))),
        torch.zeros((), dtype=torch.int64),
        torch.ones((), dtype=torch.bool),
    )
    viewing, flattening = (Model(m, F.cross_entropy) for m in (Viewing(), Flattening()))
    for objective in (viewing, flattening):
        objective.probe(example)
    assert (viewing.channels_last, flattening.channels_last) == (False, True)
    found = [
        objective.evaluate(flattening.x0, example, Memory()).gradient
        for objective in (viewing, flattening)
    ]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
