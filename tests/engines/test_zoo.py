"""Every back end trains a module as a plain torch loop does, or refuses it; none does otherwise."""

from __future__ import annotations

import types
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

import fafed

ETA, ROUNDS, STEPS, CLIENTS, ROWS = 0.3, 2, 2, 2, 8
ENGINES = ("auto", "loop", "vmap", "native")


# The modules. Each takes something to clean up with.


def mlp(*, bias=True):
    layers = nn.Linear(6, 5, bias=bias), nn.Tanh(), nn.Linear(5, 5, bias=bias), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(5, 3, bias=bias))


def cnn(channels=2, pool=True):
    layers = [nn.Conv2d(channels, 4, 3), nn.MaxPool2d(2) if pool else nn.Identity(), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36 if pool else 144, 3))


def plain_mlp(_):
    return mlp()


def plain_linear(_):
    return nn.Linear(6, 3)


def plain_cnn(_):
    return cnn()


def in_place_activations(_):
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


def biases_at_zero(_):
    """What is zero at x0 hides errors there."""
    module = mlp()
    for layer in (module[0], module[2], module[4]):
        nn.init.zeros_(layer.bias)
    nn.init.zeros_(module[4].weight)
    return module


def old_weight_norm(_):
    module = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(module[0])
    return module


def old_weight_norm_removed(_):
    module = old_weight_norm(_)
    nn.utils.remove_weight_norm(module[0])
    return module


def weight_norm(_):
    module = mlp()
    parametrizations.weight_norm(module[0])
    return module


def weight_norm_removed(_):
    module = weight_norm(_)
    parametrize.remove_parametrizations(module[0], "weight")
    return module


def old_spectral_norm_removed(_):
    module = mlp()
    nn.utils.spectral_norm(module[2])
    module(torch.ones(2, 6))
    nn.utils.remove_spectral_norm(module[2])
    return module


def spectral_norm_removed(_):
    module = mlp()
    parametrizations.spectral_norm(module[2])
    parametrize.remove_parametrizations(module[2], "weight")
    return module


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT


def parametrized(_):
    module = mlp()
    parametrize.register_parametrization(module[2], "weight", Symmetric())
    return module


def pruned(_):
    module = mlp()
    prune.l1_unstructured(module[0], "weight", amount=0.5)
    return module


def pruned_for_good(_):
    module = pruned(_)
    prune.remove(module[0], "weight")
    return module


def convolution_pruned_for_good(_):
    module = cnn()
    prune.l1_unstructured(module[0], "weight", amount=0.5)
    prune.remove(module[0], "weight")
    return module


def weight_set_again(_):
    module = mlp()
    weight = module[2].weight
    del module[2].weight
    module[2].weight = nn.Parameter(2 * weight.detach())
    return module


def square_weight_set_again_without_bias(_):
    module = mlp(bias=False)
    weight = module[2].weight
    del module[2].weight
    module[2].weight = nn.Parameter(weight.detach().T.contiguous())
    return module


def bias_for_all(_):
    module = mlp()
    module[0].bias = nn.Parameter(torch.tensor([0.5]))
    return module


def extra_parameter(_):
    module = mlp()
    module[0].register_parameter("scale", nn.Parameter(torch.ones(5)))
    module[0].register_forward_hook(lambda m, i, o: o * m.scale)
    return module


def unused_parameter(_):
    module = mlp()
    module[0].register_parameter("unused", nn.Parameter(torch.ones(5)))
    return module


def unused_as_large_as_a_shared_one(_):
    module = mlp()
    module[2].weight = nn.Parameter(torch.randn(5, 5))
    module.insert(3, nn.Linear(5, 5))
    module[3].weight = module[2].weight
    module[0].register_parameter("unused", nn.Parameter(torch.ones(5, 5)))
    return module


def tied_weights(_):
    module = mlp()
    module[4] = nn.Linear(5, 5)
    module[4].weight = module[2].weight
    return module


