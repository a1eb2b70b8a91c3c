"""Datasets that are read batch by batch train like tensors, with fresh and repeatable views."""

from __future__ import annotations

import itertools
import multiprocessing
import random

import numpy as np
import pandas
import pytest
import torch
from lazy_data import Augmented, Fixed, Tokens, padded
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import fafed
from fafed.core import tree
from fafed.data.checks import check_numbers
from fafed.data.loading import Files, open_data, steps_of_round
from fafed.data.sources.examples import Examples, examples_of
from fafed.data.sources.lazy import Lazy
from fafed.data.sources.reader import Loading
from fafed.objectives.function import Function
from fafed.training.build import build

ALGORITHMS = [fafed.FedAvg(0.1), fafed.SCAFFOLD(0.1), fafed.FAFED(0.1)]
SIZES = {"batch_size": 4, "anchor_size": 6}
CLIENTS = 3


def net():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def fixed(n=CLIENTS):
    return [Fixed(client, 12 + client) for client in range(n)]


def augmented(n=CLIENTS):
    return [Augmented(client, 12 + client) for client in range(n)]


def source(clients, loading=None, **sizes):
    found, *_ = open_data(clients, loading=loading, **{**SIZES, **sizes})
    return found


def train(clients, algorithm=ALGORITHMS[0], **options):
    settings = {"rounds": 3, "local_steps": 4, "batch_size": 4, "engine": "loop"} | options
    return fafed.train(net(), clients, algorithm, **settings)


def data_of(source, client=0, step=0, steps=3, kinds=("round",)):
    return [batch.data for batch in source.batches(source.draw(kinds, client, step, steps))]


def same(a, b):
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# --- without augmentation ----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_the_same_bits_as_in_memory(algorithm):
    lazy = train(fixed(), algorithm)
    held = train([(d.x, d.y) for d in fixed()], algorithm)
    assert torch.equal(lazy.x, held.x)
    assert lazy.history[-1].samples == held.history[-1].samples
    assert lazy.history[-1].train_loss == held.history[-1].train_loss


def test_the_same_rows_for_the_same_seed_client_and_step():
    lazy, held = (
        source(fixed(), seed=3),
        examples_of([(d.x, d.y) for d in fixed()], **SIZES, seed=3),
    )
    for client in range(CLIENTS):
        kinds = ("round", "anchor", "full")
        a, b = lazy.draw(kinds, client, 5, 2), held.draw(kinds, client, 5, 2)
        assert all(same(one, other) for one, other in zip(a, b, strict=True))
        assert same(lazy.batches(a).anchor.data, held.batches(b).anchor.data)
        assert same(lazy.batches(a).full.data, held.batches(b).full.data)


def test_tensors_and_datasets_may_be_mixed():
    one, two, three = fixed()
    mixed = train([(one.x, one.y), two, Subset(TensorDataset(three.x, three.y), range(14))])
    assert torch.equal(mixed.x, train(fixed()).x)


