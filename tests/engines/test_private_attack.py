"""An attack on private gradients: was one example in the data or not?

There are many runs, and half of them have the victim among their examples. The attacker sees every
private gradient of a run, and gives the run a score. From how often scores are above a threshold
with and without the victim follows a lower bound of epsilon (Jagielski et al. 2020,
https://arxiv.org/abs/2006.07709). It must stay below the epsilon that is printed. The same attack
must succeed against code that is wrong.

All runs are computed as one: x has D coordinates for each run, and an example's gradient lies in
those of its own run. Samples and noise are drawn for each example and each number on their own, so
the runs are independent.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta

from fafed.core.batch import Batch
from fafed.data.sources.examples import Examples
from fafed.data.sources.poisson import Poisson, Sample
from fafed.engines.private import Private
from fafed.objectives.function import Function
from fafed.privacy.accounting import Accountant, RoundCosts, Use

RUNS = 6000  # with the victim, and as many without
D = 21  # examples pull along the first coordinate of their run; the others have noise alone
DELTA = 0.01
SURE = 0.01  # the probability that a bound is wrong


@dataclass
class Game:
    """What the attacker knows."""

    others: int  # examples of a run beside the victim
    size: int  # of a batch, expected
    noise: float
    looks: int = 1  # gradients on the same batch; FAFED takes two

    @property
    def rate(self):
        return self.size / (self.others + 1)

    def printed(self):
        costs = RoundCosts(*[Counter({Use("round", self.looks): 1})] * 2)
        rates = [{"round": self.rate}]
        return Accountant(
            costs, rates, noise=self.noise, delta=DELTA, invited=lambda round: [0]
        ).epsilon(1)

    @property
    def pool(self):
        """The others pull one way, the victim, the last example of a run, the other way."""
        pulls = torch.ones(2 * RUNS, self.others + 1, dtype=torch.float64)
        pulls[:, -1] = -1.0
        return (pulls.flatten(),)

    def parts(self):
        """The rows of each run. The second half is without the victim."""
        rows = np.arange(2 * RUNS * (self.others + 1)).reshape(2 * RUNS, -1)
        return [own if run < RUNS else own[:-1] for run, own in enumerate(rows)]

    def poisson(self):
        base = Examples(self.pool, [np.concatenate(self.parts())], batch_size=1)
        own = Poisson(base, lambda n, rate: n)
        own._rate = lambda client, size: self.rate  # public, like the number of examples
        (batch,) = own.batches(own.draw(("round",), 0, 0, 1))
        return batch._replace(data=batch.data._replace(expected=torch.tensor(self.size)))

    def epochs(self):
        """Wrong: batches of one size, from examples in random order."""
        rows = []
        for own in (self.parts()[:RUNS], self.parts()[RUNS:]):
            base = Examples(self.pool, own, batch_size=self.size)
            rows.append(base.draw_stacked(("round",), range(RUNS), 0, 1).round.rows.flatten())
        chosen = torch.cat(rows)
        data = Sample((self.pool[0][chosen],), chosen, torch.tensor(self.size))
        return Batch(data, torch.tensor(7), torch.tensor(True))

    def seen(self, kind, batch):
        """What the attacker sees: (runs, looks, D)."""
        f = Function(lambda x, data: x.sum(), torch.zeros(2 * RUNS * D, dtype=torch.float64))
        own = kind(f, noise=self.noise, clip=1.0, seed=0)
        own.game = self
        visit, memory = own.for_visit(), own.start()
        looks = [visit.evaluate(f.x0, batch, memory).gradient for _ in range(self.looks)]
        return torch.stack(looks).view(self.looks, 2 * RUNS, D).transpose(0, 1).numpy()


class Pulls(Private):
    """Examples whose gradients have norm one: there is nothing to clip."""

    def combined_sum(self, points, batch, memory):
        ((x, _),), ((pulls,), rows, _) = points, batch.data
        total = torch.zeros_like(x).view(-1, D)
        total[:, 0].index_add_(0, rows // (self.game.others + 1), pulls)
        return total.flatten()


class Exact(Pulls):
    """Wrong: the second gradient on a batch has no noise."""

    def _with_noise(self, x, batch, memory):
        first = not self.looks[int(batch.key)]
        found = super()._with_noise(x, batch, memory)
        exact = self.clipped_sum(x, batch, memory) / batch.data.expected
        return found if first else found._replace(gradient=exact)


class ActualSize(Pulls):
    """Wrong: the sum is divided by the actual size of the batch."""

    def _with_noise(self, x, batch, memory):
        rows = batch.data.rows
        run = rows[rows >= 0] // (self.game.others + 1)
        size = torch.bincount(run, minlength=2 * RUNS).clamp(min=1).repeat_interleave(D)
        data = batch.data._replace(expected=size)
        return super()._with_noise(x, batch._replace(data=data), memory)


def scores(seen):
    """The higher a score, the more likely is the victim there."""
    pull, width = seen[..., 0], np.log(seen[..., 1:].std((1, 2)))
    return [-pull[:, 0], -pull[:, -1], -pull.sum(1), -width]


def least_epsilon(seen):
    """A lower bound of epsilon. The score and the threshold are chosen with every second run. Their
    success is measured with the others."""
    best = -math.inf, scores(seen)[0], 0.0
    for score in scores(seen):
        for threshold in np.quantile(score[::2], np.linspace(0.3, 0.999, 200)):
            found = bound(score[::2], threshold)
            best = (found, score, threshold) if found > best[0] else best
    return bound(best[1][1::2], best[2])


def bound(score, threshold):
    there, away = ((part > threshold).sum() for part in np.split(score, 2))
    n = len(score) // 2
    hits = beta.ppf(SURE / 2, there, n - there + 1) if there else 0.0
    alarms = beta.ppf(1 - SURE / 2, away + 1, n - away) if away < n else 1.0
    return math.log((hits - DELTA) / alarms) if hits > DELTA else -math.inf


def test_the_attack_stays_below_the_printed_epsilon():
    for game, near in (
        (Game(others=0, size=1, noise=1.0), 0.4),  # the attack is a good one: it comes close
        (Game(others=1, size=1, noise=1.5, looks=2), 0.1),
        (Game(others=9, size=9, noise=1.5), 0.1),
    ):
        found = least_epsilon(game.seen(Pulls, game.poisson()))
        assert near * game.printed() < found < game.printed()


def test_it_succeeds_if_the_second_gradient_has_no_noise():
    game = Game(others=1, size=1, noise=1.5, looks=2)
    assert least_epsilon(game.seen(Exact, game.poisson())) > 1.5 * game.printed()


def test_it_succeeds_if_the_sum_is_divided_by_the_actual_size():
    game = Game(others=1, size=1, noise=1.5)
    assert least_epsilon(game.seen(ActualSize, game.poisson())) > 1.5 * game.printed()


def test_it_succeeds_if_batches_of_epochs_are_accounted_as_poisson_samples():
    """With batches of one size, the victim takes the place of another example."""
    game = Game(others=9, size=9, noise=1.5)
    assert least_epsilon(game.seen(Pulls, game.epochs())) > game.printed()
