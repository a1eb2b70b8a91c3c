"""Text in order, side by side, carried on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fafed import ConfigError
from fafed.data.sources.base import ClientBatches
from fafed.data.sources.streams import Streams, passage


def streams(tokens=200, clients=2, b=3, bptt=4, **options):
    parts = np.split(np.arange(tokens), clients)
    return Streams(torch.arange(tokens), parts, batch_size=b, bptt=bptt, **options)


def batches(s, client, step, steps, kinds=("round",)):
    return ClientBatches(s.gather, s.draw(kinds, client, step, steps))


def test_columns_go_on_where_they_stopped_and_targets_are_the_next_tokens():
    s = streams()
    found = list(batches(s, 1, 0, s.epoch_steps))
    height = 100 // 3
    for column in range(3):
        text = torch.cat([batch.data[0][column] for batch in found]).tolist()
        start = 100 + column * height
        assert text == list(range(start, start + s.epoch_steps * 4))
    for batch in found:
        assert torch.equal(batch.data[1], batch.data[0] + 1)
    assert [bool(batch.fresh) for batch in found] == [True] + [False] * (s.epoch_steps - 1)


def test_the_next_epoch_starts_afresh_at_the_beginning():
    s = streams()
    again = next(iter(batches(s, 0, s.epoch_steps, 1)))
    first = next(iter(batches(s, 0, 0, 1)))
    assert torch.equal(again.data[0], first.data[0])
    assert bool(again.fresh)
    assert int(again.key) != int(first.key)


def test_clients_never_see_each_others_text():
    s = streams()
    seen = torch.cat([torch.cat(batch.data) for batch in batches(s, 0, 0, 20)])
    assert int(seen.max()) < 100


def test_papers_sizes():
    parts = np.split(np.arange(16 * (2_088_628 // 16)), 16)
    s = Streams(torch.zeros(2_088_628), parts, batch_size=20)
    assert s.epoch_steps == 186


def test_anchor_and_full():
    s = streams(anchor_size=7)
    one = batches(s, 0, 0, 5, ("anchor", "full"))
    assert one.anchor.data[0].shape == (7, 4)
    assert bool(one.anchor.fresh)
    assert one.full.data[0].shape == (s.epoch_steps * 3, 4)
    assert one.full.data[0].flatten().unique().numel() == s.epoch_steps * 3 * 4


def test_passage_covers_the_text_once():
    found = list(passage(torch.arange(103), columns=4, bptt=7))
    targets = torch.cat([batch.data[1] for batch in found], 1)
    assert targets.shape == (4, 24)
    assert targets[1].tolist() == list(range(26, 50))
    assert [bool(b.fresh) for b in found] == [True, False, False, False]


def test_too_little_text_is_refused():
    with pytest.raises(ConfigError, match="do not fill one batch of 3 columns x 40 tokens"):
        streams(bptt=40)


def test_an_anchor_moves_on_with_the_steps():
    s = streams(anchor_size=6)
    found = [batches(s, 1, step, 2, ("round", "anchor")) for step in (0, 5, s.epoch_steps - 1)]
    for one in found:
        step = next(iter(one))
        assert torch.equal(one.anchor.data[0][:3], step.data[0])
        assert bool(one.anchor.fresh)
        assert int(one.anchor.key) != int(step.key)
    first = next(iter(batches(s, 1, 0, 1)))
    assert torch.equal(found[-1].anchor.data[0][3:], first.data[0])  # and then begins anew


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"b": 0}, "batch_size must be a positive integer for text, got 0"),
        ({"b": "full"}, "batch_size must be a positive integer for text, got 'full'"),
        ({"anchor_size": "full"}, "opening_batch_size must be a positive integer .* 'full'"),
    ],
)
def test_sizes_that_text_cannot_have(sizes, words):
    with pytest.raises(ConfigError, match=words):
        streams(**sizes)
