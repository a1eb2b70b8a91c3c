"""Random numbers as a function of their purpose, never of the order of calls.

A key is a 64-bit hash of a purpose and a few integers (seed, client, step, ...). NumPy draws data
and torch draws dropout masks. Both use the same mixing function (splitmix64). So a draw is the same
in every engine, on every device, and in every version of NumPy and torch.
"""

from __future__ import annotations

import contextlib
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_STEP = 0x9E3779B97F4A7C15
_ONE = 0xBF58476D1CE4E5B9
_TWO = 0x94D049BB133111EB

Keys = NDArray[np.uint64]

# The generators that a whole process shares: torch's on the CPU, NumPy's and Python's. Whoever
# seeds one of them holds this lock until it has drawn.
GENERATORS = threading.RLock()


def keys(purpose: str, *numbers: ArrayLike) -> Keys:
    """The key of (purpose, numbers). Numbers are integers or arrays, which are broadcast."""
    key = _mix(np.uint64(zlib.crc32(purpose.encode())))
    for number in numbers:
        key = _mix(key ^ _mix(np.asarray(number).astype(np.uint64)))
    return key


def _mix(z: ArrayLike) -> Keys:
    with np.errstate(over="ignore"):
        y = np.asarray(z, dtype=np.uint64) + np.uint64(_STEP)
        y = (y ^ (y >> np.uint64(30))) * np.uint64(_ONE)
        y = (y ^ (y >> np.uint64(27))) * np.uint64(_TWO)
        return np.asarray(y ^ (y >> np.uint64(31)), dtype=np.uint64)


def permutations(key: Keys, n: int) -> NDArray[np.int64]:
    """One permutation of 0..n-1 for each key: shape key.shape + (n,)."""
    order = keys("permutation", key[..., None], np.arange(n))
    return np.argsort(order, axis=-1, kind="stable")


def uniform(key: Keys) -> NDArray[np.float64]:
    """A number in [0, 1) for each key."""
    return (key >> np.uint64(11)).astype(np.float64) * 2.0**-53


def tensor(key: Keys) -> Tensor:
    """The keys as int64, which torch supports."""
    return torch.from_numpy(np.ascontiguousarray(key).view(np.int64))


@contextlib.contextmanager
def shared_generators() -> Iterator[Callable[[int], None]]:
    """In this context, only this thread seeds the generators of the process: the function that it
    gives does so, with a key. Afterwards they are as they were before."""
    with GENERATORS:
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            yield _seed
        finally:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])


def _seed(key: int) -> None:
    key %= 1 << 64
    torch.default_generator.manual_seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])  # noqa: NPY002
    random.seed(key)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(z: Tensor, bits: int) -> Tensor:
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)  # torch shifts arithmetically


def _mix_torch(z: Tensor) -> Tensor:
    z = z + _signed(_STEP)
    z = (z ^ _shifted(z, 30)) * _signed(_ONE)
    z = (z ^ _shifted(z, 27)) * _signed(_TWO)
    return z ^ _shifted(z, 31)


def mixed(key: Tensor, numbers: Tensor) -> Tensor:
    """A key for each number: a function of the key and the number alone."""
    return _mix_torch(key ^ _mix_torch(numbers))


def uniform_at(key: Tensor, places: Tensor) -> Tensor:
    """A number in [0, 1) for each place: a function of the key and the place alone."""
    mixed = _mix_torch(_mix_torch(places) ^ key)
    return _shifted(mixed, 11).to(torch.float64) * 2.0**-53


_BLOCK = 2**15  # positions that are mixed at a time: their numbers stay in the cache
_KEPT = 2**22  # positions whose first mixing is kept: 32 MB for each device
_places: dict[torch.device, Tensor] = {}


def keep_mask(key: Tensor, shape: torch.Size, p: float) -> Tensor:
    """True with probability 1 - p: a function of the key and the position alone."""
    least, size = int(p * 2**31), shape.numel()
    parts = []
    for start in range(0, max(size, 1), _BLOCK):
        z = key ^ _mixed_places(start, min(start + _BLOCK, size), key.device)
        parts.append(_upper_31_bits(z) >= least)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(shape)


def _mixed_places(start: int, end: int, device: torch.device) -> Tensor:
    """The positions start .. end-1, mixed. They are the same for every mask."""
    if end > _KEPT:
        return _mix_torch(torch.arange(start, end, device=device))
    kept = _places.get(device)
    if kept is None or len(kept) < end:
        size = min(_KEPT, max(_BLOCK, 2 * end))
        kept = _places[device] = _mix_torch(torch.arange(size, device=device))
    return kept[start:end]


