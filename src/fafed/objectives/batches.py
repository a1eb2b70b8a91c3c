"""The two forms of a batch, and how a module is called with each.

A tuple (inputs..., targets) is called by position: `module(*inputs)`. The loss is a function of
(outputs, targets).

A mapping such as {"input_ids", "attention_mask", "labels"} is called by name: `module(**batch)`.
The loss is the model's own, `output.loss` (loss="model"), or a function of (output, batch).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fafed.core import tree
from fafed.errors import ConfigError

MODEL = "model"  # the loss that the model computes itself


def arguments(data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the module is called with: by position, and by name."""
    if isinstance(data, Mapping):
        return (), dict(data)
    return tuple(data[:-1]), {}


def compared(data: Any) -> Any:
    """The second argument of a loss or a metric: the targets, or the whole mapping."""
    return data if isinstance(data, Mapping) else data[-1]


def examples_in(data: Any) -> int:
    return len(tree.leaves(data)[0])


def own_loss(output: Any) -> Tensor:
    """The loss in what a model returned."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise ConfigError(
            f"loss='model', but the model returned a {type(output).__name__} without a loss: "
            "models of transformers return one if the batch has 'labels'; or give a function of "
            "(output, batch) as loss"
        )
    return loss  # type: ignore[no-any-return]


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """F.mse_loss, also for outputs (examples, 1) and targets (examples,), and for whole numbers."""
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    return F.mse_loss(outputs, targets.to(outputs.dtype))


def scores_of(output: Any) -> Tensor | None:
    """The outputs of a model for each class, in what it returned."""
    found = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", None) if found is None else found
    if found is None and isinstance(output, Tensor):
        found = output
    return found if isinstance(found, Tensor) else None


def plain(function: object) -> object:
    """The function inside a functools.partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def check_callable(loss: object) -> None:
    """Refuse what is no loss, with what to write in place of a class or a name."""
    if loss == MODEL or (callable(loss) and not isinstance(loss, type)):
        return
    cure = f": write {loss.__name__}()" if isinstance(loss, type) else ""
    for name in (str(loss).lower(), f"{str(loss).lower()}_loss"):
        if name.endswith(("_loss", "entropy")) and hasattr(F, name):
            cure = f": write torch.nn.functional.{name}"
    raise ConfigError(
        "loss must be a function of (outputs, targets), or 'model' for the model's own, got "
        f"{loss!r}{cure}"
    )


def check_loss(loss: object, data: Any, recurrent: bool) -> None:
    """Refuse a loss that does not fit the form of the batches."""
    if not isinstance(data, Mapping):
        if loss == MODEL:
            raise ConfigError(
                "loss='model' needs batches that are mappings, such as {'input_ids': ..., "
                "'labels': ...}: the clients' data are tuples (inputs, targets); give mappings, or "
                "a function of (outputs, targets) as loss"
            )
        return
    if recurrent:
        raise ConfigError(
            "a module with initial_state is called with (inputs..., state): the clients' data must "
            "be tuples (inputs..., targets), but they are mappings with "
            f"{', '.join(map(repr, data))}"
        )
    if loss != MODEL and _of_targets(plain(loss)):
        raise ConfigError(
            f"loss={_name(plain(loss))} compares outputs with targets, but the clients' data are "
            f"mappings with {', '.join(map(repr, data))}: use loss='model' for the model's own "
            "loss, or a function of (output, batch), for example "
            "lambda output, batch: F.cross_entropy(output.logits, batch['labels'])"
        )


def _of_targets(loss: object) -> bool:
    """Whether this is a loss of torch, or a function whose second argument is called targets."""
    if isinstance(loss, nn.modules.loss._Loss):
        return True
    if getattr(F, getattr(loss, "__name__", ""), None) is loss:
        return True
    return _second(loss) in ("target", "targets")


def _second(function: object) -> str | None:
    try:
        names = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return names[1] if len(names) > 1 else None


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