def one_layer_twice(_):
    layer = nn.Linear(5, 5)
    return nn.Sequential(nn.Linear(6, 5), layer, nn.Tanh(), layer)


def frozen_layer(_):
    module = mlp()
    module[0].requires_grad_(False)
    return module


def doubled(module, x):
    return 2 * F.linear(x, module.weight, module.bias)


def forward_replaced_on_an_instance(_):
    module = mlp()
    module[0].forward = types.MethodType(doubled, module[0])
    return module


def forward_that_holds_the_module(_):
    module = mlp()
    module[0].forward = lambda x: doubled(module[0], x)
    return module


def convolution_replaced_on_an_instance(_):
    module = cnn()

    def conv(self, x, weight, bias):
        return F.conv2d(x, 2 * weight, bias)

    module[0]._conv_forward = types.MethodType(conv, module[0])
    return module


def forward_replaced_on_the_class(patch):
    patch.setattr(nn.Linear, "forward", doubled)
    return mlp()


def call_replaced_on_the_class(patch):
    patch.setattr(nn.Tanh, "__call__", lambda self, x: torch.sin(x))
    return mlp()


def function_replaced(patch):
    patch.setattr(F, "relu", lambda x, inplace=False: F.softplus(x))
    return mlp()


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def layer_of_a_subclass(_):
    return nn.Sequential(Louder(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Called(nn.Sequential):
    def __call__(self, x):
        return 2 * super().__call__(x)


class Backwards(nn.Sequential):
    def __iter__(self):
        return reversed(list(self._modules.values()))


class WithHelpers(nn.Sequential):
    def features(self, x):
        return self[0](x)


def sequential_called(_):
    return Called(*mlp())


def sequential_backwards(_):
    return Backwards(nn.Linear(5, 3), nn.Tanh(), nn.Linear(6, 5))


def sequential_with_helpers(_):
    return WithHelpers(*mlp())


def sequential_in_a_sequential(_):
    return nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3))


def forward_hook(_):
    module = mlp()
    module[0].register_forward_hook(lambda module, inputs, out: 2 * out)
    return module


def forward_pre_hook(_):
    module = mlp()
    module[0].register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    return module


def backward_hook(_):
    module = mlp()
    module[2].register_full_backward_hook(lambda module, g_in, g_out: (3 * g_in[0],))
    return module


def backward_pre_hook(_):
    module = mlp()
    module[2].register_full_backward_pre_hook(lambda module, g_out: (3 * g_out[0],))
    return module


def twice_a_linear(module, *rest):
    return 2 * rest[-1] if isinstance(module, nn.Linear) else None


def global_forward_hook(patch):
    patch.later(nn.modules.module.register_module_forward_hook(twice_a_linear))
    return mlp()


def global_forward_pre_hook(patch):
    def twice(module, inputs):
        return (2 * inputs[0],) if isinstance(module, nn.Linear) else None

    patch.later(nn.modules.module.register_module_forward_pre_hook(twice))
    return mlp()


def global_backward_hook(patch):
    def twice(module, g_in, g_out):
        return (2 * g_in[0],) if isinstance(module, nn.Tanh) else None

    patch.later(nn.modules.module.register_module_full_backward_hook(twice))
    return mlp()


def global_backward_pre_hook(patch):
    def twice(module, g_out):
        return (2 * g_out[0],) if isinstance(module, nn.Linear) else None

    patch.later(nn.modules.module.register_module_full_backward_pre_hook(twice))
    return mlp()


def hook_on_a_parameter(_):
    module = mlp()
    module[0].weight.register_hook(lambda g: 2 * g)
    return module


def hook_behind_a_parameter(_):
    module = mlp()
    module[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    return module


def lazy(_):
    return nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 3))


def lazy_and_called(_):
    module = lazy(_)
    module(torch.zeros(2, 6))
    return module


def mixed_types(_):
    module = mlp().double()
    module[0].float()
    return module