def _upper_31_bits(z: Tensor) -> Tensor:
    """Those of `_mix_torch(z)`. It overwrites z, which is faster."""
    z += _signed(_STEP)
    z ^= _shifted(z, 30)
    z *= _signed(_ONE)
    z ^= _shifted(z, 27)
    z *= _signed(_TWO)
    return _shifted(z, 33)  # the last step of the mixing does not change these


_WHOLE = (F.dropout, torch.dropout, torch.dropout_)
_CHANNELS = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_)
# dimensions of one that comes without its batch
_ONE_EXAMPLE: dict[Callable[..., object], int] = {F.dropout1d: 2, F.dropout3d: 4}
_IN_PLACE = (torch.dropout_, torch.feature_dropout_)


class KeyedDropout(TorchFunctionMode):
    """In this context, every dropout draws its mask from `key` and its position in the forward
    pass. Unlike torch's own generator, this works under vmap, with a key per client.

    It drops what torch drops: single numbers, or whole channels. `dropout1d` takes (channels,
    length) as one example, and `dropout3d` (channels, depth, height, width). `dropout2d` takes
    three dimensions as (examples, channels, length). Alpha dropout uses torch's generator.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.calls = 0
        self.last: int | None = None  # the number of calls in the forward pass, once it has ended
        self.recomputed = False  # whether the backward pass has called a dropout

    def end_forward(self) -> None:
        """What follows is the backward pass. It calls a dropout only if a part of the model is
        computed again (torch.utils.checkpoint)."""
        self.last = self.calls

    def _position(self) -> int:
        """The number of this call in the forward pass."""
        self.recomputed = self.last is not None
        self.calls += 1
        return self.calls

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func in _WHOLE or func in _CHANNELS:
            return self._dropout(func, *args, **(kwargs or {}))
        if func is torch.autograd.backward and self.last is not None and kwargs is not None:
            with self:  # of a checkpointed part, inside a backward pass
                return backward(args[0], kwargs["grad_tensors"])
        return func(*args, **(kwargs or {}))

    def _dropout(
        self,
        func: Callable[..., object],
        input: Tensor,
        p: float = 0.5,
        train: bool = True,  # the name in torch.dropout, which has no `training`
        *,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not (training and train) or p == 0.0:
            return input
        key = _mix_torch(self.key + self._position())
        shape = input.shape
        if func in _CHANNELS:
            channels = 1 if input.ndim == _ONE_EXAMPLE.get(func) else 2
            shape = torch.Size([*shape[:channels], *(1 for _ in shape[channels:])])
        kept = keep_mask(key.to(input.device), shape, p)
        scale = 1 / (1 - p) if p < 1 else 0.0
        if inplace or func in _IN_PLACE:
            return input.mul_(kept).mul_(scale)
        return input * kept * scale


def backward(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor] = ()
) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad, or without inputs torch.autograd.backward, but inside a KeyedDropout:
    these switch it off, and a part of the model that is computed again would not see it. Inputs
    that were not used have the gradient None."""
    engine: Any = torch.autograd.Variable._execution_engine
    found: tuple[Tensor | None, ...] = engine.run_backward(
        tuple(outputs),
        tuple(gradients),
        False,
        False,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=not inputs,
    )
    return found


class ReplayedDropout(KeyedDropout):
    """The same masks for a model that is computed again in the backward pass.

    Only torch.utils.checkpoint knows which part of the model it computes again. It saves the state
    of torch's generator before this part, and restores it for the second time. So the number of the
    call is kept there, in the generator's seed. Threads share the generator: only one may be here
    at a time.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__(key)
        self.start = torch.default_generator.initial_seed()

    def end_forward(self) -> None:
        self.last = self._calls()

    def _calls(self) -> int:
        return (torch.default_generator.initial_seed() - self.start) % 2**64

    def _position(self) -> int:
        calls = self._calls() + 1
        if self.last is not None and calls > self.last:
            raise RuntimeError(
                "a part of the model that is computed again draws other dropout masks than before: "
                "use torch.utils.checkpoint with preserve_rng_state=True, its default"
            )
        torch.default_generator.manual_seed((self.start + calls) % 2**64)
        return calls
