"""Save, load and go on = never stopped; and what is damaged is refused (ID-29)."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from carrying import Carrying
from problem import Problem
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import fafed
from fafed import ALGORITHMS
from fafed.core import tree
from fafed.data.sources.examples import examples_of
from fafed.experiments import checkpoint
from fafed.experiments.checkpoint import CheckpointError
from fafed.files import sealed, unsealed
from fafed.objectives.module import Model
from fafed.training.build import build


def make(name):
    fields = {f.name for f in dataclasses.fields(ALGORITHMS[name])}
    common = {"eta": 0.05}
    if name in ("fedavg", "stem", "fafed"):  # the larger state
        common["server_momentum"] = 0.7
    return ALGORITHMS[name](**{k: v for k, v in common.items() if k in fields})


def clients_for(name):
    return getattr(make(name), "population", None) or 3


def same(a, b):
    return all(
        torch.equal(x, y)
        for x, y in zip(
            tree.leaves((a.state.shared, a.engine.states)),
            tree.leaves((b.state.shared, b.engine.states)),
            strict=True,
        )
    )


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumed_is_never_stopped(name, engine, tmp_path):
    p = Problem(clients_for(name))
    whole = p.run(make(name), 3, 5, engine=engine)
    records = list(whole)
    begun = p.run(make(name), 3, 5, engine=engine)
    for _ in range(2):
        begun.round()
    path = checkpoint.save(begun, tmp_path, "d")
    again = p.run(make(name), 3, 5, engine=checkpoint.engine_of(path))
    checkpoint.load(again, path, "d")
    rest = list(again)
    assert same(whole, again)
    for a, b in zip(records[2:], rest, strict=True):
        assert dataclasses.replace(a, seconds=0) == dataclasses.replace(b, seconds=0)


def test_membership_and_lost_clients_survive(tmp_path):
    p = Problem(4)
    options = {"participation": 0.5, "failure": 0.3}
    whole = p.run(fafed.FAFED(), 2, 8, **options)
    list(whole)
    begun = p.run(fafed.FAFED(), 2, 8, **options)
    for _ in range(5):
        begun.round()
    path = checkpoint.save(begun, tmp_path, "d")
    again = p.run(fafed.FAFED(), 2, 8, **options)
    checkpoint.load(again, path, "d")
    list(again)
    assert torch.equal(whole.state.shared.x, again.state.shared.x)


def test_buffers_and_hidden_states_survive(tmp_path):
    torch.manual_seed(0)
    module = Carrying()
    g = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(12, 6, generator=g), torch.randint(0, 3, (12,), generator=g)) for _ in range(3)
    ]

    def run():
        source = examples_of(clients, batch_size=4, anchor_size=4)
        objective = Model(module, F.cross_entropy)
        return build(
            fafed.STEM(0.05), objective, source, rounds=6, local_steps=2, participation=0.7
        )

    whole, begun, again = run(), run(), run()
    list(whole)
    for _ in range(3):
        begun.round()
    checkpoint.load(again, checkpoint.save(begun, tmp_path, "d"), "d")
    list(again)
    assert same(whole, again)
    for a, b in zip(whole.state.buffers, again.state.buffers, strict=True):
        assert torch.equal(a, b)


def test_what_clients_hold_together_is_written_once_and_held_together_again(tmp_path):
    """SCAFFOLD's clients all keep the model of the last round."""
    p = Problem(4)
    begun, again = (p.run(fafed.SCAFFOLD(0.05), 2, 4, engine="loop") for _ in range(2))
    for _ in range(2):
        begun.round()
    path = checkpoint.save(begun, tmp_path, "d")
    written = load_file(path)
    assert [name for name in written if name.endswith(".x")] == ["client.0.local.x", "server.0.x"]
    checkpoint.load(again, path, "d")
    assert same(begun, again)
    assert len({state.local.x.data_ptr() for state in again.engine.states}) == 1
    assert len({state.local.c.data_ptr() for state in again.engine.states}) == 4


def test_files_without_what_is_held_together_are_read(tmp_path):
    run, path = saved(tmp_path)
    header = header_of(path)
    assert header.pop("same") == {}
    header["checksums"] = {name: what[0] for name, what in header.pop("tensors").items()}
    save_file(load_file(path), path, {"fafed": json.dumps(header | {"format": 1})})
    again = Problem(3).run(fafed.FAFED(), 2, 3)
    checkpoint.load(again, path, "digest-of-this-run")
    assert same(run, again)


def header_of(path):
    with checkpoint.safe_open(path, framework="pt") as file:
        return unsealed(json.loads(file.metadata()["fafed"]))


def saved(tmp_path, rounds=3):
    run = Problem(3).run(fafed.FAFED(), 2, rounds)
    for _ in run:
        path = checkpoint.save(run, tmp_path, "digest-of-this-run")
    return run, path


def test_only_the_last_two_are_kept(tmp_path):
    saved(tmp_path, 5)
    assert [p.name[6:13] for p in checkpoint.found(tmp_path)] == ["0000005", "0000004"]


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_files_are_refused(tmp_path, keep):
    _, path = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    with pytest.raises(CheckpointError, match=f"{path.name} is damaged"):
        checkpoint.verify(path, "digest-of-this-run")


def test_a_flipped_bit_is_refused(tmp_path):
    _, path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.verify(path, "digest-of-this-run")


def renamed(path, old, new=None):
    """As another version of the algorithm would have written it."""
    header, tensors = header_of(path), load_file(path)
    for found in (tensors, header["tensors"]):
        moved = found.pop(old)
        if new:
            found[new] = moved
    save_file(tensors, path, {"fafed": json.dumps(sealed(header))})


def test_an_option_that_came_later_and_is_not_used_needs_nothing(tmp_path):
    run, path = saved(tmp_path)
    renamed(path, "server.0.last")
    again = Problem(3).run(fafed.FAFED(), 2, 3)
    checkpoint.load(again, path, "digest-of-this-run")
    assert same(run, again)


@pytest.mark.parametrize(
    ("options", "old", "new"),
    [
        ({"server_momentum": 0.5}, "last", None),
        ({}, "v", "server.0.second"),  # empty in a fresh run, but not any more
    ],
)
def test_what_another_version_kept_is_named(tmp_path, options, old, new):
    _, path = saved(tmp_path)
    renamed(path, f"server.0.{old}", new)
    again = Problem(3).run(fafed.FAFED(**options), 2, 3)
    words = rf"has no 'server\.0\.{old}': another version of FAFED"
    with pytest.raises(CheckpointError, match=words):
        checkpoint.load(again, path, "digest-of-this-run")


def test_foreign_files_are_refused(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="another experiment"):
        checkpoint.verify(path, "digest-of-another")
    plain = tmp_path / "round-9999999.safetensors"
    save_file({"weight": torch.ones(3)}, plain)
    with pytest.raises(CheckpointError, match="not fafed's"):
        checkpoint.verify(plain, "digest-of-this-run")
    tensors = load_file(path)
    tensors.pop("server.0.x")
    header = header_of(path)
    save_file(tensors, path, {"fafed": json.dumps(sealed(header))})
    with pytest.raises(CheckpointError, match="tensors are missing"):
        checkpoint.verify(path, "digest-of-this-run")
    save_file(tensors, path, {"fafed": json.dumps(sealed(header | {"format": 99}))})
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.verify(path, "digest-of-this-run")
