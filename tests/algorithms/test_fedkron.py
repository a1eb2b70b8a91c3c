"""FedKron against its transcription, its identities, and the layers that it finds."""

from __future__ import annotations

import math

import pytest
import torch
from problem import Problem, close
from torch import nn
from transcriptions.fedkron import fedkron

import fafed
from fafed import FedKron
from fafed.algorithms._layers import Layer, joined, layers, parts
from fafed.algorithms.fedkron import _largest
from fafed.data.sources.examples import examples_of
from fafed.objectives.module import Model
from fafed.training.build import build

N, Q, T = 3, 4, 6
SETTINGS = {
    "eta": 0.3, "mu": 0.8, "beta": 0.9, "rank": 9, "rho": 0.05, "reach": 1.0, "kappa": 1.3,
    "end": 0.02,
}  # fmt: skip


class Net(nn.Module):
    """A vector, a matrix with a bias, a matrix without one, in the order of its parameters."""

    def __init__(self, turn=None):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(5))
        self.last = nn.Linear(3, 5, bias=False)
        self.turn = turn

    def forward(self, x):
        x = x if self.turn is None else x @ self.turn
        return self.last(torch.tanh(self.first(x))) * self.scale


LAYERS = [None, (3, 4, True), (5, 3, False)]
SIZES = [5, 15, 15]


def net(**options):
    torch.manual_seed(0)
    return Net(**options).double()


def clients(n=N):
    torch.manual_seed(1)
    return [(torch.randn(12, 4).double() + i, torch.randn(12, 5).double()) for i in range(n)]


class Task:
    """The same run for the library and for the transcription."""

    def __init__(self, data=None, module=None, loss=nn.functional.mse_loss):
        self.source = examples_of(data or clients(), batch_size=3, anchor_size=12)
        self.goal = Model(module or net(), loss)

    def run(self, algorithm, rounds=T, **options):
        return build(
            algorithm, self.goal, self.source, rounds=rounds, local_steps=Q,
            **{"engine": "loop", **options},
        )  # fmt: skip

    def xs(self, algorithm, rounds=T, **options):
        run = self.run(algorithm, rounds, **options)
        return torch.stack([run.state.shared.x for _ in run])

    def gradient(self, x, batch):
        return self.goal.evaluate(x, batch, self.goal.start()).gradient

    def g(self, i, t, x):
        (batch,) = self.source.batches(self.source.draw(("round",), i, t - 1, 1))
        return self.gradient(x, batch)

    def g0(self, i, x):
        return self.gradient(x, self.source.batches(self.source.draw(("anchor",), i, 0, 1)).anchor)


@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize(
    "own",
    [
        *({"kappa": 0.0}, {"kappa": 1.3}, {"kappa": 3.0}, {"rank": 2}, {"rank": 1, "kappa": 0.0}),
        *({"reach": 0.0}, {"reach": 0.5}, {"reach": 3.0}),
    ],
)
def test_equals_the_transcription(wire, own):
    task, own = Task(), SETTINGS | own
    expected = fedkron(
        task.goal.x0, task.g, task.g0, [1 / N] * N, Q, T, LAYERS, SIZES, **own
    )  # fmt: skip
    close(task.xs(FedKron(**own, wire=wire)), torch.stack(expected), atol=1e-12)


def test_the_clip_is_felt():
    close_to_none = Task().xs(FedKron(**SETTINGS | {"kappa": 1e6}))
    close(close_to_none, Task().xs(FedKron(**SETTINGS | {"kappa": 0.0})), atol=1e-12)
    assert not torch.allclose(Task().xs(FedKron(**SETTINGS)), close_to_none)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_one_vector_each_way_gives_the_numbers_of_the_full_wire(engine):
    """To the last bit in the loop, since a client makes the server's step with the same code."""
    compact, full = (
        Task().xs(FedKron(**SETTINGS, wire=wire), engine=engine) for wire in ("compact", "full")
    )
    close(compact, full, atol=0 if engine == "loop" else 1e-12)


@pytest.mark.slow
def test_five_hundred_rounds_in_float32():
    """Clients that replay the server's steps stay on its trajectory."""
    data = [(x.float(), y.float()) for x, y in clients()]
    runs = [
        Task(data, net().float()).xs(FedKron(**SETTINGS, wire=wire), 500)[-1]
        for wire in ("compact", "full")
    ]
    assert torch.equal(*runs)


