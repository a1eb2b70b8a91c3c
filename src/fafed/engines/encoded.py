"""The mean of the clients' messages by way of integers (`fafed.privacy.encoding`).

This is what secure aggregation computes, without its masks. Everything that a client answers is a
leaf of the sum: its message, its buffers, its loss and its counts. A client whose numbers are
beyond their bounds is absent from the exchange.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness, tree
from fafed.core.algorithm import AnyAlgorithm
from fafed.engines.answered import AnsweredMean, Answers
from fafed.engines.base import Counts, NobodyAnswered, RoundLost, Sent
from fafed.engines.mean import Mean
from fafed.errors import FafedError
from fafed.privacy.encoding import BeyondBound, Bounds, Encoding, largest_values, scaled_weights
from fafed.privacy.options import quorum

ATTEMPTS = 8  # how often an exchange is made again if all clients are needed and one is too large
LIMB = 2**16  # counts are sent in two parts, so that they are exact with 32 bits, too


class Encoder:
    """The encoding of one exchange: bounds, weights and keys."""

    def __init__(
        self, encoding: Encoding, bounds: Bounds, kind: str, weights: Sequence[float], *key: int
    ) -> None:
        """kind: which exchange of a round this is. Each has its own bounds. key: the seed and what
        else tells this exchange from all others."""
        self.encoding = encoding
        self.bounds = bounds
        self.kind = kind
        self.weights = weights
        self.key = key

    def exponents(self, sent: Sent) -> dict[str, int]:
        """The bound's exponent of each leaf. Buffers begin at the values of the server's model."""
        message, buffers = sent
        found = {
            f"{self.kind}.message.{name}": self.bounds.exponent(f"{self.kind}.message.{name}")
            for name in tree.flatten(message)
        }
        for i, leaf in enumerate(buffers):
            name = f"{self.kind}.buffers.{i}"
            start = max(largest_values(leaf.reshape(1, -1))) if name not in self.bounds.known else 0
            found[name] = self.bounds.exponent(name, start if math.isfinite(start) else 0.0)
        exact = self.encoding.fraction  # the unit is 1
        loss = f"{self.kind}.loss"
        return found | {loss: self.bounds.exponent(loss), "has_loss": 0, "counts": exact}

    def keys(self, clients: Sequence[int], leaf: int, device: torch.device) -> Tensor:
        key = randomness.keys("rounding", *self.key, leaf, np.asarray(clients))
        return randomness.tensor(key).to(device)


class EncodedMean(AnsweredMean):
    """The sum of encoded answers. `total` has one int64 vector for each leaf. It ends with the sum
    of the clients' largest values, from which the next bounds follow."""

    def __init__(self, encoder: Encoder, buffers: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.buffers = buffers  # of the server's model
        self.exponents: dict[str, int] = {}
        self.absent: set[int] = set()  # clients with numbers beyond their bounds
        self.beyond: set[str] = set()  # the leaves of these numbers
        self.reasons: list[str] = []  # their sizes and bounds; for the client alone

    def for_group(self, clients: Sequence[int]) -> EncodedMean:
        return EncodedMean(self.encoder, self.buffers)

    def answer(self, answers: Answers) -> None:
        rows = self._rows(answers)
        if self.total is None:
            self.start(tree.take(answers.sent, 0))
        how, here = self.encoder.encoding, list(answers.clients)
        largest = {name: largest_values(leaf) for name, leaf in rows.items()}
        for row, client in enumerate(here):
            for name, exponent in self.exponents.items():
                try:
                    how.check(name, largest[name][row], exponent)
                except BeyondBound as cause:
                    self.reasons.append(str(cause))
                    self.absent.add(client)
                    self.beyond.add(name)
        good = [row for row, client in enumerate(here) if client not in self.absent]
        if not good:
            return
        device = answers.losses.device
        chosen = torch.tensor(good, device=device)
        own = [self.encoder.weights[here[row]] for row in good]
        weights = torch.tensor(own, dtype=torch.float64, device=device)
        ones = torch.ones_like(weights)
        for i, (total, (name, exponent)) in enumerate(
            zip(tree.leaves(self.total), self.exponents.items(), strict=True)
        ):
            leaf = rows[name] if len(good) == len(here) else rows[name][chosen]
            keys = self.encoder.keys([here[row] for row in good], i, device)
            weighted = weights if name != "counts" else ones
            how.add(total[:-1], leaf, weighted, exponent, keys)
            sizes = torch.tensor([[largest[name][row]] for row in good], device=device)
            how.add(total[-1:], sizes.double(), ones, exponent, keys)

    def start(self, sent: Sent, vector: Tensor | None = None) -> None:
        """The sum of no answers. `sent` has the shape of one client's answer. `vector` is zero, and
        has room for all leaves."""
        self.like = tree.map(torch.empty_like, sent)
        self.exponents = self.encoder.exponents((sent[0], self.buffers))
        lengths = self.lengths(sent)
        device = tree.leaves(sent)[0].device if tree.leaves(sent) else None
        if vector is None:
            vector = torch.zeros(sum(lengths), dtype=torch.int64, device=device)
        self.total = torch.split(vector, lengths)  # type: ignore[assignment]

    def lengths(self, sent: Sent) -> list[int]:
        """Of the leaves of the sum. Each has the largest value at its end."""
        return [leaf.numel() + 1 for leaf in tree.leaves(sent)] + [2, 2, 6]

    def merge(self, other: Mean[Sent]) -> None:
        assert isinstance(other, EncodedMean)
        self.absent |= other.absent
        self.beyond |= other.beyond
        if self.total is None:
            self.total, self.like, self.exponents = other.total, other.like, other.exponents
        else:
            tree.map(Tensor.add_, self.total, other.total)

    @property
    def nbytes(self) -> int:
        """The bytes of one client's answer when sent."""
        numbers = sum(total.numel() for total in tree.leaves(self.total))
        return numbers * self.encoder.encoding.bits // 8

    def read(self, counts: Counts, clients: Sequence[int]) -> Sent:
        """The mean over these clients, which are those that are not absent. Their loss and their
        counts go into `counts`. The bounds of the next exchange follow from the sum."""
        how, weights = self.encoder.encoding, self.encoder.weights
        weight = math.fsum(weights[client] for client in clients)
        totals = dict(zip(self.exponents, tree.leaves(self.total), strict=True))
        number = torch.zeros(1, dtype=torch.float64)

        def value(name: str, at: slice = slice(0, 1)) -> float:
            part = totals[name][at].cpu()
            return float(how.decode(part, self.exponents[name], 1.0, number))

        names = list(self.exponents)[:-3]
        like = tree.leaves(self.like)
        means = [
            how.decode(totals[name][:-1], self.exponents[name], weight, leaf)
            for name, leaf in zip(names, like, strict=True)
        ]
        *_, loss, has_loss, every = self.exponents
        high_e, low_e, high_s, low_s, heard = how.signed(totals[every][:-1]).tolist()
        counts.evaluations, counts.samples = high_e * LIMB + low_e, high_s * LIMB + low_s
        counts.without_loss = len(clients) - heard
        counts.loss = value(loss)
        counts.without_weight = weight - value(has_loss) if counts.without_loss else 0.0
        for name in (*names, loss):
            self.encoder.bounds.settle(name, value(name, slice(-1, None)) / len(clients))
        return tree.rebuilt(self.like, means)  # type: ignore[return-value]

    def check_sum(self, clients: Sequence[int]) -> None:
        """Refuse a sum that clients within their bounds cannot have. Under masks nobody sees whose
        numbers are too large. So this is all that bounds a client that does not check itself."""
        how = self.encoder.encoding
        for name, total in zip(self.exponents, tree.leaves(self.total), strict=True):
            most = len(clients) * (2**how.fraction + 1)  # weights are at most 1
            low, high = torch.aminmax(how.signed(total))
            if int(high) > most or int(low) < -most:
                raise FafedError(f"the sum of leaf {name} is beyond its bound")

    def _rows(self, answers: Answers) -> dict[str, Tensor]:
        count, kind = len(answers.clients), self.encoder.kind
        message, buffers = answers.sent
        rows = {f"{kind}.message.{n}": leaf for n, leaf in tree.flatten(message).items()}
        rows |= {f"{kind}.buffers.{i}": leaf for i, leaf in enumerate(buffers)}
        facts = [*divmod(answers.evaluations, LIMB), *divmod(answers.samples, LIMB)]
        heard = answers.has_loss.reshape(-1, 1)
        counts = torch.tensor(facts, device=heard.device).expand(count, 4)
        rows |= {f"{kind}.loss": answers.losses, "has_loss": heard.double()}
        rows |= {"counts": torch.cat([counts, heard.to(counts.dtype)], 1)}
        return {name: leaf.detach().reshape(count, -1) for name, leaf in rows.items()}


class Encoded:
    """The encoding of a whole run: its bounds, from round to round."""

    def __init__(
        self, encoding: Encoding, algorithm: AnyAlgorithm, weights: Sequence[float], seed: int
    ) -> None:
        encoding.check_silos(len(weights))
        self.encoding = encoding
        self.algorithm = algorithm
        self.weights = scaled_weights(weights)
        self.seed = seed
        self.bounds = Bounds(encoding)  # after the last finished round
        self.pending = self.bounds.copy()
        self.grown: dict[str, int] = {}  # bounds that had to grow in this round
        self.place = 0  # of the exchange in its round

    def encoder(self, step: int, opening: bool) -> Encoder:
        first = len(self.algorithm.opening()) if opening else 0
        at = self.place
        kind = f"opening {at}" if at < first else f"round {at - first}"
        return Encoder(self.encoding, self.pending, kind, self.weights, self.seed, step, at)

    def too_large(self, mean: EncodedMean) -> bool:
        """Whether the exchange must be made again with larger bounds: an algorithm that needs all
        clients cannot do without the one that is too large."""
        if not (mean.absent and self.algorithm.requires_all_clients):
            return False
        self.grow(mean)
        return True

    def grow(self, mean: EncodedMean) -> None:
        """Make the bounds larger that a client was beyond."""
        for name in sorted(mean.beyond):
            self.pending.grow(name, mean.exponents[name])
            self.grown[name] = self.pending.known[name]

    def finish(self, mean: EncodedMean, counts: Counts, clients: Sequence[int]) -> Sent:
        """After an exchange with these clients: the mean over those that are not absent."""
        answered = [client for client in clients if client not in mean.absent]
        if len(answered) < quorum(len(clients)):
            self.grow(mean)
            raise NobodyAnswered(
                f"{len(answered)} of {len(clients)} clients have answered within the bounds of "
                f"their messages, a secure sum needs {quorum(len(clients))}"
            )
        if self.place and len(answered) < len(clients):
            self.grow(mean)
            raise RoundLost(
                f"{len(answered)} of {len(clients)} clients have answered in a later exchange of "
                "the round, and the sums of the earlier ones cannot be made again"
            )
        found = mean.read(counts, answered)
        self.grow(mean)
        self.place += 1
        return found

    def commit(self) -> None:
        self.bounds, self.grown, self.place = self.pending.copy(), {}, 0

    def rollback(self) -> None:
        """The bounds return to those before the round, but for those that had to grow."""
        self.pending, self.place = self.bounds.copy(), 0
        self.pending.known |= self.grown

    def notes(self) -> dict[str, list[int | str]]:
        return {"bounds": [part for pair in sorted(self.bounds.known.items()) for part in pair]}

    def restore(self, notes: dict[str, list[int | str]]) -> None:
        flat = notes.get("bounds", [])
        known = {str(name): int(e) for name, e in zip(flat[::2], flat[1::2], strict=True)}
        self.bounds = Bounds(self.encoding, known)
        self.pending, self.place = self.bounds.copy(), 0
