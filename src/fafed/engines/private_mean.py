"""The private mean of the clients' messages, for differential privacy of a whole client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX, RoundInfo, exchanges_of_round
from fafed.core.gradient import zero_grad
from fafed.core.tree import Tree
from fafed.engines.answered import AnsweredMean, Answers
from fafed.engines.base import Sent
from fafed.engines.mean import Mean
from fafed.privacy.accounting import Rehearsed
from fafed.privacy.clients import ClientNoise


class PrivateMean(AnsweredMean):
    """Clips each message, adds up, and adds noise (`fafed.privacy.clients`). `total` has one vector
    for each leaf of the message: float64, or int64 with secure sums."""

    def __init__(
        self,
        rule: ClientNoise,
        reference: Tree,
        squares: Sequence[str],
        invited: int,
        key: str,
        clients: Sequence[int] = (),
    ) -> None:
        """reference: the message of a client without data. clients: those that will be added."""
        super().__init__()
        self.rule = rule
        self.reference = reference
        self.squares = squares  # leaves that are never negative
        self.invited = invited
        self.key = key
        self.clients = clients
        names = tree.flatten(reference)
        kind = torch.int64 if rule.secure else torch.float64
        self.leaves = {
            name: torch.zeros(leaf.numel(), dtype=kind, device=leaf.device)
            for name, leaf in names.items()
        }
        self.total = tuple(self.leaves.values())  # type: ignore[assignment]

    def for_group(self, clients: Sequence[int]) -> PrivateMean:
        return PrivateMean(self.rule, self.reference, self.squares, self.invited, self.key, clients)

    def answer(self, answers: Answers) -> None:
        message, _ = answers.sent
        start = tree.flatten(self.reference)
        rows = {
            name: (leaf.detach() - start[name]).reshape(len(answers.clients), -1)
            for name, leaf in tree.flatten(message).items()
        }
        clipped = self.rule.clipped(rows)
        if self.rule.secure:
            added = self.rule.encoded(clipped, self.clients, self.invited, self.key)
        else:
            added = {name: leaf.sum(0) for name, leaf in clipped.items()}
        for name, leaf in added.items():
            self.leaves[name] += leaf

    def merge(self, other: Mean[Sent]) -> None:
        tree.map(Tensor.add_, self.total, other.total)

    @property
    def nbytes(self) -> int:
        """The bytes of one client's message. A clipped message is not a compressed one."""
        return tree.nbytes(self.total if self.rule.secure else self.reference)

    def value(self) -> Sent:
        found = []
        like = tree.flatten(self.reference)
        totals = zip(like, tree.leaves(self.total), strict=True)
        for name, total in totals:
            own = like[name]
            mean = own + self.rule.mean(name, total, self.key).view(own.shape)
            if name.split(".")[-1] in self.squares:
                mean = mean.clamp(min=0)
            found.append(mean.to(own.dtype))
        return tree.rebuilt(self.reference, found), ()


def parts_of_messages(algorithm: AnyAlgorithm, x: Tensor, steps: int, population: int) -> set[str]:
    """The names of the parts of all messages of a round, in a rehearsal without data."""
    shared: HasX = algorithm.init(torch.zeros_like(x))
    local: Tree = algorithm.join(torch.zeros_like(x))
    found: set[str] = set()
    for exchange in exchanges_of_round(algorithm, opening=True):
        local, message = visit_without_data(exchange, exchange.send(shared), local, steps)
        found |= set(tree.flatten(message))
        made = steps if "round" in exchange.draw else 0
        shared = exchange.server(shared, message, RoundInfo(population, population, made, 1.0))
    return found


def visit_without_data(
    exchange: Exchange, down: HasX, local: Tree, steps: int
) -> tuple[Tree, Tree]:
    """The new state and the message of a client without data: one whose gradients are all zero.
    Everyone can compute it. Where the message is not finite, zero takes its place."""
    local, message = exchange.client(zero_grad, down, local, Rehearsed(steps))
    return local, tree.map(lambda leaf: torch.nan_to_num(leaf.detach(), 0.0, 0.0, 0.0), message)