def test_bytes():
    d, factors, numbers = 35, 5 + 2 * 5 + 2 * 3, 3 * 3
    for wire, scales in (("compact", 0), ("full", factors + numbers)):
        *_, record = Task().run(FedKron(**SETTINGS | {"rank": 2}, wire=wire))
        lengths = 2 * 3  # two of each layer
        assert record.bytes_up == (T + 1) * N * (d + lengths) * 8
        assert record.bytes_down == (d + T * (d + lengths + scales)) * N * 8


def test_a_loss_of_another_size_changes_nothing():
    task = Task(loss=lambda o, t: 100 * nn.functional.mse_loss(o, t))
    close(task.xs(FedKron(**SETTINGS)), Task().xs(FedKron(**SETTINGS)), atol=1e-11)


def test_a_rotation_of_the_inputs_changes_nothing():
    """The first layer sees rotated inputs, and its weights start rotated."""
    torch.manual_seed(2)
    turn, _ = torch.linalg.qr(torch.randn(4, 4).double())
    turned = net(turn=turn)
    with torch.no_grad():
        turned.first.weight.copy_(net().first.weight @ turn)
    plain, found = Task(), Task(module=turned)
    x, y = plain.xs(FedKron(**SETTINGS))[-1], found.xs(FedKron(**SETTINGS))[-1]
    close(y[5:17].view(3, 4) @ turn.T, x[5:17].view(3, 4), atol=1e-10)
    close(torch.cat([y[:5], y[17:]]), torch.cat([x[:5], x[17:]]), atol=1e-10)


def test_identical_clients_are_one():
    found = []
    for n in (1, 3):
        task = Task()
        task.source = examples_of([clients()[0]] * n, batch_size="full", anchor_size="full")
        found.append(task.xs(FedKron(**SETTINGS)))
    close(*found, atol=1e-12)


def test_a_matrix_of_one_number_is_a_single_number():
    x = torch.tensor([0.7], dtype=torch.float64)
    bound = [FedKron(**SETTINGS).bind_model(shapes).bind_run(T, Q) for shapes in ([(1, 1)], [(1,)])]
    states = []
    for algorithm in bound:
        replica = algorithm._with_scale(algorithm._first(x), torch.tensor([0.3]).double())
        states.append(algorithm._moved(replica, torch.tensor([-0.2]).double(), 0, Q))
    close(states[0].x, states[1].x)
    close(states[0].F ** 2, states[1].F)


def test_clients_may_be_absent_with_the_full_wire():
    algorithm = FedKron(**SETTINGS, wire="full")
    *_, record = Task().run(algorithm, participation=[[0, 1], [2], [0, 2]])
    assert record.clients == 2
    with pytest.raises(fafed.ConfigError, match="wire='full'"):
        Task().run(FedKron(**SETTINGS), participation=0.5)


def test_layers_that_start_at_zero_move():
    module = net()
    nn.init.zeros_(module.last.weight)
    task = Task(module=module)
    moved = task.xs(FedKron(**SETTINGS), 2)[-1]
    assert (moved - task.goal.x0)[20:].abs().min() > 0


@pytest.mark.parametrize("rank", [1, 4])
def test_a_step_of_the_server_is_bounded(rank):
    """Whatever the mean gradient is: R has seen it before the step."""
    algorithm = FedKron(**SETTINGS | {"rank": rank}).bind_model([(3, 4)]).bind_run(T, 1)
    torch.manual_seed(3)
    x = torch.randn(12).double()
    replica = algorithm._with_scale(algorithm._first(x), torch.randn(12).double())
    moved = algorithm._moved(replica, 1e6 * torch.randn(12).double(), 0, 1)
    bound = torch.linalg.matrix_norm(x.view(3, 4), 2) / (1 - algorithm.beta) ** 0.5
    size = torch.linalg.matrix_norm(moved.u.view(3, 4), 2) / algorithm._rate(0, 1)
    assert size <= bound * (1 + 1e-9)