class Joined(nn.Module):
    """Takes its inputs in two parts, one inside the other."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, parts):
        first, rest = parts["both"]
        return self.net(torch.cat([first, rest["more"]], 1))


def test_nested_tensors_in_memory():
    tensors = [(torch.randn(12, 3), torch.arange(12) % 2) for _ in range(CLIENTS)]
    nested = [({"both": (x[:, :1], {"more": x[:, 1:].numpy()})}, y) for x, y in tensors]
    sizes = {"rounds": 2, "local_steps": 2, "batch_size": 4, "engine": "loop"}
    found = fafed.train(Joined(), nested, fafed.FAFED(0.1), test=nested[0], **sizes)
    plain = fafed.train(net(), tensors, fafed.FAFED(0.1), test=tensors[0], **sizes)
    assert torch.equal(found.x, plain.x)
    assert found.history[-1].test == plain.history[-1].test
    short = ({"both": (torch.zeros(11, 1), {"more": torch.zeros(12, 2)})}, torch.zeros(12))
    with pytest.raises(fafed.DataError, match="client 0 has tensors of 11, 12 rows"):
        fafed.train(Joined(), [short], fafed.FAFED(0.1), **sizes)


def test_columns_of_a_table():
    tensors = [(torch.randn(12, 3), torch.arange(12) % 2) for _ in range(CLIENTS)]
    tables = [(pandas.DataFrame(x.numpy()), pandas.Series(y.numpy())) for x, y in tensors]
    assert torch.equal(train(tables).x, train(tensors).x)


def test_no_back_end_but_the_loop():
    assert train(fixed(), engine="auto").engine == "loop"
    for engine in ("vmap", "native"):
        with pytest.raises(fafed.ConfigError, match="Dataset that is read batch by batch"):
            train(fixed(), engine=engine)


# --- random augmentation -----------------------------------------------------------------------


def test_no_bit_depends_on_the_workers():
    expected = train(augmented(), fafed.FAFED(0.1), data_workers=0, workers=1).x
    for workers, engine_workers in ((1, 1), (2, 2), (3, 1)):
        options = {"data_workers": workers, "workers": engine_workers}
        assert torch.equal(train(augmented(), fafed.FAFED(0.1), **options).x, expected)


@pytest.mark.slow
def test_no_bit_depends_on_processes_and_they_end():
    options = {"data_workers": 2, "data_processes": True}
    assert torch.equal(train(augmented(), **options).x, train(augmented()).x)
    assert not multiprocessing.active_children()
    found = train([(Fixed().x, Fixed().y)], test=Fixed(1), data_processes=True, rounds=1)
    assert found.history[-1].test == train([Fixed()], test=Fixed(1), rounds=1).history[-1].test
    assert not multiprocessing.active_children()
    clients = [Tokens(0)]
    there = source(clients, Loading(padded, workers=1, processes=True))
    assert same(data_of(there), data_of(source(clients, Loading(padded))))
    assert multiprocessing.active_children()
    there.close()
    assert not multiprocessing.active_children()


def test_a_resumed_run_has_the_same_views():
    def start():
        objective = fafed.Model(net(), nn.functional.cross_entropy)
        return build(fafed.SCAFFOLD(0.1), objective, source(augmented()), rounds=4, local_steps=3)

    whole = start()
    list(whole)
    first, second = start(), start()
    for _ in range(2):
        first.round()
    second.state = first.state
    second.engine.restore(first.engine.snapshot())
    list(second)
    assert torch.equal(second.state.shared.x, whole.state.shared.x)


def test_views_are_fresh_in_every_step_and_differ_by_client_and_seed():
    views = data_of(source(augmented(), batch_size="full"), steps=4)
    again = data_of(source(augmented(), batch_size="full"), steps=4)
    for k, (view, repeated) in enumerate(zip(views, again, strict=True)):
        assert same(view, repeated)
        assert all(not torch.equal(view[0], other[0]) for other in views[:k])
    other = data_of(source(augmented(), batch_size="full", seed=1), steps=1)
    assert not torch.equal(other[0][0], views[0][0])
    twins = source([Augmented(0), Augmented(0)], batch_size="full")
    assert not torch.equal(data_of(twins, 0, steps=1)[0][0], data_of(twins, 1, steps=1)[0][0])


def test_any_step_can_be_read_alone():
    whole = data_of(source(augmented()), 1, 0, 6)
    for step in (4, 0, 5):
        (alone,) = data_of(source(augmented()), 1, step, 1)
        assert same(alone, whole[step])


@pytest.mark.parametrize("algorithm", [fafed.FAFED(0.1), fafed.STEM(0.1), fafed.SPIDER(0.1)])
def test_both_gradients_of_a_step_see_the_same_view(algorithm):
    seen = []

    def loss(x, data):
        seen.append(data[0].clone())
        return ((data[0] @ x) ** 2).mean()

    clients = augmented(algorithm.population or CLIENTS)
    objective = Function(loss, torch.ones(3))
    run = build(
        algorithm, objective, source(clients), rounds=2, local_steps=3, workers=1, engine="loop"
    )
    list(run)
    pairs = [same(a, b) for a, b in itertools.pairwise(seen)]
    steps = 2 * 3 * len(clients)
    first = len(clients) if not isinstance(algorithm, fafed.SPIDER) else 2
    twice = steps if not isinstance(algorithm, fafed.SPIDER) else steps - 2
    assert len(seen) == first + 2 * twice
    assert sum(pairs) == twice


def test_the_users_own_generators_go_on_as_if_nothing_had_been_read():
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    clients, model = augmented(), net()
    before = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    fafed.train(model, clients, fafed.FedAvg(), rounds=1, data_workers=2, test=clients[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]


def test_a_model_that_draws_random_numbers_and_data_that_does_too():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + 0.1 * torch.randn_like(x))

    def run(**options):
        torch.manual_seed(0)
        settings = {"rounds": 2, "local_steps": 3, "batch_size": 4} | options
        return fafed.train(Noisy(3, 2), augmented(), fafed.FedAvg(0.1), **settings).x

    expected = run(data_workers=0, workers=1)
    for _ in range(3):
        assert torch.equal(run(data_workers=2, workers=2), expected)


# --- memory and cache --------------------------------------------------------------------------


def test_only_a_few_batches_are_read_ahead():
    dataset = Fixed(0, 400)
    found = source([dataset], Loading(workers=2), batch_size=4)
    probed = dataset.reads
    batches = iter(found.batches(found.draw(("round",), 0, 0, 100)))
    for k in range(1, 11):
        next(batches)
        assert dataset.reads - probed <= 4 * (k + 3)
    batches.close()


def test_nothing_is_kept_without_a_cache():
    dataset = Fixed(0, 8)
    found = source([dataset], batch_size=8)
    probed = dataset.reads
    data_of(found, steps=5)
    assert dataset.reads - probed == 40
    assert not found.reader.items.cached


@pytest.mark.parametrize(("cache", "kept"), [("1MB", 8), (3 * (12 + 32), 3), (0, 0)])
def test_a_cache_is_bounded(cache, kept):
    dataset = Fixed(0, 8)  # an item is 12 bytes of floats and a number, which counts 32
    found = source([dataset], Loading(cache=cache), batch_size=8)
    probed = dataset.reads
    plain = data_of(source([Fixed(0, 8)], batch_size=8), steps=5)
    assert same(data_of(found, steps=5), plain)
    assert dataset.reads - probed == 8 + 4 * (8 - kept)
    assert len(found.reader.items.cached) == kept


def test_a_cache_would_freeze_augmentation():
    with pytest.raises(fafed.ConfigError, match="augmentation would be frozen; leave cache out"):
        train(augmented(), cache="1MB")


@pytest.mark.parametrize("cache", ["much", "-1GB", -1, 1.5, True])
def test_wrong_cache_sizes(cache):
    with pytest.raises(fafed.ConfigError, match="cache must be a size such as '1GB'"):
        Loading(cache=cache)


@pytest.mark.parametrize(
    ("size", "bytes"), [("1GB", 10**9), ("1.5 MB", 1_500_000), ("20kb", 20_000), ("7", 7), (5, 5)]
)
def test_cache_sizes(size, bytes):
    assert Loading(cache=size).cache_bytes == bytes


# --- other kinds of data -----------------------------------------------------------------------


def squared(x, data):
    return ((data["ids"].sum(1) * x[0] + x[1] - data["labels"]) ** 2).mean()


def mapped_run(clients, loading, algorithm=ALGORITHMS[0]):
    return build(
        algorithm,
        Function(squared, torch.tensor([0.1, 0.2])),
        source(clients, loading),
        rounds=2,
        local_steps=3,
    )


def test_dictionaries_of_different_lengths():
    clients = [Tokens(c) for c in range(CLIENTS)]
    shapes = {tuple(d["ids"].shape) for d in data_of(source(clients, Loading(padded)), steps=6)}
    assert len(shapes) > 1
    runs = [mapped_run(clients, Loading(padded, workers=w)) for w in (0, 2)]
    a, b = [[record.samples for record in run] for run in runs]
    assert a == b == [CLIENTS * 3 * 4, 2 * CLIENTS * 3 * 4]
    assert torch.equal(runs[0].state.shared.x, runs[1].state.shared.x)


def test_what_collate_fn_draws_is_a_function_of_the_step():
    clients = [Tokens(0, 64)]
    for cache in (None, "1MB"):
        found = source(clients, Loading(padded, cache=cache), batch_size="full")
        one, two = data_of(found, steps=2)
        assert not torch.equal(one["ids"], two["ids"])
        assert same([one, two], data_of(found, steps=2))


def test_examples_are_counted_by_rows():
    clients = [Fixed(0)]
    found = source(
        clients, Loading(lambda items: {"all": torch.stack([x for x, _ in items])[None]})
    )
    (batch,) = found.batches(found.draw(("round",), 0, 0, 1))
    assert batch.data["all"].shape == (1, 4, 3)
    assert batch.size == 4


def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    columns = {
        "ids": [[i / 8, 0.5, 0.25] for i in range(8)],
        "labels": [float(i % 2) for i in range(8)],
    }
    hub = datasets.Dataset.from_dict(columns)
    held = {name: torch.tensor(values) for name, values in columns.items()}
    lazy, plain = source([hub, hub.select(range(3, 8))]), source([held, _rows(held, 3)])
    assert isinstance(lazy, Lazy)
    assert isinstance(plain, Examples)
    for client in (0, 1):
        assert same(data_of(lazy, client), data_of(plain, client))
    x = mapped_run([hub, hub], Loading()), mapped_run([held, held], Loading())
    for run in x:
        list(run)
    assert torch.allclose(x[0].state.shared.x, x[1].state.shared.x)
    named = hub.add_column("name", ["a"] * 8)
    with pytest.raises(fafed.DataError, match=r"client 0: .*part 'name': 'a' is text"):
        data_of(source([named]))
    assert "ids" in data_of(source([named.with_format("torch", columns=["ids", "labels"])]))[0]


def _rows(held, first):
    return {name: part[first:] for name, part in held.items()}


def test_files_with_a_function_that_reads_one(tmp_path):
    files = []
    for i, row in enumerate(Fixed().x):
        np.save(tmp_path / f"{i}.npy", row.numpy())
        files.append((tmp_path / f"{i}.npy", i % 2))
    found = data_of(source([Files(files, np.load)]))
    expected = data_of(source([(Fixed().x, torch.arange(12) % 2)]))
    assert same(found, expected)


def test_subsets_of_tensors_share_them():
    pool = TensorDataset(torch.randn(10, 3), torch.arange(10))
    nested = Subset(Subset(pool, range(2, 10)), [7, -1, 0])
    found = source([Subset(pool, [4, 1]), nested, pool])
    assert isinstance(found, Examples)
    assert found.pool[0] is pool.tensors[0]
    assert [part.tolist() for part in found.parts] == [[4, 1], [9, 9, 2], list(range(10))]
    with pytest.raises(fafed.DataError, match="client 0 is a Subset with the indices 0 to 10"):
        source([Subset(pool, [0, 10])])


def test_a_tensor_dataset_that_changes_its_items_is_read():
    class Shifted(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + torch.randn(3), y

    found = source([Subset(Shifted(torch.zeros(8, 3), torch.zeros(8)), range(8))])
    assert isinstance(found, Lazy)
    one, two, *_ = data_of(found)
    assert not torch.equal(one[0], two[0])


def test_evaluation_reads_datasets_in_order_with_the_same_views_each_time():
    tests = Augmented(7, 520)
    _, measured, _ = open_data(fixed(), {"test": tests, "validation": None}, **SIZES)
    part = measured["test"].with_size(250)
    once, again = (list(part()) for _ in range(2))
    assert [batch.size for batch in once] == [250, 250, 20]
    assert same([b.data for b in once], [b.data for b in again])
    assert torch.equal(torch.cat([b.data[1] for b in once]), tests.y)
    plain = Fixed(7, 520)
    for clients in (fixed(), [(d.x, d.y) for d in fixed()]):
        found = train(clients, test=plain, validation=(plain.x, plain.y), output="best_val")
        last = found.history[-1]
        assert last.test["loss"] == pytest.approx(last.validation["loss"], rel=1e-5)


def test_tests_of_the_clients_are_read_too():
    held = [(d.x, d.y) for d in fixed()]
    for wanted, plain in ((0.25, 0.25), (fixed(), held)):
        lazy = train(fixed(), client_test=wanted).history[-1].clients_test["loss"]
        expected = train(held, client_test=plain).history[-1].clients_test["loss"]
        assert lazy == pytest.approx(expected, rel=1e-5)


def test_a_model_that_is_called_by_keyword():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 1)

        def forward(self, ids, labels):
            outputs = self.linear(ids.sum(1, keepdim=True))[:, 0]
            return {"loss": ((outputs - labels) ** 2).mean(), "logits": outputs}

    def run(workers):
        torch.manual_seed(0)
        clients = [Tokens(c) for c in range(CLIENTS)]
        return fafed.train(
            Counter(),
            clients,
            fafed.FAFED(0.01),
            rounds=2,
            local_steps=3,
            batch_size=4,
            loss="model",
            collate_fn=padded,
            data_workers=workers,
            test=Tokens(5),
        )

    one, two = run(0), run(2)
    assert torch.equal(one.x, two.x)
    assert one.engine == "loop"
    assert one.history[-1].test == two.history[-1].test
    assert one.history[-1].samples == CLIENTS * (12 + 2 * 3 * 4 * 2)


# --- bad input ---------------------------------------------------------------------------------


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


class Broken(Fixed):
    def __getitem__(self, i):
        if i == 5:
            raise OSError("the disk is on the moon")
        return super().__getitem__(i)


class Ragged(Fixed):
    def __getitem__(self, i):
        return torch.zeros(i + 1), 0


class Spoilt(Fixed):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return (x * torch.nan if i == 3 else x), y


class Images(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return object(), 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Endless(), "client 1 is an IterableDataset"),
        (Broken(), "client 1: item 5 cannot be read: OSError: the disk is on the moon"),
        (Ragged(), "clients disagree.*client 1 is"),
        (Spoilt(), r"client 1: there is a NaN in the items \["),
        (Images(), "clients disagree.*client 1 is .*object"),
        (Fixed(0, 0), "client 1 has no examples"),
        (Subset(Fixed(), []), "client 1 has no examples"),
        (3, "client 1 must be a Dataset or a tuple"),
    ],
)
def test_bad_data_is_named(bad, words):
    with pytest.raises(fafed.DataError, match=words):
        train([Fixed(0), bad], batch_size=12)


def test_items_that_do_not_stack():
    with pytest.raises(fafed.DataError, match=r"client 0: its items do not stack.*collate_fn"):
        train([Ragged()])
    with pytest.raises(fafed.DataError, match=r"part '0': a object is no tensor"):
        train([Images()])


def test_a_collate_fn_that_fails_or_returns_no_tensors():
    with pytest.raises(fafed.DataError, match=r"client 0: collate_fn fails on .*ZeroDivision"):
        train(fixed(), collate_fn=lambda items: 1 / 0)
    with pytest.raises(fafed.DataError, match=r"a batch holds a str, 'abc'"):
        train(fixed(), collate_fn=lambda items: {"text": "abc"})
    with pytest.raises(fafed.ConfigError, match="collate_fn must be a function"):
        train(fixed(), collate_fn=3)


def test_nan_in_tensors_is_refused_unless_the_model_expects_it():
    x = torch.zeros(6, 3)
    x[4, 1] = torch.nan
    clients = [(x[:3], torch.zeros(3)), (x[3:], torch.zeros(3))]
    no, yes = (lambda _: False), (lambda _: True)  # whether the loss on the example is finite
    with pytest.raises(fafed.DataError, match="client 1: the inputs of example 1 hold nan"):
        check_numbers(source(clients), range(2), no)
    pool = TensorDataset(x, torch.zeros(6))
    check_numbers(source([Subset(pool, [0, 1]), Subset(pool, [2, 3])]), range(2), no)
    check_numbers(source([(x.nan_to_num(-torch.inf), torch.zeros(6))]), range(1), yes)


def test_datasets_that_cannot_travel_to_a_process():
    class Local(Fixed):
        pass

    with pytest.raises(fafed.ConfigError, match="cannot hand the datasets to another process"):
        train([Local()], data_processes=True)
    with pytest.raises(fafed.ConfigError, match="data_workers must be 0 or a positive number"):
        train(fixed(), data_workers=-1)
    with pytest.raises(fafed.ConfigError, match="needs data_workers of at least 1"):
        train(fixed(), data_workers=0, data_processes=True)


# --- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "batch", "examples", "steps"),
    [(1, 10, (100, 50), 8), (2, 10, (100,), 20), (0.5, 10, (100,), 5), (3, "full", (7,), 3)],
)
def test_local_epochs(epochs, batch, examples, steps):
    assert steps_of_round(None, epochs, batch, examples) == steps


def test_local_epochs_in_training():
    by_epochs = train(fixed(), fafed.FAFED(0.1), local_steps=None, local_epochs=1)
    by_steps = train(fixed(), fafed.FAFED(0.1), local_steps=4)  # ceil(13 / 4)
    assert torch.equal(by_epochs.x, by_steps.x)
    with pytest.raises(fafed.ConfigError, match="give one of them"):
        train(fixed(), local_steps=4, local_epochs=1)
    with pytest.raises(fafed.ConfigError, match="local_epochs must be a positive number, got 0"):
        train(fixed(), local_steps=None, local_epochs=0)


def test_a_batch_larger_than_a_clients_data_warns_once(caplog):
    train(fixed(), batch_size=13, rounds=1)
    (message,) = [r.getMessage() for r in caplog.records if "repeat" in r.getMessage()]
    assert message == (
        "client 0 has 12 examples, fewer than batch_size = 13: they repeat within a batch"
    )


def test_data_on_another_device_than_the_batches():
    held = source([(d.x, d.y) for d in fixed()], Loading(device="cpu"))
    for found in (held, source(fixed())):
        found.to(torch.device("meta"), torch.float64)
        batches = found.batches(found.draw(("round", "anchor"), 1, 0, 2))
        for batch in (*batches, batches.anchor):
            assert {leaf.device.type for leaf in tree.leaves(batch[:3])} == {"meta"}
            assert batch.data[0].dtype == torch.float64
    assert held.pool[0].device.type == "cpu"
