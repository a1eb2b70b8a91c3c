"""The objective of an nn.Module and a loss: x0, and the gradient at any x on any batch.

Only this file knows parameter names. x is one flat vector of the trainable parameters, in float32
or wider. A half-precision model is trained on a float32 copy, because squares of small gradients
vanish in half precision. Gradients are those of the mean loss in train mode.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fafed.core import randomness, tree
from fafed.core.batch import Batch, Picked
from fafed.core.tree import Tree
from fafed.errors import ConfigError
from fafed.kernels import build
from fafed.kernels.network import Network, recognised
from fafed.kernels.vmap_bridge import wrapped
from fafed.objectives import agreement
from fafed.objectives.base import Evaluation, Loss, Memory, Metric, Objective
from fafed.objectives.labels import Averaged, averaged

log = logging.getLogger("fafed")

_GENERATOR = threading.Lock()
_METRICS = threading.Lock()  # a user's metric may keep a state


class Model(Objective):
    """An nn.Module and a loss of (outputs, targets).

    A batch is (inputs..., targets). A module with a method `initial_state(batch_size)` is
    recurrent: it is called with (inputs..., state) and returns (outputs, state). The state goes
    from one batch to the next, unless the batch starts a new sequence. A module whose attribute
    `computes` is this loss computes the loss itself, and faster: called with targets=..., it
    returns the loss in place of the outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        clip: float | None = None,
        weight_decay: float = 0.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(clip, weight_decay)
        _refuse_what_a_copy_loses(module)
        self.module = _moved(_copied(module), device).train()
        self.loss = loss
        self.averaged = averaged(loss)
        trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ConfigError(
                f"{type(module).__name__} has no trainable parameters: there is nothing to train; "
                "give it some, or set requires_grad on those it has"
            )
        kinds = {p.dtype for p in trainable.values()}
        if len(kinds) > 1:
            raise ConfigError(
                f"{type(module).__name__} mixes parameter types {sorted(map(str, kinds))}: "
                "use one, for example model.float()"
            )
        self._dtype = kinds.pop()
        if not self._dtype.is_floating_point:
            raise ConfigError(
                f"{type(module).__name__} has {self._dtype} parameters; float types are supported"
            )
        self.names = tuple(trainable)
        self._shapes = tuple(p.shape for p in trainable.values())
        self.sizes = tuple(p.numel() for p in trainable.values())
        self.buffer_names = tuple(n for n, _ in self.module.named_buffers())
        self.aliases = _aliases(self.module, {*self.names, *self.buffer_names})
        wide = torch.promote_types(self.dtype, torch.float32)
        self.x0 = torch.cat([p.detach().reshape(-1) for p in trainable.values()]).to(wide)
        self.device = self.x0.device
        if self.device.type == "meta":
            raise ConfigError(
                f"{type(module).__name__} is on the device 'meta', where tensors have no values: "
                "make it on another device, for example model.to_empty(device='cpu') and then "
                "initialise it"
            )
        if not self.x0.isfinite().all():
            raise ConfigError(
                f"{type(module).__name__} has NaN or infinity among its parameters: initialise "
                "them, or load them again"
            )
        self._local = threading.local()
        self.recurrent = hasattr(self.module, "initial_state")
        self.fused = getattr(self.module, "computes", None) is loss
        self.stochastic = self.generator = False  # `probe` sets these
        self.classes: int | None = None  # set by `probe`; None if targets are not class numbers
        self.channels_last = False  # set by `probe`
        self.network: Network | None = None  # set by `probe`
        self.steps_in_c = False  # set by `probe`: whether the network makes whole local steps
        self.not_native = "the model is not one of the plain small networks that are written in C"

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return self._shapes

    def evaluate_native(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        if self.network is None:
            return super().evaluate_native(x, batch, memory)
        g, loss = self.network.gradient(x, *batch.data)
        return Evaluation(self._changed(g, x), loss, memory)

    def counts(self, data: Any, leading: int = 0) -> Tensor | None:
        weight = self.averaged.weight(data[-1], leading)
        return None if weight is None else weight > 0

    def network_for_steps(self, data: Any) -> Network | None:
        plain = self.clip is None and not self.weight_decay
        if self.network is None or not (self.steps_in_c and plain):
            return None
        inputs, targets = data
        if not isinstance(inputs, Picked):
            return None
        fits = self.network.takes_steps(inputs.pool, targets.shape[1])
        return self.network if fits else None

    def start(self) -> Memory:
        buffers = dict(self.module.named_buffers())
        return Memory(tuple(buffers[n].detach().clone() for n in self.buffer_names))

    def hidden_like(self) -> Tree:
        return self.module.initial_state(1) if self.recurrent else ()  # type: ignore[operator]

    def probe(self, batch: Batch) -> None:
        """Try one batch. This refuses what cannot work before the first round. It finds out whether
        the model draws random numbers (then every evaluation is seeded by its batch), and whether
        the model is a small network that `native` supports."""
        *inputs, targets = batch.data
        shapes = ", ".join(str(tuple(part.shape)) for part in inputs)
        with torch.no_grad(), _forked(self.device):
            before = _rng_state(self.device)
            try:
                outputs, memory = self._outputs(self.x0, batch, self.start())
            except Exception as cause:
                raise ConfigError(
                    f"{type(self.module).__name__} cannot take a batch of shape {shapes}: {cause}"
                ) from cause
            self._check_buffers(memory.buffers)
            self.stochastic = not torch.equal(before, _rng_state(self.device))
            if self.stochastic:
                before = _rng_state(self.device)
                with randomness.KeyedDropout(batch.key):
                    self._outputs(self.x0, batch, self.start())
                self.generator = not torch.equal(before, _rng_state(self.device))
            try:
                value = self.loss(outputs, targets)
            except Exception as cause:
                raise ConfigError(
                    f"loss cannot compare outputs {_shape(outputs)} with targets "
                    f"{_shape(targets)}: {cause}"
                ) from cause
        if not isinstance(value, Tensor) or value.numel() != 1 or value.ndim:
            raise ConfigError(
                f"loss must return one number, the mean over the batch, got {_shape(value)}: "
                "use reduction='mean', or take .mean()"
            )
        if self.loss is F.cross_entropy and targets.dtype == torch.int64:
            self.classes = outputs.shape[1]
        self._choose_ways(batch)

    def _choose_ways(self, batch: Batch) -> None:
        """Choose the fast paths for this model that compute the same as torch."""
        with _forked(self.device):
            if self.fused:
                self.fused = False
                why = agreement.of_switch(self, "fused", batch)
                self.fused = self._agrees("the loss that it computes itself", why)
            self.channels_last = self._likes_channels_last(batch)
            known = recognised(self.module, self.loss)
            if known is None or len(batch.data) != 2 or not known.takes(*batch.data):
                return
            if not build.available(known.dtype):
                self.network = known  # `not_native` says why it cannot be used
                return
            why = agreement.of_network(self, known, batch)
            if self._agrees("its network in C", why):
                self.network = known
                why = agreement.of_steps(self, known, batch)
                self.steps_in_c = self._agrees("its local steps in C", why)
            else:
                self.not_native = f"its network in C does not compute what torch does ({why})"

    def _agrees(self, way: str, why: str | None) -> bool:
        if why is not None:
            log.warning(
                "%s: %s does not compute what torch does and is not used (%s, on the first batch)",
                type(self.module).__name__,
                way,
                why,
            )
        return why is None

    def _check_buffers(self, after: tuple[object, ...]) -> None:
        """A forward pass must keep type and shape of buffers: they are averaged over clients."""
        for name, old, new in zip(self.buffer_names, self.start().buffers, after, strict=True):
            if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
                raise ConfigError(
                    f"{type(self.module).__name__} makes its buffer {name!r}, a {old.dtype} of "
                    f"shape {_shape(old)}, {_described(new)}: a forward pass may change numbers, "
                    "but neither shape nor type"
                )

    def _likes_channels_last(self, batch: Batch) -> bool:
        if self.device.type != "cpu" or self.recurrent or batch.data[0].ndim != 4:
            return False
        if not any(isinstance(m, nn.Conv2d) for m in self.module.modules()):
            return False
        self.channels_last = True
        try:
            self._loss(self.x0, batch, self.start())
            self.channels_last = False
            why = agreement.of_switch(self, "channels_last", batch)
        except RuntimeError:  # code such as x.view(len(x), -1) needs the usual layout
            return False
        return self._agrees("images with their channels last", why)

    def predict(self, x: Tensor, buffers: tuple[Tensor, ...]) -> nn.Module:
        """A copy of the module with this vector and these buffers, in eval mode."""
        module = _copied(self.module)
        state = self._parameters(x) | dict(zip(self.buffer_names, buffers, strict=True))
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if name in state:
                    tensor.copy_(state[name])
        return module.eval()

    def totals(
        self,
        x: Tensor,
        buffers: tuple[Tensor, ...],
        batches: Iterable[Batch],
        metrics: Mapping[str, Metric],
    ) -> dict[str, tuple[float, float]]:
        """The sum of the loss and of each metric in eval mode, and its divisor: the number of
        examples, or of labels that count in that mean (`fafed.objectives.labels`)."""
        means = {"loss": self.averaged} | {name: averaged(own) for name, own in metrics.items()}
        totals = dict.fromkeys(means, (0.0, 0.0))
        memory = Memory(buffers)
        module = self._own_module().eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    loss, found, memory = self._measured(x, self.here(batch), memory, metrics)
                    for name, mean in {"loss": loss, **found}.items():
                        if weight := self._weight(means[name], batch.data[-1]):
                            total, count = totals[name]
                            totals[name] = total + float(mean) * weight, count + weight
        finally:
            module.train()
        return totals

    def usable(self, data: tuple[Tensor, ...]) -> bool:
        """Whether the loss on these examples is finite at the start."""
        nothing = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
        batch = Batch(data, *nothing)
        total, _ = self.totals(self.x0, self.start().buffers, [batch], {})["loss"]
        return math.isfinite(total)

    def _weight(self, mean: Averaged, targets: Tensor) -> float:
        """The weight of a batch in a mean over several batches."""
        weight = mean.weight(targets)
        if weight is None:
            return targets.numel() if self.recurrent else len(targets)
        return float(weight)

    def _measured(
        self, x: Tensor, batch: Batch, memory: Memory, metrics: Mapping[str, Metric]
    ) -> tuple[Tensor, dict[str, Tensor | float], Memory]:
        if self.fused and not metrics:
            loss, memory = self._loss(x, batch, memory)
            return loss, {}, memory
        known = self.network
        if known is not None and build.available(known.dtype) and known.takes(*batch.data):
            outputs = known.outputs(x, batch.data[0])
        else:
            with self._seeded(batch.key):
                outputs, memory = self._outputs(x, batch, memory)
        targets = batch.data[-1]
        with _METRICS:
            found = {name: metric(outputs, targets) for name, metric in metrics.items()}
        return self.loss(outputs, targets), found, memory

    def here(self, batch: Batch) -> Batch:
        """The batch on the model's device, in its type."""
        data = tuple(
            part.to(self.device, self.dtype if part.is_floating_point() else part.dtype)
            for part in batch.data
        )
        return Batch(data, batch.key.to(self.device), batch.fresh.to(self.device))

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        parts = torch.split(x.to(self.dtype), list(self.sizes))
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def _outputs(self, x: Tensor, batch: Batch, memory: Memory, **named: Any) -> tuple[Any, Memory]:
        *inputs, _ = batch.data
        if self.recurrent:
            state = self._own_module().initial_state(len(inputs[0]))  # type: ignore[operator]
            if tree.leaves(memory.hidden):
                state = tree.map(
                    lambda new, old: torch.where(batch.fresh, new, old), state, memory.hidden
                )
            inputs = [*inputs, state]
        elif self.channels_last and inputs[0].ndim == 4 and not wrapped(inputs[0]):
            # this layout makes torch's convolutions and pools fast on a CPU
            inputs = [inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:]]
        # cloned: a module in train mode writes into its buffers
        buffers = {n: b.clone() for n, b in zip(self.buffer_names, memory.buffers, strict=True)}
        tensors = self._parameters(x) | buffers
        tensors = {name: tensors[first] for name, first in self.aliases.items()}
        module = self._own_module()
        outputs = functional_call(module, tensors, tuple(inputs), named, tie_weights=False)
        outputs, hidden = outputs if self.recurrent else (outputs, ())
        # the module has changed these tensors in place, or assigned new ones
        return outputs, Memory(tuple(tensors[name] for name in self.buffer_names), hidden)

    def _own_module(self) -> nn.Module:
        """This thread's copy of the module, with the same tensors. Each worker thread needs its
        own, because a call with other parameters changes the module during the call."""
        if threading.current_thread() is threading.main_thread():
            return self.module
        own: nn.Module | None = getattr(self._local, "module", None)
        if own is None:
            tensors = [*self.module.parameters(), *self.module.buffers()]
            own = self._local.module = _copied(self.module, {id(t): t for t in tensors})
        return own

    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
        with self._seeded(batch.key):
            targets = batch.data[-1]
            if self.fused:
                return self._outputs(x, batch, memory, targets=targets)
            outputs, memory = self._outputs(x, batch, memory)
            return self.loss(outputs, targets), memory

    @contextlib.contextmanager
    def _seeded(self, key: Tensor) -> Iterator[None]:
        """Random numbers as a function of the batch. Dropout uses the batch's key. All other draws
        use torch's generator, which all threads share, so only one thread runs at a time."""
        if not self.stochastic:
            yield
        elif not self.generator or wrapped(key):
            with randomness.KeyedDropout(key):  # vmap refuses all other randomness
                yield
        else:
            with _GENERATOR, _forked(self.device), randomness.KeyedDropout(key):
                torch.manual_seed(int(key))
                yield


