"""The sum is exact, whoever drops out, as long as the threshold is met."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_silos import (
    Project,
    context,
    due,
    exchange,
    make_server,
    names,
    project,
    silos,
    vectors,
)

from fafed.errors import ConfigError, FafedError
from fafed.privacy.encoding import Encoding
from fafed.privacy.options import default_threshold
from fafed.privacy.secure_sum import masks, secrets
from fafed.privacy.secure_sum.identity import Identity, Pinned
from fafed.privacy.secure_sum.messages import Refused
from fafed.privacy.secure_sum.server import Server, TooFew
from fafed.privacy.secure_sum.silo import STEPS, Ledger, Silo


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(3, 7),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    bits=st.sampled_from([64, 32]),
    seed=st.integers(0, 99),
)
def test_sums_are_exact(count, lengths, bits, seed):
    data = vectors(count, sum(lengths), seed, masks.DTYPES[bits])
    found = exchange(silos(count), make_server(count, lengths, bits=bits), data)
    assert found.names == tuple(names(count))
    assert np.array_equal(found.total, due(data, names(count)))


def test_weighted_messages_come_out_as_their_weighted_mean():
    torch = pytest.importorskip("torch")
    how, count, r = Encoding(), 5, np.random.default_rng(0)
    plain = {name: torch.tensor(r.normal(size=8)) for name in names(count)}
    weights = dict(zip(names(count), (1.0, 0.5, 0.25, 0.7, 0.1), strict=True))
    data = {
        name: how.encode("m", plain[name], weights[name], 10).numpy().view(np.uint64)
        for name in plain
    }
    found = exchange(silos(count), make_server(count, (8,)), data, drop={"masked": ["site-001"]})
    total = torch.from_numpy(found.total.view(np.int64))
    weight = sum(weights[name] for name in found.names)
    mean = how.decode(total, 10, weight, plain["site-000"])
    true = sum(weights[name] * plain[name] for name in found.names) / weight
    torch.testing.assert_close(mean, true, rtol=0, atol=count * how.unit(10))


def each_alone(count):
    """A step for each silo that drops out there, None for the others: every subset, one step."""
    for step in range(len(STEPS)):
        yield from itertools.product((step, None), repeat=count)


def all_fates(count):
    """The same with different steps for different silos."""
    return itertools.product((*range(len(STEPS)), None), repeat=count)


def check_drop_outs(count, fates):
    """Either the sum is that of the silos whose masked
    messages came, or the exchange is refused because too few silos were left."""
    data, t = vectors(count, 2), default_threshold(count)
    sums = 0
    for fate in fates:
        drop = {
            s: [n for n, f in zip(names(count), fate, strict=True) if f == i]
            for i, s in enumerate(STEPS)
        }
        left = [sum(f is None or f > i for f in fate) for i in range(len(STEPS))]
        enough = all(n >= max(t, 3) for n in left[:3]) and all(n >= t for n in left[3:])
        server = make_server(count, (2,))
        if enough:
            found = exchange(silos(count), server, data, drop=drop, wire=False)
            who = [n for n, f in zip(names(count), fate, strict=True) if f is None or f > 2]
            assert list(found.names) == who
            assert np.array_equal(found.total, due(data, who))
            sums += 1
        else:
            first = next(i for i, n in enumerate(left) if n < (max(t, 3) if i < 3 else t))
            with pytest.raises(TooFew) as error:
                exchange(silos(count), server, data, drop=drop, wire=False)
            assert error.value.step == STEPS[first]
    return sums


def test_every_subset_of_drop_outs_at_every_step():
    assert check_drop_outs(3, each_alone(3)) == 5  # t = 3: nobody may drop out
    assert check_drop_outs(4, each_alone(4)) == 5 * (1 + 4)  # t = 3: one of four


@pytest.mark.slow
def test_every_subset_of_drop_outs_at_any_steps():
    assert check_drop_outs(4, all_fates(4)) == 1 + 4 * 5


def test_two_of_six_drop_out_at_any_steps():
    """Six silos, t = 5; with threshold 4, two may drop out."""
    data = vectors(6, 2)
    for first, second in itertools.product(STEPS, repeat=2):
        drop = {first: ["site-001"]}
        drop[second] = [*drop.get(second, []), "site-004"]
        server = make_server(6, (2,), threshold=4)
        found = exchange(silos(6, threshold=4), server, data, drop=drop, wire=False)
        assert np.array_equal(found.total, due(data, list(found.names)))


def test_the_threshold_is_more_than_two_thirds():
    assert [default_threshold(n) for n in (3, 4, 5, 6, 9, 20, 100)] == [3, 3, 4, 5, 7, 14, 67]


def test_two_silos_are_too_few():
    with pytest.raises(TooFew, match="2 silos have answered"):
        Server(context(), names(2), (1,))
    with pytest.raises(ConfigError, match="threshold must be at least 2, got 1"):
        silos(3, threshold=1)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_certificates_of_every_kind(kind):
    own = Project(kind)
    members = names(3)
    all_silos = {name: Silo(own.identity(name), own.trust, members) for name in members}
    data = vectors(3)
    server = Server(context(), members, (5,), trust=own.trust)
    assert np.array_equal(exchange(all_silos, server, data).total, due(data, members))


def test_pinned_keys_instead_of_an_authority():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    members = names(3)
    keys = {name: Ed25519PrivateKey.generate() for name in members}
    trust = Pinned({name: key.public_key() for name, key in keys.items()})
    all_silos = {name: Silo(Identity(name, keys[name]), trust, members) for name in members}
    data = vectors(3)
    server = Server(context(), members, (5,), trust=trust)
    assert np.array_equal(exchange(all_silos, server, data).total, due(data, members))
    with pytest.raises(Refused, match="site-009 has no key here"):
        trust.public_key("site-009", b"")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"days": (-9, -1)},
            "of site-001 is not valid now: .* renew the certificate",
        ),
        ({"days": (1, 9)}, "site-001 is not valid now: it is from .*clock says .* set the clock"),
        ({"subject": "site-002"}, "site-001 shows the certificate of site-002"),
    ],
)
def test_wrong_certificates_are_refused(options, words):
    bad = project().identity("site-001", **options)
    with pytest.raises(Refused, match=words):
        project().trust.public_key("site-001", bad.certificate)


def test_certificates_of_another_authority_are_refused():
    stranger = Project().identity("site-001")
    for certificate in (stranger.certificate, b"", b"nonsense"):
        with pytest.raises(Refused, match="site-001 has no certificate of this project"):
            project().trust.public_key("site-001", certificate)


def test_the_server_leaves_out_a_silo_with_a_wrong_signature():
    members, data = silos(4), vectors(4)
    bad = members["site-002"]
    bad.identity = Project().identity("site-002")
    server = make_server(4)
    found = exchange(members, server, data)
    assert "site-002" not in found.names
    assert "site-002 has no certificate" in server.left_out["site-002"]
    assert np.array_equal(found.total, due(data, list(found.names)))


def test_the_server_leaves_out_wrong_answers():
    members, data = silos(5, threshold=3), vectors(5)
    data["site-003"] = data["site-003"][:4]  # of the wrong length
    members["site-003"].masked = lambda inbox, vector, lengths: Silo.masked(
        members["site-003"], inbox, vector, (4,)
    )
    server = make_server(5, threshold=3)
    found = exchange(members, server, data)
    assert server.left_out == {"site-003": "site-003 has sent 32 bytes, not 40"}
    assert np.array_equal(found.total, due(data, list(found.names)))


def test_a_wrong_share_of_a_key_is_found():
    members, data, server = silos(4), vectors(4), make_server(4)
    unmask = Silo.unmask

    def wrong(own, request):
        found = unmask(own, request)
        (share,) = found.mask_seeds
        return found._replace(mask_seeds=(share._replace(content=bytes(16)),))

    members["site-000"].unmask = lambda request: wrong(members["site-000"], request)
    with pytest.raises(FafedError, match="the shares of site-003 do not give its key"):
        exchange(members, server, data, drop={"masked": ["site-003"]})


def test_shares_below_the_threshold_say_nothing():
    seed = bytes(range(16))
    shares = secrets.split(seed, 3, 5)
    for some in itertools.combinations(shares, 3):
        assert secrets.combine({i: shares[i] for i in some}) == seed
    for some in itertools.combinations(shares, 2):
        assert secrets.combine({i: shares[i] for i in some}) != seed


def test_masks_a_stretch_at_a_time(monkeypatch):
    keys = [(1, b"a" * 32), (-1, b"b" * 32)]
    whole = np.zeros(1000, np.uint64)
    masks.apply(whole, (600, 400), keys)
    monkeypatch.setattr(masks, "STRETCH", 64)
    parts = np.zeros(1000, np.uint64)
    masks.apply(parts, (600, 400), keys)
    assert np.array_equal(whole, parts)
    masks.apply(parts, (600, 400), [(-sign, key) for sign, key in keys])
    assert not parts.any()


def test_a_ledger_survives_a_restart(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(path)
    ledger.begin(context(round=3))
    ledger.hand_over(context(round=3))
    assert path.stat().st_mode & 0o077 == 0
    again = Ledger(path)
    for old in (context(round=3, attempt=9), context(round=2)):
        with pytest.raises(Refused, match="cannot be made again"):
            again.begin(old)
    again.begin(context(round=3, exchange=1))
    again.begin(context(run="another", round=1))
    path.write_text(path.read_text("utf-8").replace("3", "2"), "utf-8")
    with pytest.raises(FafedError, match="is damaged"):
        Ledger(path)


@pytest.mark.slow
def test_a_hundred_silos_in_one_process():
    """With a threshold of 20, because splitting secrets takes most of the time."""
    data = vectors(100, 1000)
    gone = {"masked": names(100)[10:20], "unmask": names(100)[50:60]}
    server = make_server(100, (600, 400), threshold=20)
    found = exchange(silos(100, threshold=20), server, data, drop=gone)
    assert len(found.names) == 90
    assert np.array_equal(found.total, due(data, list(found.names)))
