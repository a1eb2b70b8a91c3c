"""Copies of a module: the user's own is never changed, and each worker thread needs one."""

from __future__ import annotations

import copy
import inspect
import logging
import sys

import torch
from torch import Tensor, nn

from fafed.errors import ConfigError

log = logging.getLogger("fafed")


def copied(module: nn.Module, same: dict[int, object] | None = None) -> nn.Module:
    """A deep copy. Weights that a module computes before each call (pruning, weight norm) are
    detached first: torch refuses to copy tensors that have a graph."""
    memo = dict(same or {})
    for owner in list(module.modules()):
        if _is_compiled(owner):
            memo[id(owner)] = copy.deepcopy(owner._orig_mod, memo)
    for owner in module.modules():
        for value in vars(owner).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def uncompiled(module: nn.Module) -> nn.Module:
    """The module inside a compiled one. fafed trains it without the compiler: a compiled module
    keeps its own parameters, and would compute with them instead of those of the vector. The copies
    of parts that are compiled are not compiled, either (`copied`)."""
    parts = [name or "the model" for name, part in module.named_modules() if _is_compiled(part)]
    if parts:
        log.info(
            "%s: compiled by torch.compile, trained without the compiler: %s; you can compile the "
            "trained model",
            type(module).__name__,
            ", ".join(parts),
        )
    while _is_compiled(module):
        module = module._orig_mod  # type: ignore[assignment]
    return module


def _is_compiled(module: nn.Module) -> bool:
    compiler = sys.modules.get("torch._dynamo.eval_frame")  # importing it takes a second
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def moved(module: nn.Module, device: torch.device | str | None) -> nn.Module:
    try:
        return module.to(None if device is None else torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as cause:  # no such device, or no CUDA
        raise ConfigError(f"device {str(device)!r} cannot be used: {cause}; try 'cpu'") from cause


def refuse_what_a_copy_loses(module: nn.Module) -> None:
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


def aliases(module: nn.Module, known: set[str]) -> dict[str, str]:
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