@pytest.mark.parametrize("rows", [3, 9])  # fewer than columns, and more
@pytest.mark.parametrize("k", [1, 2, 6])
def test_what_a_factor_leaves_out_is_bounded(rows, k):
    """S'S <= F'F + e I <= S'S + e I, and both are equal if no direction is left out."""
    torch.manual_seed(4)
    S = torch.randn(max(rows, k), 6).double()
    F, e = _largest(S, k)
    close(F @ F.T, torch.diag((F * F).sum(1)), atol=1e-12)
    more = torch.linalg.eigvalsh(F.T @ F + e * torch.eye(6).double() - S.T @ S)
    assert more.min() > -1e-12
    assert more.max() < e + 1e-12
    assert (e > 0) == (k < min(6, len(S)))


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(3, 4), (3,)], [Layer(15, True, 3, 4, True, kept=5)]),
        ([(8, 2, 3, 3), (8,)], [Layer(152, True, 8, 18, True, kept=6)]),
        # a convolution without a bias, and a norm
        (
            [(8, 2, 3, 3), (8,), (8,)],
            [Layer(144, True, 8, 18, kept=6), Layer(8, False), Layer(8, False)],
        ),
        # an LSTM: two matrices and two biases
        (
            [(8, 3), (8, 2), (8,), (8,)],
            [
                *(Layer(24, True, 8, 3, kept=3), Layer(16, True, 8, 2, kept=2)),
                *(Layer(8, False), Layer(8, False)),
            ],
        ),
        # GPT-2 stores inputs x outputs
        ([(3, 8), (8,)], [Layer(32, True, 8, 3, True, True, kept=4)]),
        # as wide as it likes if it has few rows, or high if it has few columns
        ([(2, 5000), (2,)], [Layer(10002, True, 2, 5000, True, kept=6)]),
        ([(5000, 2)], [Layer(10000, True, 5000, 2, kept=2)]),
        ([(99, 98), (99,)], [Layer(9702, False), Layer(99, False)]),
        ([(), (4,)], [Layer(1, False), Layer(4, False)]),
    ],
)
def test_layers_by_shape(shapes, expected):
    found = layers(shapes, rank=6, cap=90)
    assert list(found) == expected
    x = torch.arange(sum(layer.numbers for layer in found)).double()
    assert torch.equal(joined(parts(x, found), found), x)


def test_transposed_matrices_are_turned():
    (layer,) = layers([(2, 3), (3,)], 9, 9)
    (W,) = parts(torch.arange(9.0), [layer])
    assert W.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_layers_without_a_first_gradient_learn():
    """Behind a layer that starts at zero, gradients are 0 at first: no scale and no bound."""
    module = net()
    nn.init.zeros_(module.last.weight)
    task = Task(module=module)
    xs = task.xs(FedKron(**SETTINGS), 4)
    first = (xs - task.goal.x0)[:, 5:20].abs().amax(1)
    assert first[0] > 0  # by the server alone, whose scale has seen the round
    assert first[-1] > first[0]
    assert torch.isfinite(xs).all()


def test_the_bound_follows_the_usual_length():
    algorithm = FedKron().bind_model([(3, 4), (3,), (2,)]).bind_run(T, Q)
    a, lengths = torch.tensor([4.0, 0.0]), torch.tensor([8.0, 5.0])
    assert algorithm._bound(lengths, a).tolist() == [0.5, 1.0]  # the second has no bound yet
    assert algorithm._bound(lengths / 2, a).tolist() == [1.0, 1.0]
    assert algorithm._lengths(torch.arange(17.0)).tolist() == pytest.approx(
        [math.sqrt(sum(n * n for n in range(15))), math.sqrt(15**2 + 16**2)]
    )


@pytest.mark.parametrize("kappa", [0.7, 1.0, -1.0])
def test_a_bound_that_could_only_shrink_is_refused(kappa):
    with pytest.raises(fafed.ConfigError, match="0 or a number > 1"):
        FedKron(kappa=kappa)


def test_it_asks_for_the_number_of_rounds():
    with pytest.raises(fafed.ConfigError, match="bind_run"):
        FedKron()._rate(0, 5)


def test_the_run_says_how_long_it_is_unless_the_user_does():
    assert Problem(2).run(FedKron(), 2, 7).algorithm.rounds == 7
    assert Problem(2).run(FedKron(rounds=9), 2, 7).algorithm.rounds == 9
