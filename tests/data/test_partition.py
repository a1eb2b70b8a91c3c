import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fafed.data.partition import (
    GROUPS,
    IID,
    PARTITIONS,
    Classes,
    Contiguous,
    Dirichlet,
    High,
    Low,
    Moderate,
    Quantity,
    build,
    counts,
)
from fafed.errors import ConfigError

BALANCED = np.repeat(np.arange(10), 40)
seeds = st.integers(0, 2**32)
few = settings(max_examples=100, deadline=None)


@st.composite
def labels(draw, min_size=1, max_classes=8):
    """A vector of labels in which some classes may be rare or absent."""
    n = draw(st.integers(min_size, 200))
    rng = np.random.default_rng(draw(seeds))
    return rng.integers(0, draw(st.integers(1, max_classes)), n)


def check(partition, labels, clients, seed):
    """The laws of every split that loses nothing."""
    parts = partition.split(labels, clients, seed)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and part.size > 0 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    again = partition.split(torch.as_tensor(labels), clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    return parts


def sizes(parts):
    return np.array([len(part) for part in parts])


@few
@given(labels(), st.data(), seeds)
def test_iid(labels, data, seed):
    clients = data.draw(st.integers(1, len(labels)))
    parts = check(IID(), labels, clients, seed)
    assert np.ptp(sizes(parts)) <= 1


@few
@given(labels(), st.data(), st.floats(0, 1), seeds)
def test_low(labels, data, similarity, seed):
    clients = data.draw(st.integers(1, len(labels)))
    parts = check(Low(similarity), labels, clients, seed)
    assert np.ptp(sizes(parts)) <= 1


def test_low_is_sorted_at_zero_and_mixed_at_one():
    sorted_ = counts(BALANCED, Low(0.0).split(BALANCED, 10, seed=3), 10)
    assert np.array_equal(sorted_, 40 * np.eye(10))
    low = counts(BALANCED, Low(0.95).split(BALANCED, 10, seed=3), 10)
    assert (low.argmax(1) == np.arange(10)).mean() < 1  # 2 of 40 samples are sorted: hardly seen
    assert (low > 0).mean() > 0.9


@few
@given(labels(min_size=40, max_classes=3), st.integers(1, 8), seeds)
def test_moderate(labels, clients, seed):
    held = np.unique(labels, return_counts=True)[1]
    if held.min() < clients:
        with pytest.raises(ConfigError, match=f"has {held[held < clients][0]} samples"):
            Moderate().split(labels, clients, seed)
        return
    parts = check(Moderate(), labels, clients, seed)
    assert np.ptp(sizes(parts)) <= 1
    table = counts(labels, parts, labels.max() + 1)
    assert (np.ptp(table, axis=0) <= 1).all()
    assert (table[:, np.unique(labels)] > 0).all()


@few
@given(st.integers(1, 10), st.integers(1, 40), seeds)
def test_classes(k, clients, seed):
    if k * clients < 10:
        with pytest.raises(ConfigError, match=f"at least {-(-10 // k)} clients"):
            Classes(k).split(BALANCED, clients, seed)
        return
    parts = check(Classes(k), BALANCED, clients, seed)
    held = counts(BALANCED, parts, 10)
    assert ((held > 0).sum(1) == k).all()
    assert np.ptp((held > 0).sum(0)) <= 1
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


def test_classes_are_drawn_anew_for_each_seed():
    sets = {
        tuple(np.flatnonzero(row))
        for seed in range(5)
        for row in counts(BALANCED, Classes(5).split(BALANCED, 20, seed), 10)
    }
    assert len(sets) > 50  # of 252


def test_high_random_is_classes():
    high, classes = High().split(BALANCED, 20, 1), Classes(5).split(BALANCED, 20, 1)
    assert all(np.array_equal(a, b) for a, b in zip(high, classes, strict=True))


@few
@given(st.integers(2, 40), st.sampled_from([None, *GROUPS]), seeds)
def test_high_groups(clients, groups, seed):
    parts = check(High(form="groups", groups=groups), BALANCED, clients, seed)
    held = counts(BALANCED, parts, 10)
    first = set(GROUPS[groups or "fashion-mnist"][0])
    for client, row in enumerate(held):
        own = set(np.flatnonzero(row).tolist())
        assert own == (first if client < -(-clients // 2) else set(range(10)) - first)


def test_high_groups_of_ones_own():
    high = build("high", form="groups", classes_per_client=2, groups=[[0, 3], [2, 1]])
    assert high == High(2, "groups", ((0, 3), (2, 1)))
    labels = np.repeat(np.arange(4), 5)
    held = counts(labels, high.split(labels, 3, 0), 4)
    assert (held > 0).astype(int).tolist() == [[1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]


@few
@given(labels(min_size=20), st.floats(1e-3, 1e3), st.integers(1, 10), st.integers(1, 2), seeds)
def test_dirichlet(labels, alpha, clients, min_size, seed):
    parts = check(Dirichlet(alpha, min_size), labels, clients, seed)
    assert sizes(parts).min() >= min_size


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e9, 1e300])
def test_dirichlet_at_its_ends(alpha):
    held = counts(BALANCED, check(Dirichlet(alpha, min_size=3), BALANCED, 20, 0), 10)
    assert held.sum(1).min() >= 3
    if alpha > 1:
        assert (held == 2).all()


def test_dirichlet_gives_what_it_must_at_the_tightest():
    assert (sizes(check(Dirichlet(0.01, min_size=20), BALANCED, 20, 0)) == 20).all()


@few
@given(labels(min_size=20), st.floats(1e-3, 1e3), st.integers(1, 10), st.integers(1, 2), seeds)
def test_quantity(labels, strength, clients, min_size, seed):
    parts = check(Quantity(alpha=strength, min_size=min_size), labels, clients, seed)
    assert sizes(parts).min() >= min_size
    parts = check(Quantity(exponent=strength % 5, min_size=min_size), labels, clients, seed)
    assert sizes(parts).min() >= min_size
    assert (np.diff(sizes(parts)) <= 1).all()  # falling, but for rounding


def test_quantity_by_hand():
    parts = Quantity(exponent=1.0, min_size=10).split(np.zeros(410, int), 4, seed=0)
    assert sizes(parts).tolist() == [10 + 178, 10 + 88, 10 + 60, 10 + 44]  # 370 x 12/25, 6/25, ...


@few
@given(st.integers(1, 200), st.data())
def test_contiguous(n, data):
    clients = data.draw(st.integers(1, n))
    parts = Contiguous().split(np.zeros(n, int), clients, 0)
    assert np.array_equal(np.concatenate(parts), np.arange(n - n % clients))
    assert (sizes(parts) == n // clients).all()


def test_seed_matters():
    for name in set(PARTITIONS) - {"contiguous"}:
        partition = build(name, **({"alpha": 1.0} if name == "quantity" else {}))
        one, other = (partition.split(BALANCED, 8, seed) for seed in (0, 1))
        assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True)), name


def test_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    IID().split(BALANCED, 8, 0)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Low(1.5), r"Low.similarity must be between 0 and 1.*got 1.5"),
        (lambda: Low(float("nan")), "similarity"),
        (lambda: Classes(0), "Classes.k"),
        (lambda: Classes(2.5), "Classes.k must be an integer"),
        (lambda: High(0), "classes_per_client"),
        (lambda: High(form="both"), "'random' or 'groups'; got 'both'"),
        (lambda: High(groups="mnist"), "left out"),
        (lambda: High(form="groups", groups="minst"), "did you mean 'mnist'"),
        (lambda: High(form="groups", groups=[[0, 1], [2]]), "sets of classes_per_client = 5"),
        (lambda: High(2, form="groups", groups=[[0, 1], [1, 2]]), "disjoint"),
        (lambda: High(2, form="groups", groups=[]), "sets of"),
        (lambda: Dirichlet(0), "Dirichlet.alpha must be > 0 and finite; got 0"),
        (lambda: Dirichlet(float("inf")), "alpha"),
        (lambda: Dirichlet(1, min_size=0), "min_size"),
        (lambda: Quantity(), "one of the two"),
        (lambda: Quantity(1.0, 1.0), "one of the two"),
        (lambda: Quantity(-1.0), "alpha"),
        (lambda: Quantity(exponent=-1.0), "exponent"),
        (lambda: build("hihg"), "did you mean 'high'"),
        (lambda: build("low", similarty=0.9), "no option 'similarty'; it takes similarity"),
        (lambda: build("low", similarity="much"), "partition 'low' cannot take"),
    ],
)
def test_impossible_settings(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (IID(), 401, "401 clients .* need 401, but the data has 400"),
        (IID(), 0, "positive integer, got 0"),
        (IID(), 2.0, "positive integer, got 2.0"),
        (Dirichlet(1, min_size=5), 100, "100 clients with at least 5 samples each need 500"),
        (Classes(11), 20, "11 classes, but the data has only 10"),
        (Classes(10), 41, "class 0 has 40 samples for the 41 clients"),
        (High(3, form="groups"), 20, "cannot be cut into sets of classes_per_client = 3"),
        (High(form="groups"), 1, "1 clients cannot make 2 groups"),
        (High(form="groups"), 82, "class 0 has 40 samples for the 41 clients"),
        (High(2, form="groups", groups=[[0, 1], [2, 3]]), 4, "each class must be in exactly one"),
    ],
)
def test_impossible_splits(partition, clients, message):
    with pytest.raises(ConfigError, match=message):
        partition.split(BALANCED, clients, 0)


def test_wrong_labels_and_seeds():
    for wrong in (np.zeros((2, 2), int), np.zeros(3), np.array(["a"])):
        with pytest.raises(ConfigError, match="vector of integers"):
            IID().split(wrong, 1, 0)
    for seed in (-1, 0.5, None, True):
        with pytest.raises(ConfigError, match="seed"):
            IID().split(BALANCED, 2, seed)


def test_build_knows_the_groups_of_a_dataset():
    assert build("high", dataset="mnist", form="groups").groups == GROUPS["mnist"]
    assert build("high", dataset="own", form="groups").groups is None
    assert build("high", dataset="mnist") == High()
    assert build("high", dataset="mnist", form="groups", groups="cifar-10").groups[0][0] == 9


def test_counts():
    table = counts([0, 1, 1, 2], [np.array([0, 1, 2]), np.array([3])], 4)
    assert table.tolist() == [[1, 2, 0, 0], [0, 0, 1, 0]]
    with pytest.raises(ConfigError, match="n_classes must be at least 3"):
        counts([0, 1, 1, 2], [np.array([0])], 2)
