"""Try a model on one batch before the first round.

This refuses what cannot work. It finds out whether the model draws random numbers (then every
evaluation is seeded by its batch), and which fast paths compute the same as plain torch.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fafed.core import randomness, tree
from fafed.core.batch import Batch, labels_of
from fafed.errors import ConfigError
from fafed.kernels import build
from fafed.kernels.network import recognised
from fafed.objectives import agreement
from fafed.objectives.batches import MODEL, check_loss, plain, scores_of
from fafed.objectives.labels import IGNORED

if TYPE_CHECKING:
    from fafed.objectives.module import Model

log = logging.getLogger("fafed")


def probe(model: Model, batch: Batch) -> None:
    """Try one batch, and set the attributes of the model that depend on it."""
    data = batch.data
    check_loss(model.loss, data, model.recurrent)
    if isinstance(data, Mapping):
        model.fused = False
    with torch.no_grad(), forked(model.device), warnings.catch_warnings():
        # a checkpointed part says that it gets no gradients here, where there are none
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")
        # a loss of torch that compares each output with each target: it trains, on nonsense
        warnings.filterwarnings("error", "Using a target size")
        outputs = _tried(model, batch)
        value = _loss(model, outputs, data)
        model.shifted = _shifted(model, batch)
    if not isinstance(value, Tensor) or value.numel() != 1 or value.ndim:
        raise ConfigError(
            f"loss must return one number, the mean over the batch, got {_shape(value)}: "
            "use reduction='mean', or take .mean()"
        )
    _check_gradient(model, value, batch)
    _warn_of_habits(model, outputs, value, data)
    model.classes = _classes(model, outputs, data)
    _choose_ways(model, batch)


def _tried(model: Model, batch: Batch) -> Any:
    """The outputs for the batch. Sets whether the model draws random numbers."""
    before = _rng_state(model.device)
    try:
        outputs, memory = model._outputs(model.x0, batch, model.start())
    except Exception as cause:
        raise ConfigError(
            f"{_name(model)} cannot take a batch of shape {_shapes(batch.data)}: {cause}"
            + _of_inputs(model, batch.data, str(cause))
            + _channels(model, batch.data)
        ) from cause
    _check_buffers(model, memory.buffers)
    model.stochastic = not torch.equal(before, _rng_state(model.device))
    if model.stochastic:
        before = _rng_state(model.device)
        with randomness.KeyedDropout(batch.key):
            model._outputs(model.x0, batch, model.start())
        model.generator = not torch.equal(before, _rng_state(model.device))
    return outputs


def _channels(model: Model, data: Any) -> str:
    """The cure for colour pictures as they come from files, with their channels last."""
    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Conv2d)]
    first = None if isinstance(data, Mapping) else data[0]
    if not layers or not isinstance(first, Tensor) or first.ndim != 4:
        return ""
    if first.shape[1] != layers[0].in_channels == first.shape[3]:
        return "; torch wants channels first: .permute(2, 0, 1) where they are read"
    return ""


def _loss(model: Model, outputs: Any, data: Any) -> object:
    try:
        return model._loss_of(outputs, data)
    except ConfigError:
        raise
    except Exception as cause:
        if isinstance(data, Mapping):
            raise ConfigError(
                f"loss cannot be computed from the model's {type(outputs).__name__} and a batch "
                f"with {', '.join(map(repr, data))}: {cause}; it must be a function of (output, "
                "batch), or 'model' for the model's own loss"
            ) from cause
        raise ConfigError(
            f"loss cannot compare outputs {_shape(outputs)} with targets {_shape(data[-1])}: "
            f"{cause}{_of_targets(plain(model.loss), outputs, data[-1])}"
        ) from cause


NO_GRADIENT = (
    "loss cannot be differentiated: it does not depend on the parameters through operations that "
    "have gradients. Something like .detach(), .item(), torch.no_grad(), argmax or a conversion to "
    "integers is on the way; compute the loss from the outputs themselves, for example with "
    "F.cross_entropy"
)


def _check_gradient(model: Model, value: Tensor, batch: Batch) -> None:
    """Refuse a loss without a gradient. Each parameter is asked by itself, which also shows whether
    the model must be differentiated as a whole (`Model._gradients`)."""
    if not value.is_floating_point():
        raise ConfigError(f"{NO_GRADIENT} (it is a {value.dtype})")
    try:
        with forked(model.device):
            model.by_parts(tuple(model._parameters(model.x0).values()), batch, model.start())
    except ConfigError:
        raise
    except Exception as cause:
        raise ConfigError(f"{_name(model)}: the gradient cannot be computed: {cause}") from cause


def _warn_of_habits(model: Model, outputs: Any, value: Tensor, data: Any) -> None:
    """Say what trains, but not as its author thinks: a softmax before a cross entropy, and a loss
    that is a sum over the batch."""
    if isinstance(data, Mapping) or not isinstance(outputs, Tensor) or outputs.ndim < 2:
        return
    loss = plain(model.loss)
    entropy = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    if entropy and outputs.shape[1] > 1:
        total = outputs.sum(1)
        if bool((outputs >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3):
            log.warning(
                "%s returns probabilities: they are positive and sum to 1. Cross entropy takes "
                "logits and applies the softmax itself: leave out the model's own",
                _name(model),
            )
    with forked(model.device), contextlib.suppress(Exception):  # a loss that knows its batch size
        twice = tree.map(lambda leaf: torch.cat([leaf, leaf]), (outputs, tuple(data)))
        ratio = float(model._loss_of(*twice) / value)
        if abs(ratio - 2) < 1e-3:
            log.warning(
                "loss seems to be a sum over the batch: it is twice as large for twice the "
                "examples. fafed takes it for a mean, in step sizes and in what it reports: use "
                "reduction='mean'"
            )


def _of_inputs(model: Model, data: Any, cause: str) -> str:
    """The cure for numbers that are not floats."""
    floats = any(p.is_floating_point() for p in model.module.parameters())
    about_types = any(word in cause for word in ("dtype", "scalar type", "Input type"))
    parts = data.items() if isinstance(data, Mapping) else enumerate(data[:-1])
    for name, part in parts:
        if floats and isinstance(part, Tensor) and part.dtype in (torch.uint8, torch.bool):
            what = f"{name!r}" if isinstance(data, Mapping) else "the inputs"
            return f"; {what} hold {part.dtype}: give floats, such as pixels.float() / 255"
        if floats and about_types and isinstance(part, Tensor) and not part.is_floating_point():
            what = f"{name!r}" if isinstance(data, Mapping) else "the inputs"
            return f"; {what} hold {part.dtype}: give floats, such as inputs.float()"
    return ""


def _of_targets(loss: object, outputs: Any, targets: Any) -> str:
    """The cure for targets that a loss of torch does not take."""
    entropy = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    if isinstance(outputs, tuple) and outputs and isinstance(outputs[0], Tensor):
        return (
            "; the model returns several things: give a loss that chooses, such as lambda outputs, "
            "targets: F.cross_entropy(outputs[0], targets)"
        )
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return ""
    if entropy and outputs.shape == targets.shape:
        return (
            "; the targets have one number for each class: give class numbers, targets.argmax(1), "
            "or probabilities, targets.float()"
        )
    one_each = {(*targets.shape, 1): "targets[:, None]", targets.shape[:-1]: "targets[:, 0]"}
    if not entropy and outputs.shape in one_each and targets.shape[-1:] != outputs.shape[-1:]:
        return f"; both need the same shape: give {one_each[outputs.shape]}"
    whole = not targets.is_floating_point() and targets.dtype != torch.bool
    if entropy and whole and outputs.ndim > 1 and targets.dtype in (torch.int64, torch.uint8):
        classes, kept = outputs.shape[1], targets[targets != IGNORED]
        if len(kept) and not 0 <= kept.min() <= kept.max() < classes:
            return (
                f"; the model has {classes} outputs, so labels must be 0 to {classes - 1}, but the "
                f"first batch has labels from {int(kept.min())} to {int(kept.max())}"
            )
    if entropy and outputs.ndim == targets.ndim > 1 and targets.shape[1] == 1:
        return "; class numbers need no axis of their own: give targets[:, 0]" + (
            "" if targets.dtype == torch.int64 else ".long()"
        )
    floats = targets.is_floating_point()
    if outputs.is_floating_point() and (targets.dtype != outputs.dtype or (entropy and floats)):
        cure = "targets.long()" if entropy else "targets.float()"
        return f"; the targets are {targets.dtype}: give {cure}"
    return ""


def _shifted(model: Model, batch: Batch) -> bool:
    """Whether the model's own loss leaves out the first label of each row, because position i
    predicts label i + 1. Then labels that all are ignored but the first have no loss."""
    labels = labels_of(batch.data)
    if model.loss != MODEL or labels is None or labels.ndim < 2 or labels.is_floating_point():
        return False
    first = torch.full_like(labels, IGNORED)
    first[:, 0] = 0
    data = dict(batch.data) | {"labels": first}
    try:
        outputs, _ = model._outputs(model.x0, batch._replace(data=data), model.start())
        value = model._loss_of(outputs, data)
    except Exception:  # a model that cannot take such labels
        return False
    return not bool(torch.isfinite(value)) or float(value) == 0


def _classes(model: Model, outputs: Any, data: Any) -> int | None:
    """How many classes there are; None if labels are not class numbers."""
    labels = labels_of(data)
    if labels is None or labels.dtype != torch.int64:
        return None
    if model.loss == MODEL:
        scores = scores_of(outputs)
        known = scores is not None and scores.ndim > 1 and scores.shape[-1] > 1
        return scores.shape[-1] if scores is not None and known else None
    return outputs.shape[1] if model.loss is F.cross_entropy else None


def _choose_ways(model: Model, batch: Batch) -> None:
    """Choose the fast paths for this model that compute the same as torch."""
    with forked(model.device):
        if model.fused:
            model.fused = False
            why = agreement.of_switch(model, "fused", batch)
            model.fused = _agrees(model, "the loss that it computes itself", why)
        if isinstance(batch.data, Mapping):
            model.not_native = "batches are mappings"
            return
        model.channels_last = _likes_channels_last(model, batch)
        if model.amp is not None:
            model.not_native = "amp is set, and the network in C has one precision"
            return
        known = recognised(model.module, model.loss)
        if known is None or len(batch.data) != 2 or not known.takes(*batch.data):
            return
        if not build.available(known.dtype):
            model.network = known  # `not_native` says why it cannot be used
            return
        why = agreement.of_network(model, known, batch)
        if _agrees(model, "its network in C", why):
            model.network = known
            why = agreement.of_steps(model, known, batch)
            model.steps_in_c = _agrees(model, "its local steps in C", why)
        else:
            model.not_native = f"its network in C does not compute what torch does ({why})"


def _agrees(model: Model, way: str, why: str | None) -> bool:
    if why is not None:
        log.warning(
            "%s: %s does not compute what torch does and is not used (%s, on the first batch)",
            _name(model),
            way,
            why,
        )
    return why is None


def _check_buffers(model: Model, after: tuple[object, ...]) -> None:
    """A forward pass must keep type and shape of buffers: they are averaged over clients."""
    for name, old, new in zip(model.buffer_names, model.start().buffers, after, strict=True):
        if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
            raise ConfigError(
                f"{_name(model)} makes its buffer {name!r}, a {old.dtype} of "
                f"shape {_shape(old)}, {_described(new)}: a forward pass may change numbers, "
                "but neither shape nor type"
            )


def _likes_channels_last(model: Model, batch: Batch) -> bool:
    images = batch.data[0]
    if not isinstance(images, Tensor) or images.ndim != 4:
        return False
    if model.device.type != "cpu" or model.recurrent:
        return False
    layers = list(model.module.modules())
    if not any(isinstance(layer, nn.Conv2d) for layer in layers):
        return False
    # In this layout torch's gradients of BatchNorm lose three digits, and a residual network with
    # GroupNorm takes longer: its convolutions gain nothing, and each copies its weights.
    if any(isinstance(layer, _NormBase | nn.GroupNorm) for layer in layers):
        return False
    model.channels_last = True
    try:
        model._loss(model.x0, batch, model.start())
        model.channels_last = False
        why = agreement.of_switch(model, "channels_last", batch)
    except RuntimeError:  # code such as x.view(len(x), -1) needs the usual layout
        return False
    return _agrees(model, "images with their channels last", why)


def forked(device: torch.device) -> contextlib.AbstractContextManager[None]:
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _rng_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _name(model: Model) -> str:
    return type(model.module).__name__


def _shapes(data: Any) -> str:
    if isinstance(data, Mapping):
        return ", ".join(f"{name} {_shape(part)}" for name, part in data.items())
    return ", ".join(_shape(part) for part in data[:-1])


def _described(value: object) -> str:
    kind = f"a {value.dtype} of shape " if isinstance(value, Tensor) else "a "
    return kind + _shape(value)


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
