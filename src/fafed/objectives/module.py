"""The objective of an nn.Module and a loss: x0, and the gradient at any x on any batch.

Only this file knows parameter names. x is one flat vector of the trainable parameters, in float32
or wider; each parameter is cast to its own type when the module is called. A half-precision model
is trained on a float32 copy, because squares of small gradients vanish in half precision. Gradients
are those of the mean loss in train mode.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from fafed.core import randomness, tree
from fafed.core.batch import Batch, Picked, labels_of
from fafed.core.tree import Tree
from fafed.core.vmap import wrapped
from fafed.errors import ConfigError
from fafed.kernels import build
from fafed.kernels.network import Network
from fafed.objectives import metrics, probing
from fafed.objectives.autocast import autocast, setting
from fafed.objectives.base import Evaluation, Loss, Memory, Objective, Parts, Totals
from fafed.objectives.batches import (
    arguments,
    check_callable,
    compared,
    examples_in,
    own_loss,
    plain,
    scores_of,
)
from fafed.objectives.copies import aliases, copied, moved, refuse_what_a_copy_loses, uncompiled
from fafed.objectives.labels import IGNORED, Averaged, averaged
from fafed.objectives.probing import forked

_CHECKPOINTED = "use_reentrant=True"  # in torch's message
_METRICS = threading.Lock()  # a user's metric may keep a state


class Model(Objective):
    """An nn.Module and a loss of (outputs, targets).

    A batch is (inputs..., targets), or a mapping of names to tensors. A mapping is given to the
    module by name, and its loss is the model's own, "model", or a function of (output, batch); see
    `fafed.objectives.batches`. A module with a method `initial_state(batch_size)` is
    recurrent: it is called with (inputs..., state) and returns (outputs, state). The state goes
    from one batch to the next, unless the batch starts a new sequence. A module whose attribute
    `computes` is this loss computes the loss itself, and faster: called with targets=..., it
    returns the loss in place of the outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | str,
        *,
        clip: float | None = None,
        weight_decay: float = 0.0,
        sam: float = 0.0,
        device: torch.device | str | None = None,
        amp: str | None = None,
    ) -> None:
        super().__init__(clip, weight_decay, sam)
        check_callable(loss)
        refuse_what_a_copy_loses(module)
        self.module = moved(copied(uncompiled(module)), device).train()
        self.loss = loss
        self.averaged = averaged(loss) if callable(loss) else Averaged(IGNORED, None)
        trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ConfigError(
                f"{type(module).__name__} has no trainable parameters: there is nothing to train; "
                "give it some, or set requires_grad on those it has"
            )
        self.dtypes = tuple(p.dtype for p in trainable.values())
        self.one_dtype = len(set(self.dtypes)) == 1
        for kind in self.dtypes:
            if not kind.is_floating_point:
                raise ConfigError(
                    f"{type(module).__name__} has {kind} parameters; float types are supported"
                )
        self.names = tuple(trainable)
        self._shapes = tuple(p.shape for p in trainable.values())
        self.sizes = tuple(p.numel() for p in trainable.values())
        self.buffer_names = tuple(n for n, _ in self.module.named_buffers())
        self.aliases = aliases(self.module, {*self.names, *self.buffer_names})
        wide = functools.reduce(torch.promote_types, self.dtypes, torch.float32)
        self.x0 = torch.cat([p.detach().reshape(-1).to(wide) for p in trainable.values()])
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
        self.amp = setting(amp, self.device)
        self._local = threading.local()
        self.recurrent = hasattr(self.module, "initial_state")
        self.recurrent_layers = any(
            isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in self.module.modules()
        )
        self.fused = getattr(self.module, "computes", None) is loss
        self.stochastic = self.generator = False  # `probe` sets these
        self.recomputes = False  # whether backward passes compute parts of the model again
        self.reentrant = False  # and cannot be for x alone
        self.moves_twice = False  # and write into buffers
        self.classes: int | None = None  # set by `probe`; None if targets are not class numbers
        self.shifted = False  # set by `probe`: the first label of each row does not count
        self.channels_last = False  # set by `probe`
        self.network: Network | None = None  # set by `probe`
        self.steps_in_c = False  # set by `probe`: whether the network makes whole local steps
        self.not_native = "the model is not one of the plain small networks that are written in C"

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters. If there are several, that of the first in the module."""
        if self.one_dtype:
            return self.dtypes[0]
        return next(p.dtype for p in self.module.parameters() if p.is_floating_point())

    @property
    def precision(self) -> torch.dtype:
        used = {p.dtype for p in self.module.parameters() if p.is_floating_point()}
        used |= set() if self.amp is None else {self.amp}
        return max(used, key=lambda dtype: torch.finfo(dtype).eps)

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return self._shapes

    def _by_network(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        if self.network is None:
            return super()._by_network(x, batch, memory)
        g, loss = self.network.gradient(x, *batch.data)
        return Evaluation(g, loss, memory)

    def counts(self, data: Any, leading: int = 0) -> Tensor | None:
        labels = self._labels(data)
        weight = None if labels is None else self.averaged.weight(labels, leading)
        return None if weight is None else weight > 0

    def network_for_steps(self, data: Any) -> Network | None:
        plain = self.clip is None and not self.weight_decay and not self.sam
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
        """Try one batch: see `fafed.objectives.probing`."""
        probing.probe(self, batch)

    def predict(self, x: Tensor, buffers: tuple[Tensor, ...]) -> nn.Module:
        """A copy of the module with this vector and these buffers, in eval mode."""
        module = copied(self.module)
        state = self._parameters(x) | dict(zip(self.buffer_names, buffers, strict=True))
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if name in state:
                    tensor.copy_(state[name])
        return module.eval()

    def state_dict(self, x: Tensor, buffers: tuple[Tensor, ...]) -> dict[str, Any]:
        """The module's state_dict with this vector and these buffers. The module is not copied: its
        frozen part may be large. A weight with two names is one tensor under both."""
        known = self._parameters(x) | dict(zip(self.buffer_names, buffers, strict=True))
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        first = {id(tensor): name for name, tensor in named}
        found = self.module.state_dict(keep_vars=True)
        return {name: known.get(first.get(id(own), ""), own) for name, own in found.items()}

    def totals(
        self,
        x: Tensor,
        buffers: tuple[Tensor, ...],
        batches: Iterable[Batch],
        means: Mapping[str, Callable[..., Any]],
        *,
        keep: bool = False,
    ) -> Totals:
        """The sum of the loss and of each metric that is a mean, in eval mode, and its divisor: the
        number of examples, or of labels that count in that mean (`fafed.objectives.labels`).
        `keep`: the outputs and targets as well, on the CPU."""
        known = {"loss": self.averaged} | {name: averaged(own) for name, own in means.items()}
        sums = dict.fromkeys(known, (0.0, 0.0))
        memory, examples, outputs = Memory(buffers), 0, []
        module = self._own_module().eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    here = self.here(batch)
                    found, given, memory = self._measured(x, here, memory, means, keep)
                    examples += examples_in(batch.data)
                    for name, value in found.items():
                        if weight := self._weight(known[name], batch.data):
                            total, count = sums[name]
                            sums[name] = total + float(value) * weight, count + weight
                    if keep:
                        outputs.append(_on_cpu((given, compared(batch.data))))
        finally:
            module.train()
        return Totals(sums, examples, outputs)

    def usable(self, data: Any) -> bool:
        """Whether the loss on these examples is finite at the start."""
        nothing = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
        batch = Batch(data, *nothing)
        total, _ = self.totals(self.x0, self.start().buffers, [batch], {}).sums["loss"]
        return math.isfinite(total)

    def _labels(self, data: Any) -> Tensor | None:
        """The labels that a mean may count; None if there are none."""
        labels = labels_of(data)
        return labels[..., 1:] if self.shifted and labels is not None else labels

    def _weight(self, mean: Averaged, data: Any) -> float:
        """The weight of a batch in a mean over several batches."""
        labels = self._labels(data)
        weight = None if labels is None else mean.weight(labels)
        if weight is None:
            return labels.numel() if self.recurrent and labels is not None else examples_in(data)
        return float(weight)

    def _measured(
        self,
        x: Tensor,
        batch: Batch,
        memory: Memory,
        means: Mapping[str, Callable[..., Any]],
        keep: bool,
    ) -> tuple[dict[str, Any], Any, Memory]:
        """The loss and the means of one batch, its outputs, and the memory after it."""
        if self.fused and not means and not keep:
            loss, memory = self._loss(x, batch, memory)
            return {"loss": loss}, None, memory
        known = self.network
        if known is not None and build.available(known.dtype) and known.takes(*batch.data):
            outputs = known.outputs(x, batch.data[0])
        else:
            with self._seeded(batch.key):
                outputs, memory = self._outputs(x, batch, memory)
        with _METRICS:
            found = {n: self._metric(own, outputs, batch.data) for n, own in means.items()}
        return {"loss": self._loss_of(outputs, batch.data), **found}, outputs, memory

    def _metric(self, metric: Callable[..., Any], outputs: Any, data: Any) -> Any:
        """A metric of (outputs, targets), or of (output, batch) if the batch is a mapping. Of a
        mapping, the metrics of `fafed.metrics` compare the logits with the labels that count."""
        own = getattr(plain(metric), "__module__", None) == metrics.__name__
        if not (own and isinstance(data, Mapping)):
            return metric(outputs, compared(data))
        scores, labels = scores_of(outputs), self._labels(data)
        if scores is None or labels is None:
            name = getattr(plain(metric), "__name__", metric)
            raise ConfigError(
                f"{name} needs output.logits and batch['labels'], got a "
                f"{type(outputs).__name__} and a batch with {', '.join(map(repr, data))}: give "
                "a metric of your own, a function of (output, batch)"
            )
        if self.shifted:
            scores = scores[:, :-1]
        return metric(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))

    def _loss_of(self, outputs: Any, data: Any) -> Tensor:
        if not callable(self.loss):
            return own_loss(outputs)
        with autocast(self.amp, self.device.type):
            return self.loss(outputs, compared(data))

    def here(self, batch: Batch) -> Batch:
        """The batch on the model's device, in its type."""

        def on_device(part: Tensor) -> Tensor:
            return part.to(self.device, self.dtype if part.is_floating_point() else part.dtype)

        data = tree.map(on_device, batch.data)
        return Batch(data, batch.key.to(self.device), batch.fresh.to(self.device))

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        if self.one_dtype:
            parts = torch.split(x.to(self.dtype), list(self.sizes))
        else:
            apart = zip(torch.split(x, list(self.sizes)), self.dtypes, strict=True)
            parts = tuple(part.to(dtype) for part, dtype in apart)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    @contextlib.contextmanager
    def _installed(
        self, parameters: Tensor | dict[str, Tensor], memory: Memory
    ) -> Iterator[nn.Module]:
        """This thread's module with these parameters, or those of x, and the buffers of this
        memory."""
        if isinstance(parameters, Tensor):
            parameters = self._parameters(parameters)
        # cloned: a module in train mode writes into its buffers
        buffers = {n: b.clone() for n, b in zip(self.buffer_names, memory.buffers, strict=True)}
        tensors = parameters | buffers
        tensors = {name: tensors[first] for name, first in self.aliases.items()}
        module = self._own_module()
        with _reparametrize_module(module, tensors):
            yield module

    def _outputs(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Any, Memory]:
        with self._installed(x, memory) as module:
            return self._called(module, batch, memory)

    def _called(
        self, module: nn.Module, batch: Batch, memory: Memory, **named: Any
    ) -> tuple[Any, Memory]:
        inputs, by_name = arguments(batch.data)
        if self.recurrent:
            state = module.initial_state(len(inputs[0]))  # type: ignore[operator]
            if tree.leaves(memory.hidden):
                state = tree.map(
                    lambda new, old: torch.where(batch.fresh, new, old), state, memory.hidden
                )
            inputs = *inputs, state
        elif self.channels_last and inputs[0].ndim == 4 and not wrapped(inputs[0]):
            # this layout makes torch's convolutions and pools fast on a CPU
            inputs = inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:]
        with autocast(self.amp, self.device.type):
            outputs = module(*inputs, **by_name, **named)
        outputs, hidden = outputs if self.recurrent else (outputs, ())
        # the module has changed its buffers in place, or assigned new ones
        return outputs, Memory(tuple(_buffer(module, name) for name in self.buffer_names), hidden)

    def _own_module(self) -> nn.Module:
        """This thread's copy of the module, with the same tensors. Each worker thread needs its
        own, because a call with other parameters changes the module during the call."""
        if threading.current_thread() is threading.main_thread():
            return self.module
        own: nn.Module | None = getattr(self._local, "module", None)
        if own is None:
            tensors = [*self.module.parameters(), *self.module.buffers()]
            own = self._local.module = copied(self.module, {id(t): t for t in tensors})
        return own

    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
        with self._seeded(batch.key), self._installed(x, memory) as module:
            return self._value(module, batch, memory)

    def by_autograd(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With autograd, before weight decay and clipping."""
        x = x.detach().requires_grad_()
        ((g,), loss, memory) = self._differentiated((x,), lambda: x, batch, memory)
        assert g is not None
        return Evaluation(g, loss, memory)

    def parts_of(self, x: Tensor) -> Parts | None:
        plain = self.clip is None and not self.weight_decay and not self.sam
        if not (plain and self.one_dtype and x.dtype == self.dtype):
            return None
        return tuple(self._parameters(x).values())

    def by_parts(
        self, parts: Parts, batch: Batch, memory: Memory
    ) -> tuple[tuple[Tensor | None, ...], Tensor, Memory]:
        leaves = tuple(part.detach().requires_grad_() for part in parts)
        own = dict(zip(self.names, leaves, strict=True))
        found, loss, memory = self._differentiated(leaves, lambda: own, batch, memory)
        if (counts := self.counts(batch.data)) is not None and not counts:
            found = (None,) * len(parts)
        return found, loss, memory

    def _differentiated(
        self,
        leaves: Parts,
        parameters: Callable[[], Tensor | dict[str, Tensor]],
        batch: Batch,
        memory: Memory,
    ) -> tuple[tuple[Tensor | None, ...], Tensor, Memory]:
        """The gradients of the leaves, of which the parameters are made, the loss, and the memory
        after it. The backward pass, too, has these parameters and the random numbers of the batch:
        a checkpointed part of the module is computed again there."""
        seeded, after = self._seeded(batch.key, replay=self.recomputes), memory
        with (
            torch.enable_grad(),
            seeded as dropout,
            self._installed(parameters(), memory) as module,
        ):
            loss, after = self._value(module, batch, memory)
            if not loss.requires_grad:
                raise ConfigError(probing.NO_GRADIENT)
            if dropout is not None:
                dropout.end_forward()
            if self.moves_twice:
                after = after._replace(buffers=tuple(b.clone() for b in after.buffers))
            versions = [b._version for b in after.buffers]
            found = self._gradients(loss, leaves)
        moved = versions != [b._version for b in after.buffers]
        if self._learns(found is None, dropout, moved):
            for leaf in leaves:
                leaf.grad = None
            return self._differentiated(leaves, parameters, batch, memory)
        assert found is not None
        return found, loss.detach(), tree.map(Tensor.detach, after)

    def _learns(self, refused: bool, dropout: randomness.KeyedDropout | None, moved: bool) -> bool:
        """Whether this backward pass did what was not known of the model, so that its numbers are
        wrong and it must be repeated."""
        recomputed = dropout is not None and dropout.recomputed
        known = self.reentrant, self.recomputes, self.moves_twice
        self.reentrant |= refused
        self.recomputes |= recomputed
        self.moves_twice |= moved
        return known != (self.reentrant, self.recomputes, self.moves_twice)

    def _gradients(self, loss: Tensor, leaves: Parts) -> tuple[Tensor | None, ...] | None:
        """The gradients, None for a parameter that was not used. None for all if the model refuses
        a backward pass for these leaves alone."""
        if self.reentrant:
            randomness.backward([loss], [torch.ones_like(loss)])
            found = tuple(leaf.grad for leaf in leaves)
            if all(g is None for g in found):
                raise ConfigError(probing.NO_GRADIENT)
            return found
        try:
            found = randomness.backward([loss], [torch.ones_like(loss)], leaves)
        except RuntimeError as cause:
            if _CHECKPOINTED not in str(cause):
                raise
            return None
        # a leaf without a gradient may be one that only a checkpointed part uses
        return None if any(g is None for g in found) else found

    def _value(self, module: nn.Module, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
        if self.fused:
            return self._called(module, batch, memory, targets=batch.data[-1])
        outputs, memory = self._called(module, batch, memory)
        return self._loss_of(outputs, batch.data), memory

    @contextlib.contextmanager
    def _seeded(
        self, key: Tensor, *, replay: bool = False
    ) -> Iterator[randomness.KeyedDropout | None]:
        """Random numbers as a function of the batch. Dropout uses the batch's key. All other draws
        use torch's generator, which all threads share, so only one thread runs at a time. The same
        holds for dropout in parts that the backward pass computes again (`replay`)."""
        if not self.stochastic:
            yield None
        elif not (self.generator or replay) or wrapped(key):
            with randomness.KeyedDropout(key) as dropout:  # vmap refuses all other randomness
                yield dropout
        else:
            with randomness.GENERATORS, forked(self.device):
                torch.manual_seed(int(key))
                kind = randomness.ReplayedDropout if replay else randomness.KeyedDropout
                with kind(key) as dropout:
                    yield dropout


def _buffer(module: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return module.get_submodule(owner)._buffers.get(attribute)


def _on_cpu(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.cpu(), value)
