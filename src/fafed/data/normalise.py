"""Shared normalisation: an input becomes (value - centre) / width, the same for all clients.

Centre and width are the mean and the standard deviation of an input over the rows of all clients.
They are found in two exchanges: counts and sums, then sums of squared distances from the common
mean. So a large mean does not swallow a small deviation. An input that is constant has width 1.

A client's sums are whole numbers of the unit 2^-128, in limbs of 16 bits. Sums of whole numbers are
exact, so the order of the clients does not matter: simulation, ranks, silos and secure aggregation
find the same bits.

All rows of a client count, also those that are held out for evaluation. Otherwise two runs that
hold out other rows could be subtracted from each other, and the difference of a sum is a row.
Columns of a category, which are 0 or 1, stay as they are, and nothing about them is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fafed.data.sources.base import Indices
from fafed.data.sources.examples import Examples
from fafed.errors import ConfigError, DataError

Limbs = npt.NDArray[np.int64]  # (numbers, LIMBS)
UNIT = Fraction(1, 2**128)
BITS, LIMBS = 16, 20  # a number is below 2^(16 * 20 - 128)
LARGEST = 2.0**78  # of an input; the squares of 2^30 such inputs still fit
CONSTANT = 1e-9  # an input that varies less, in relation to its mean, is constant
MOST_INPUTS = 5000  # more would not fit into the head of a message


class Normalisation(NamedTuple):
    centre: tuple[float, ...]
    width: tuple[float, ...]

    def apply(self, inputs: Tensor) -> Tensor:
        """The inputs as the model sees them."""
        if inputs.ndim != 2 or inputs.shape[1] != len(self.centre):
            raise ConfigError(
                f"the inputs have the shape {list(inputs.shape)}, and {len(self.centre)} numbers "
                "in each row are normalised: give such rows"
            )
        centre, width = (torch.tensor(own, dtype=torch.float64) for own in self)
        return ((inputs.double() - centre) / width).to(inputs.dtype)

    def to_dict(self) -> dict[str, list[float]]:
        return {"centre": list(self.centre), "width": list(self.width)}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> Self:
        centre, width = _floats(content.get("centre")), _floats(content.get("width"))
        if len(centre) != len(width) or min(width) <= 0:
            raise ConfigError("each input needs a centre and a width above 0")
        return cls(centre, width)


def _floats(given: object) -> tuple[float, ...]:
    if isinstance(given, list) and 1 <= len(given) <= MOST_INPUTS:
        found = tuple(one for one in given if type(one) is float and abs(one) <= LARGEST)
        if len(found) == len(given):
            return found
    raise ConfigError("centre and width must be lists of numbers")


# One client.


def inputs_of(source: object) -> Tensor:
    """The inputs of all clients, one row for each example."""
    pool: Any = source.pool if isinstance(source, Examples) else None
    inputs: Tensor | None = pool[0] if isinstance(pool, tuple | list) else None
    if inputs is None or inputs.ndim != 2 or not inputs.is_floating_point():
        raise ConfigError(
            "data.normalise = 'shared' is for tables: a client has (inputs, targets) in memory, "
            "and its inputs are rows of floating-point numbers; leave it out for other data"
        )
    if inputs.shape[1] > MOST_INPUTS:
        raise ConfigError(
            f"data.normalise = 'shared' takes at most {MOST_INPUTS} inputs, got {inputs.shape[1]}: "
            "leave it out"
        )
    return inputs


def first(rows: Tensor, numbers: Sequence[bool] = ()) -> Limbs:
    """What a client sends in the first exchange: the number of its rows, and the sum of each
    input. `numbers` says which inputs are no columns of a category; by default all."""
    found = _numbers(rows, numbers)
    if found.size and np.abs(found).max() > LARGEST:
        raise DataError(
            f"an input is beyond {LARGEST:.0e} and cannot be normalised: give its column a scale "
            "in the table, or leave it out",
            fault="too large",
        )
    return to_limbs([float(len(found)), *found.sum(axis=0).tolist()])


def second(rows: Tensor, centre: Sequence[float], numbers: Sequence[bool] = ()) -> Limbs:
    """What a client sends in the second: the sums of squared distances from the common mean."""
    found = _numbers(rows, numbers)
    if len(centre) != found.shape[1] or not all(abs(one) <= LARGEST for one in centre):
        raise ConfigError(f"the centre must have {found.shape[1]} numbers")
    found -= np.where(_mask(found, numbers), np.asarray(centre, np.float64), 0.0)
    return to_limbs((found * found).sum(axis=0).tolist())


def _numbers(rows: Tensor, numbers: Sequence[bool]) -> npt.NDArray[np.float64]:
    found = rows.detach().cpu().double().numpy().copy(order="C")
    found[:, ~_mask(found, numbers)] = 0.0
    return found


def _mask(rows: npt.NDArray[np.float64], numbers: Sequence[bool]) -> npt.NDArray[np.bool_]:
    found = np.asarray(numbers, bool) if len(numbers) else np.ones(rows.shape[1], bool)
    if len(found) != rows.shape[1]:
        raise ConfigError(f"the rules of the table make {len(found)} inputs, got {rows.shape[1]}")
    return found


# All clients.


def centres(total: Limbs) -> tuple[int, tuple[float, ...]]:
    """The number of rows of all clients, and the mean of each input."""
    count, *sums = from_limbs(total)
    rows = int(count * UNIT)
    if rows < 1:
        raise DataError("the clients have no rows: there is nothing to normalise by")
    return rows, tuple(float(one * UNIT / rows) for one in sums)


def widths(total: Limbs, rows: int, centre: Sequence[float]) -> tuple[float, ...]:
    found = []
    for squares, mean in zip(from_limbs(total), centre, strict=True):
        if squares < 0:
            raise DataError("a sum of squares is negative: a client has sent wrong numbers")
        width = math.sqrt(float(squares * UNIT / rows))
        found.append(1.0 if width <= CONSTANT * abs(mean) else width)
    return tuple(found)


def shared(inputs: Tensor, parts: Sequence[Indices], numbers: Sequence[bool] = ()) -> Normalisation:
    """The normalisation of clients whose data is at hand, by the two exchanges."""
    clients = [inputs[torch.from_numpy(part)] for part in parts]
    total = sum((first(rows, numbers) for rows in clients), np.int64(0))
    count, centre = centres(np.asarray(total))
    total = sum((second(rows, centre, numbers) for rows in clients), np.int64(0))
    return Normalisation(centre, widths(np.asarray(total), count, centre))


def normalised(source: object, how: Normalisation) -> Examples:
    """The same clients with normalised inputs."""
    inputs_of(source)
    assert isinstance(source, Examples)
    inputs, *rest = source.pool
    source.pool = (how.apply(inputs), *rest)
    return source


# Numbers as limbs.


def to_limbs(values: Sequence[float]) -> Limbs:
    """Each number, rounded to the unit, as a sum of limb k times 2^(16 k) units. All limbs have
    the number's sign."""
    found = np.zeros((len(values), LIMBS), np.int64)
    for row, value in enumerate(values):
        whole = round(Fraction(value) / UNIT)
        digits = abs(whole).to_bytes(LIMBS * BITS // 8, "little")
        found[row] = np.frombuffer(digits, "<u2").astype(np.int64) * (-1 if whole < 0 else 1)
    return found


def from_limbs(total: Limbs) -> list[int]:
    """The sums of such numbers, in units."""
    return [sum(int(limb) << (BITS * k) for k, limb in enumerate(row)) for row in total]
