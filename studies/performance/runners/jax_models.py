"""The models in JAX: the parameters of `plain_models` in the same order, as a list of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

Parameters = Sequence[Any]
Model = tuple[list[tuple[int, ...]], Callable[[Parameters, Any], Any]]  # shapes, logits


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return x @ weight.T + bias


def _conv(x: Any, weight: Any, bias: Any, padding: str) -> Any:
    return lax.conv_general_dilated(x, weight, (1, 1), padding) + bias[:, None, None]


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _flat(x: Any) -> Any:
    return x.reshape(len(x), -1)


def _fashion_cnn() -> Model:
    def logits(p: Parameters, x: Any) -> Any:
        x = _pool(jnp.tanh(_conv(x, p[0], p[1], "VALID")))
        x = _pool(jnp.tanh(_conv(x, p[2], p[3], "VALID")))
        return _linear(jnp.tanh(_linear(_flat(x), p[4], p[5])), p[6], p[7])

    convolutions: list[tuple[int, ...]] = [(5, 1, 3, 3), (5,), (10, 5, 3, 3), (10,)]
    return [*convolutions, (100, 250), (100,), (10, 100), (10,)], logits


def _cifar_cnn() -> Model:
    def logits(p: Parameters, x: Any) -> Any:
        for i in (0, 2, 4):
            x = _pool(jax.nn.relu(_conv(x, p[i], p[i + 1], "SAME")))
        x = jax.nn.relu(_linear(_flat(x), p[6], p[7]))
        return _linear(jax.nn.relu(_linear(x, p[8], p[9])), p[10], p[11])

    convolutions: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (32, 16, 3, 3), (32,)]
    convolutions += [(64, 32, 3, 3), (64,)]
    return [*convolutions, (512, 1024), (512,), (64, 512), (64,), (10, 64), (10,)], logits


def _mlp(inputs: int = 784, hidden: Sequence[int] = (200,), outputs: int = 10) -> Model:
    (width,) = hidden

    def logits(p: Parameters, x: Any) -> Any:
        return _linear(jax.nn.relu(_linear(_flat(x), p[0], p[1])), p[2], p[3])

    return [(width, inputs), (width,), (outputs, width), (outputs,)], logits


def _softmax(inputs: int = 784, outputs: int = 10) -> Model:
    return [(outputs, inputs), (outputs,)], lambda p, x: _linear(_flat(x), *p)


MODELS: dict[str, Callable[..., Model]] = {
    "fashion-cnn": _fashion_cnn,
    "cifar-cnn": _cifar_cnn,
    "mlp": _mlp,
    "softmax": _softmax,
}


def loss(logits: Any, targets: Any) -> Any:
    """The mean cross entropy."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1)
    return -jnp.mean(chosen)


def split(x: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The vector as a list of arrays."""
    ends = np.cumsum([prod(shape) for shape in shapes])
    parts = np.split(x, ends)
    assert len(parts.pop()) == 0, "the vector has other parameters than the model"
    return [jnp.asarray(part.reshape(s)) for part, s in zip(parts, shapes, strict=True)]


def vector(parameters: Parameters) -> NDArray[Any]:
    return np.concatenate([np.asarray(part).ravel() for part in parameters])