def batch_norm(_):
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def unused_buffer(_):
    module = mlp()
    module[0].register_buffer("unused", torch.ones(5))
    return module


def group_norm_on_images(_):
    layers = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36, 3))


class Strided(nn.Module):
    """Reads memory as it lies: another layout is another function."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 3, 3), nn.Linear(36, 3)

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        return self.out(x.as_strided((len(x), 36), (x.stride(0), 1)))


class InLayout(Strided):
    def forward(self, x):
        scale = 2 if x.is_contiguous(memory_format=torch.channels_last) else 1
        return self.out(scale * torch.tanh(self.conv(x)).flatten(1)[:, :36])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.rnn(x.reshape(len(x), 3, 2))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.layer(x.reshape(len(x), 3, 2)).flatten(1))


def strided(_):
    return Strided()


def in_layout(_):
    return InLayout()


def recurrent(_):
    return Reader()


def transformer(_):
    return Attentive()


def compiled(_):
    return torch.compile(mlp(), backend="eager")


def compiled_in_place(_):
    module = mlp()
    module.compile(backend="eager")
    return module


ZOO = [
    *(plain_mlp, plain_linear, plain_cnn, in_place_activations, biases_at_zero),
    *(old_weight_norm, old_weight_norm_removed, weight_norm, weight_norm_removed),
    *(old_spectral_norm_removed, spectral_norm_removed, parametrized),
    *(pruned, pruned_for_good, convolution_pruned_for_good),
    *(weight_set_again, square_weight_set_again_without_bias, bias_for_all),
    *(extra_parameter, unused_as_large_as_a_shared_one, tied_weights, one_layer_twice),
    *(
        forward_that_holds_the_module,
        frozen_layer,
        unused_parameter,
        unused_buffer,
        batch_norm,
        group_norm_on_images,
    ),
    *(forward_replaced_on_an_instance, convolution_replaced_on_an_instance),
    *(forward_replaced_on_the_class, call_replaced_on_the_class, function_replaced),
    *(layer_of_a_subclass, sequential_called, sequential_backwards, sequential_with_helpers),
    *(sequential_in_a_sequential, forward_hook, forward_pre_hook, backward_hook),
    *(backward_pre_hook, global_forward_hook, global_forward_pre_hook),
    *(global_backward_hook, global_backward_pre_hook),
    *(hook_on_a_parameter, hook_behind_a_parameter, lazy, lazy_and_called, mixed_types),
    *(strided, in_layout, recurrent, transformer, compiled, compiled_in_place),
]
IMAGES = {plain_cnn, convolution_pruned_for_good, convolution_replaced_on_an_instance}
IMAGES |= {group_norm_on_images, strided, in_layout}
REFUSED = {
    hook_on_a_parameter: "parameter '0.weight' has 1 hook.* on its gradient.*remove",
    hook_behind_a_parameter: "parameter '0.weight' has 1 hook.* on its gradient.*remove",
    forward_that_holds_the_module: "'forward' of '0' is a function that holds the module",
    lazy: "'0.weight' has no shape yet.*call the model",
    mixed_types: "must have the same dtype",
}
IN_C = {plain_mlp, plain_linear, plain_cnn, in_place_activations, biases_at_zero}
IN_C |= {sequential_with_helpers, lazy_and_called}


class Patch(pytest.MonkeyPatch):
    """Which removes hooks, too."""

    def __init__(self):
        super().__init__()
        self.handles = []

    def later(self, handle):
        self.handles.append(handle)

    def undo(self):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        super().undo()


@pytest.fixture
def patch():
    patch = Patch()
    yield patch
    patch.undo()


def data(images, dtype):
    g = torch.Generator().manual_seed(1)
    shape = (2, 8, 8) if images else (6,)
    x = torch.randn(CLIENTS, ROWS, *shape, generator=g, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 3, (CLIENTS, ROWS), generator=g)
    return list(zip(x, y, strict=True))


def made(make, patch, dtype):
    torch.manual_seed(0)
    patch.undo()
    module = make(patch)
    return module if make is mixed_types else module.to(dtype)


def plainly(module, clients):
    """FedAvg by hand: the vector, its loss after every round, and the buffers' means."""
    own = [p for p in module.parameters() if p.requires_grad]
    x = torch.cat([p.detach().reshape(-1) for p in own])
    losses = []

    def load(x):
        with torch.no_grad():
            for p, part in zip(own, x.split([p.numel() for p in own]), strict=True):
                p.copy_(part.view_as(p))

    buffers = [b.detach().clone() for b in module.buffers()]
    for _ in range(ROUNDS):
        ends, left = [], []
        for inputs, targets in clients:
            load(x)
            for b, start in zip(module.buffers(), buffers, strict=True):
                b.copy_(start)
            for _ in range(STEPS):
                grads = torch.autograd.grad(
                    F.cross_entropy(module.train()(inputs), targets), own, allow_unused=True
                )
                with torch.no_grad():
                    for p, g in zip(own, grads, strict=True):
                        if g is not None:
                            p -= ETA * g
            ends.append(torch.cat([p.detach().reshape(-1) for p in own]))
            left.append([b.detach().clone() for b in module.buffers()])
        x = torch.stack(ends).mean(0)
        buffers = [torch.stack(b).double().mean(0).to(b[0].dtype) for b in zip(*left, strict=True)]
        load(x)
        with torch.no_grad():
            for b, mean in zip(module.buffers(), buffers, strict=True):
                b.copy_(mean)
            inputs, targets = clients[0]
            losses.append(F.cross_entropy(module.eval()(inputs), targets).item())
    return x, losses