def _copied(module: nn.Module, same: dict[int, object] | None = None) -> nn.Module:
    """A deep copy. Weights that a module computes before each call (pruning, weight norm) are
    detached first: torch refuses to copy tensors that have a graph."""
    memo = dict(same or {})
    for owner in module.modules():
        for value in vars(owner).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def _moved(module: nn.Module, device: torch.device | str | None) -> nn.Module:
    try:
        return module.to(None if device is None else torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as cause:  # no such device, or no CUDA
        raise ConfigError(f"device {str(device)!r} cannot be used: {cause}; try 'cpu'") from cause


def _refuse_what_a_copy_loses(module: nn.Module) -> None:
    """Refuse hooks on the module's own tensors: gradients here are those of a vector."""
    name = type(module).__name__
    for tensor_name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ConfigError(
                f"{name}: {tensor_name!r} has no shape yet, it is a lazy layer's: call the model "
                "on one batch first"
            )
        hooks = tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)
        if hooks and tensor.requires_grad:
            raise ConfigError(
                f"{name}: parameter {tensor_name!r} has {len(hooks)} hook(s) on its gradient, "
                "which would not be called: remove them (the handle's .remove()) and change "
                "gradients in the loss, or with clip and weight_decay"
            )
    mine = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    for path, owner in module.named_modules():
        for attribute, value in vars(owner).items():
            held = inspect.getclosurevars(value) if inspect.isfunction(value) else None
            if held and mine & {id(v) for v in (*held.nonlocals.values(), *held.globals.values())}:
                raise ConfigError(
                    f"{name}: {attribute!r} of {path or name!r} is a function that holds the "
                    "module itself: a copy would compute with the weights of the original; make it "
                    "a method, types.MethodType(function, layer)"
                )


def _aliases(module: nn.Module, known: set[str]) -> dict[str, str]:
    """Every name of the known tensors -> the first name of the same tensor. A layer that is used
    twice has one name. A weight that two layers share has two. Torch's own search for shared
    weights does not put them back."""
    first: dict[int, str] = {}
    found = {}
    for prefix, owner in module.named_modules():
        for attribute, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                found[name] = first.setdefault(id(tensor), name)
    return {name: origin for name, origin in found.items() if origin in known}


def _forked(device: torch.device) -> contextlib.AbstractContextManager[None]:
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _rng_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _described(value: object) -> str:
    kind = f"a {value.dtype} of shape " if isinstance(value, Tensor) else "a "
    return kind + _shape(value)


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
