"""The plain arguments of a run, and what each of them may be.

`fafed.train`, `Run`, an experiment file and the data sources all ask here, so a rule exists once.
NumPy's numbers are accepted wherever Python's are, and become Python's.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from fafed.core.hyper import Rule, above, at_least, integer, optional
from fafed.core.plain import number, plain
from fafed.errors import ConfigError

T = TypeVar("T")

LARGEST_SEED = 2**63 - 1


def _whole(value: object) -> bool:
    return value == "full" if isinstance(value, str) else integer(1).test(value)


_POSITIVE = Rule("a positive integer", integer(1).test)
_SIZE = Rule("a positive integer or 'full'", _whole)
_SEED = Rule("an integer from 0 to 2**63 - 1", lambda v: integer(0).test(v) and v <= LARGEST_SEED)
_PROBABILITY = Rule("a probability in [0, 1)", lambda v: number(v) and 0 <= v < 1)


class Argument(NamedTuple):
    rule: Rule
    about: str


ARGUMENTS = {
    "rounds": Argument(_POSITIVE, "how many rounds the run has"),
    "local_steps": Argument(_POSITIVE, "how many steps a client makes in a round"),
    "batch_size": Argument(_SIZE, "how many examples a local step uses"),
    "opening_batch_size": Argument(
        optional(_SIZE), "how many examples the first estimate uses; None: all of a round"
    ),
    "seed": Argument(_SEED, "every random draw follows from it"),
    "eval_every": Argument(_POSITIVE, "how many rounds lie between two evaluations"),
    "eval_batch_size": Argument(
        optional(_POSITIVE), "how many examples a forward pass of an evaluation has"
    ),
    "checkpoint_every": Argument(_POSITIVE, "how many rounds lie between two checkpoints"),
    "workers": Argument(optional(_POSITIVE), "how many threads run clients; None: one per core"),
    "threads": Argument(_POSITIVE, "how many torch threads each worker has"),
    "failure": Argument(_PROBABILITY, "how often an invited client fails"),
    "clip": Argument(optional(above(0)), "it bounds the norm of a gradient"),
    "sam": Argument(at_least(0), "the gradient is taken so far away"),
    "weight_decay": Argument(at_least(0), "this multiple of x is added to a gradient"),
}


DEFAULTS = ("local_steps",)  # these may be None in a call


def checked(name: str, value: T) -> T:
    """The value of this argument, as a plain Python number. Raises ConfigError if it is wrong."""
    found: T = plain(value)
    rule, about = ARGUMENTS[name]
    if not rule.allows(found):
        raise ConfigError(f"{name} must be {rule}, got {found!r}: {about}")
    return found


def checked_all(given: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call, with plain numbers. One that is left out, as None, keeps its
    default."""
    return {
        name: checked(name, value)
        if name in ARGUMENTS and (value is not None or name not in DEFAULTS)
        else plain(value)
        for name, value in given.items()
    }