def trained(module, clients, engine):
    return fafed.train(
        module,
        clients,
        fafed.FedAvg(eta=ETA),
        rounds=ROUNDS,
        local_steps=STEPS,
        batch_size="full",
        test=clients[0],
        engine=engine,
        workers=1,
    )


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile's own
@pytest.mark.parametrize("make", ZOO, ids=lambda make: make.__name__)
def test_every_back_end_trains_as_torch_does(make, patch):
    clients = data(make in IMAGES, torch.float64)
    if make in REFUSED:
        for engine in ENGINES:
            with pytest.raises(fafed.ConfigError, match=REFUSED[make]):
                trained(made(make, patch, torch.float64), clients, engine)
        return
    x, losses = plainly(made(make, patch, torch.float64), clients)
    for engine in ENGINES:
        try:
            result = trained(made(make, patch, torch.float64), clients, engine)
        except fafed.ConfigError:
            assert engine in ("vmap", "native")
            continue
        assert engine in ("auto", result.engine)
        torch.testing.assert_close(result.x, x, rtol=1e-9, atol=1e-11)
        for record, loss in zip(result.history, losses, strict=True):
            assert record.test["loss"] == pytest.approx(loss, rel=1e-9)
        with torch.no_grad():
            own = F.cross_entropy(result.model(clients[0][0]), clients[0][1]).item()
        assert own == pytest.approx(losses[-1], rel=1e-9)


@pytest.mark.parametrize("make", sorted(IN_C, key=lambda make: make.__name__))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_networks_are_still_left_to_c(make, dtype, patch):
    clients = data(make in IMAGES, dtype)
    assert trained(made(make, patch, dtype), clients, "auto").engine == "native"


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_dropout_is_the_same_on_every_back_end(kind):
    """Masks are functions of the batch, so torch's own are no measure."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), kind(0.4), nn.Tanh(), nn.Linear(5, 3)).double()
    clients = data(False, torch.float64)
    loop = trained(module, clients, "loop")
    for engine in ("auto", "vmap", "native"):
        try:
            found = trained(module, clients, engine)
        except fafed.ConfigError:
            assert engine != "auto"
            continue
        torch.testing.assert_close(found.x, loop.x, rtol=1e-9, atol=1e-11)
        assert found.history[-1].test["loss"] == pytest.approx(loop.history[-1].test["loss"])
