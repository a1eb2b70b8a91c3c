"""A server that lies is refused, and what an honest one holds looks random.

The mutants at the end are wrong silos that give the right sum. Each must fail a check here.
"""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from secure_silos import (
    answer,
    context,
    due,
    exchange,
    identity,
    make_server,
    names,
    project,
    sent,
    silos,
    vectors,
)

from fafed.privacy.secure_sum import masks, secrets, silo
from fafed.privacy.secure_sum.messages import (
    Agreed,
    Answered,
    Box,
    Context,
    Inbox,
    KeyList,
    Plan,
    Refused,
    Unmask,
    read,
    write,
)
from fafed.privacy.secure_sum.server import Server, Sum
from fafed.privacy.secure_sum.silo import Silo, keys_to_sign

N = 6  # the threshold is 5
FOOLED = "site-002"


def fooled(words, lie, *, count=N, drop=None, members=None):
    """The lie is told to one silo. It refuses with these words, and hands over nothing after."""
    members = members or silos(count)
    with pytest.raises(Refused, match=words):
        exchange(
            members,
            make_server(count),
            vectors(count),
            drop=drop,
            lie=lambda step, name, request: lie(step, request) if name == FOOLED else request,
        )
    with pytest.raises(Refused, match="refuses step unmask"):
        members[FOOLED].unmask(Unmask((), (), ()))


def with_own_key(listed):
    """The list of keys with a key of the server's in place of one of site-004's."""
    server_key = silo.X25519PrivateKey.generate().public_key().public_bytes_raw()
    keys = [k._replace(mask_key=server_key) if k.name == "site-004" else k for k in listed.keys]
    return KeyList(tuple(keys))


def check_swapped_keys():
    def lie(step, request):
        return with_own_key(request) if step == "shares" else request

    fooled("the list of keys of site-004 has a wrong signature", lie)


def test_a_swapped_key():
    check_swapped_keys()


def test_the_silos_own_key_swapped():
    def lie(step, request):
        if step != "shares":
            return request
        other = request.keys[0]
        return KeyList(
            tuple(
                k._replace(box_key=other.box_key) if k.name == FOOLED else k for k in request.keys
            )
        )

    fooled(f"the keys of {FOOLED} itself were replaced", lie)


def test_a_silo_that_does_not_exist():
    def lie(step, request):
        if step != "keys":
            return request
        return request._replace(names=tuple(sorted([*request.names, "site-9"])), threshold=5)

    fooled("site-9: not known to site-002 as a silo", lie)


def test_the_server_with_its_own_certificate():
    """It has a certificate of the project. It is no silo."""

    def lie(step, request):
        if step != "keys":
            return request
        return request._replace(names=tuple(sorted([*request.names, "server"])), threshold=5)

    fooled("server: not known to site-002 as a silo", lie)


def test_another_plan_for_one_silo():
    """Its context differs from that of the others, so their signatures are wrong for it."""
    for change in ({"round": 4}, {"exchange": 1}, {"attempt": 1}, {"run": "other"}):

        def lie(step, request, change=change):
            if step != "keys":
                return request
            return request._replace(context=request.context._replace(**change))

        members = silos(N)
        server = Server(context(), names(N), (5,))  # does not look at signatures itself
        with pytest.raises(Refused, match=r"the list of keys of site-00. has a wrong signature"):
            exchange(
                members, server, vectors(N), lie=lambda s, n, r: lie(s, r) if n == FOOLED else r
            )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threshold": 4}, "the threshold 4 of 6 silos is not allowed"),
        ({"threshold": 7}, "the threshold 7 of 6 silos is not allowed"),
        ({"names": ("site-000", "site-002")}, "2 silos are too few"),
        ({"names": ("site-000", "site-001", "site-003")}, "site-002 is not in the list"),
        ({"names": ("site-002", "site-002", "site-003")}, "names a silo twice"),
    ],
)
def test_wrong_plans(change, words):
    fooled(words, lambda step, r: r._replace(**change) if step == "keys" else r)


def test_too_few_keys_and_keys_that_come_twice():
    def few(step, request):
        return KeyList(request.keys[:4]) if step == "shares" else request

    def twice(step, request):
        return KeyList((request.keys[0], *request.keys)) if step == "shares" else request

    fooled("the list of keys has 4 silos, 5 are needed", few)
    fooled("the list of keys is not sorted, or names a silo twice", twice)


def test_a_list_of_fewer_silos_for_one():
    """The fooled silo has another list of keys than the others: their signatures show it."""
    gone = "site-005"

    def lie(step, request):
        if step == "shares":
            return KeyList(tuple(k for k in request.keys if k.name != gone))
        if step == "masked":
            return Inbox(tuple(box for box in request.boxes if box.name != gone))
        if step in ("agree", "unmask"):
            short = tuple(name for name in names(N) if name != gone)
            if step == "agree":
                return Answered(short)
            own = tuple(s for s in request.signatures if s.name != gone)
            return Unmask(short, (), own)
        return request

    members = silos(N)
    server = Server(context(), names(N), (5,))
    real, take = server.plan.names, server.take

    def patient(name, given):  # this server accepts one box too few
        if type(given).__name__ == "Boxes" and name == FOOLED:
            given = given._replace(boxes=(*given.boxes, Box(gone, bytes(80))))
        take(name, given)

    server.take = patient
    assert gone in real
    with pytest.raises(Refused, match=r"site-00[25]"):
        exchange(members, server, vectors(N), lie=lambda s, n, r: lie(s, r) if n == FOOLED else r)


def test_shares_swapped_between_silos():
    def lie(step, request):
        if step != "masked":
            return request
        a, b, *rest = request.boxes
        return Inbox((Box(a.name, b.content), Box(b.name, a.content), *rest))

    fooled("the shares of site-000 for site-002 cannot be decrypted", lie)


def test_too_few_shares():
    def lie(step, request):
        return Inbox(request.boxes[:3]) if step == "masked" else request

    fooled("the list of shares has 4 silos, 5 are needed", lie)


def test_a_forged_list_of_those_who_answered():
    def strangers(step, request):
        if step != "agree":
            return request
        return Answered(tuple(sorted([*request.names[1:], "site-9"])))

    def few(step, request):
        return Answered(request.names[:4]) if step == "agree" else request

    def without(step, request):
        return Answered(tuple(n for n in names(N) if n != FOOLED)) if step == "agree" else request

    fooled("has site-9, who cannot be in it", strangers)
    fooled("the list of masked messages has 4 silos, 5 are needed", few)
    fooled("does not have site-002 itself", without)


def test_another_list_for_one_silo():
    """The server says that site-005 has dropped out to one silo, and not to the others."""
    short = tuple(names(N)[:5])

    def lie(step, request):
        if step == "agree":
            return Answered(short)
        if step == "unmask":
            signed = tuple(s for s in request.signatures if s.name in short)
            return Unmask(short, ("site-005",), signed)
        return request

    members = silos(N)
    server = Server(context(), names(N), (5,))
    with pytest.raises(Refused, match=r"the list of silos of site-00[02] has a wrong signature"):
        exchange(members, server, vectors(N), lie=lambda s, n, r: lie(s, r) if n == FOOLED else r)


def test_two_lists_for_one_silo():
    members, server = silos(N), make_server(N)

    def lie(step, name, request):
        if step == "agree" and name == FOOLED:
            members[FOOLED].agree(Answered(tuple(names(N)[:5])))
        return request

    with pytest.raises(Refused, match="site-002 was shown two lists of silos in one exchange"):
        exchange(members, server, vectors(N), lie=lie)
    with pytest.raises(Refused, match="two lists"):
        members[FOOLED].unmask(Unmask((), (), ()))


def check_both_shares():
    def lie(step, request):
        return request._replace(dropped=("site-004",)) if step == "unmask" else request

    fooled("the server asks for both shares of site-004", lie)


def test_a_request_for_both_shares():
    check_both_shares()


def test_other_masks_than_those_agreed_on():
    def lie(step, request):
        if step != "unmask":
            return request
        return request._replace(answered=request.answered[:5], dropped=("site-005",))

    fooled("the masks of other silos than those agreed on", lie)


def test_too_few_or_wrong_signatures():
    def few(step, request):
        return request._replace(signatures=request.signatures[:4]) if step == "unmask" else request

    def twice(step, request):
        first = request.signatures[:1] if step == "unmask" else ()
        return request._replace(signatures=first * 5) if step == "unmask" else request

    def forged(step, request):
        if step != "unmask":
            return request
        own = tuple(Agreed(s.name, bytes(64)) for s in request.signatures)
        return request._replace(signatures=own)

    fooled("4 silos agree on the list, 5 are needed", few)
    fooled("comes twice", twice)
    fooled("the list of silos of site-000 has a wrong signature", forged)


def test_unmask_asked_twice():
    members, server, asked = silos(N), make_server(N), {}

    def note(step, name, request):
        asked[step, name] = request
        return request

    exchange(members, server, vectors(N), drop={"masked": ["site-005"]}, lie=note)
    request = asked["unmask", FOOLED]
    others = request._replace(answered=request.answered[1:], dropped=("site-000", "site-005"))
    for again in (request, others):
        with pytest.raises(Refused, match="has handed over its shares, and has forgotten the rest"):
            members[FOOLED].unmask(again)


def test_a_round_is_not_made_again_after_shares_were_handed_over():
    members = silos(N)
    exchange(members, make_server(N), vectors(N))
    with pytest.raises(Refused, match="round 3, exchange 0 of run cannot be made again"):
        exchange(members, make_server(N, context=context(attempt=1)), vectors(N))
    exchange(members, make_server(N, context=context(exchange=1)), vectors(N))
    exchange(members, make_server(N, context=context(round=4)), vectors(N))


def test_a_round_is_made_again_before_shares_were_handed_over():
    members, data = silos(N), vectors(N)
    with pytest.raises(Exception, match="step agree of the secure sum"):
        exchange(members, make_server(N), data, drop={"agree": names(N)[:2]})
    found = exchange(members, make_server(N, context=context(attempt=1)), data)
    assert np.array_equal(found.total, due(data, names(N)))


def test_an_old_context_is_refused():
    members = silos(N)
    members[FOOLED].keys(make_server(N, context=context(round=5)).plan)
    for old in (context(), context(round=5), context(round=4, attempt=7)):
        with pytest.raises(Refused, match="is old: this silo has begun"):
            members[FOOLED].keys(make_server(N, context=old).plan)


def test_messages_of_an_old_attempt_are_refused():
    """Keys that were signed for attempt 0 do not pass in attempt 1."""
    members, old = silos(N), {}

    def note(step, name, request):
        old.setdefault(step, request)
        return request

    with pytest.raises(Exception, match="step agree"):
        exchange(members, make_server(N), vectors(N), drop={"agree": names(N)[:2]}, lie=note)

    def replay(step, name, request):
        if step != "shares" or name != FOOLED:
            return request
        own = {k.name: k for k in request.keys}
        return KeyList(tuple(own[k.name] if k.name == FOOLED else k for k in old["shares"].keys))

    with pytest.raises(Refused, match="the list of keys of site-000 has a wrong signature"):
        exchange(members, make_server(N, context=context(attempt=1)), vectors(N), lie=replay)


def test_steps_in_the_wrong_order():
    members = silos(N)
    with pytest.raises(Refused, match="site-002 refuses step agree: no exchange has begun"):
        members[FOOLED].agree(Answered(tuple(names(N))))
    members[FOOLED].keys(make_server(N).plan)
    with pytest.raises(Refused, match="was asked for step unmask instead of shares"):
        members[FOOLED].unmask(Unmask((), (), ()))


def test_secrets_are_forgotten():
    members = silos(N)
    exchange(members, make_server(N), vectors(N))
    assert all(own._exchange is None for own in members.values())


# What the server holds.


def masked_bodies(data, count=3, lengths=(2**14,), **options):
    """The masked messages as the server gets them: name -> numbers."""
    found, members = {}, silos(count)
    server = make_server(count, lengths, **options)
    take = server.take

    def note(name, given):
        if type(given).__name__ == "Masked":
            found[name] = np.frombuffer(given.body, np.uint64).copy()
        take(name, given)

    server.take = note
    total = exchange(members, server, data)
    return found, total


def check_looks_uniform(body):
    """Chi-square of the bytes: 255 degrees of freedom, so 6 standard deviations are 136."""
    counts = np.bincount(body.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 255) < 136, chi


def test_a_masked_message_looks_uniform():
    data = {name: np.zeros(2**14, np.uint64) for name in names(3)}
    found, total = masked_bodies(data)
    assert not total.total.any()
    for body in found.values():
        check_looks_uniform(body)


def test_the_same_message_in_two_rounds_gives_unrelated_ones():
    data = {name: np.full(2**14, 7, np.uint64) for name in names(3)}
    first, _ = masked_bodies(data)
    second, _ = masked_bodies(data, context=context(round=4))
    for name in first:
        with np.errstate(over="ignore"):
            check_looks_uniform(first[name] - second[name])


def check_leaves_have_their_own_streams():
    """Two equal leaves do not look equal."""
    data = {name: np.full(2**14, 7, np.uint64) for name in names(3)}
    found, _ = masked_bodies(data, lengths=(2**13, 2**13))
    for body in found.values():
        with np.errstate(over="ignore"):
            check_looks_uniform(body[: 2**13] - body[2**13 :])


def test_leaves_have_their_own_streams():
    check_leaves_have_their_own_streams()


def check_late_message_stays_hidden():
    """A message that comes after its silo was declared dropped: its pair masks are known to the
    server then. Only the self mask hides it."""
    count, late = 4, "site-003"
    members = silos(count)
    data = {name: np.full(2**14, 7, np.uint64) for name in names(count)}
    server = make_server(count, (2**14,))
    kept = {}

    requests = server.begin()
    while not isinstance(requests, Sum):
        step, answers = server.step, {}
        for name, request in requests.items():
            found = answer(members[name], sent(request), data[name], server.lengths)
            if name == late and step == "masked":
                kept["body"] = np.frombuffer(bytes(found.body), np.uint64).copy()
            elif name != late or step in ("keys", "shares"):
                answers[name] = found
        requests = server.receive(answers)
    # the server removes the pair masks with the key that it has reconstructed
    private = secrets.private_key(server._combined(late, "mask_seeds"), server.digest)
    removed = []
    for name in server.answered:
        secret = secrets.agreed(private, server._keys[name].mask_key, name)
        sign = -1 if late < name else 1
        removed.append((sign, secrets.derive(secret, "pair mask", server.digest)))
    masks.apply(kept["body"], server.lengths, removed)
    check_looks_uniform(kept["body"])


def test_a_late_message_stays_hidden():
    check_late_message_stays_hidden()


def test_nothing_that_the_server_gets_has_a_message_in_clear():
    data = vectors(4, 50)
    seen = []
    exchange(silos(4), make_server(4, (50,)), data, seen=seen)
    everything = b"".join(content for _, _, content in seen)
    for vector in data.values():
        for number in vector:
            assert number.tobytes() not in everything


def test_contexts_give_different_digests():
    """So masks that are reused are impossible, even with the same keys."""
    plans = [
        Plan(Context(run, round, exchange, attempt), tuple(names(count)), t)
        for run, round, exchange, attempt, count, t in itertools.product(
            ("a", "b"), (1, 2), (0, 1), (0, 1), (4, 5), (4, 5)
        )
    ]
    assert len({plan.digest() for plan in plans}) == len(plans)
    derived = {secrets.derive(b"k" * 32, "pair mask", plan.digest()) for plan in plans}
    assert len(derived) == len(plans)


# Wrong silos.


def test_without_a_self_mask_a_late_message_shows(monkeypatch):
    right = Silo._own_masks
    monkeypatch.setattr(Silo, "_own_masks", lambda own, here: right(own, here)[1:])
    with pytest.raises(AssertionError):
        check_late_message_stays_hidden()


def test_one_stream_for_all_leaves_shows(monkeypatch):
    right = masks._stream
    monkeypatch.setattr(masks, "_stream", lambda key, leaf: right(key, 0))
    with pytest.raises(AssertionError):
        check_leaves_have_their_own_streams()


def test_a_signature_that_is_not_verified_shows(monkeypatch):
    monkeypatch.setattr(silo, "verify", lambda *what: None)
    with pytest.raises(pytest.fail.Exception):
        check_swapped_keys()


def test_both_shares_given_shows(monkeypatch):
    monkeypatch.setattr(Silo, "_check_request", lambda own, here, request: None)
    with pytest.raises(pytest.fail.Exception):
        check_both_shares()


# Bytes from anywhere.


def examples():
    members, server = silos(3), make_server(3)
    found = []
    exchange(
        members,
        server,
        vectors(3),
        lie=lambda step, name, request: found.append(request) or request,
    )
    return [*found[::3], members["site-000"].keys(make_server(3, context=context(round=9)).plan)]


def test_every_message_survives_the_wire():
    for message in examples():
        assert sent(message) == message


def test_damaged_bytes_are_refused_or_another_message():
    for message in examples():
        data, kind = write(message), type(message)
        for cut in range(0, len(data), 7):
            with pytest.raises(Refused):
                read(kind, data[:cut])
        with pytest.raises(Refused, match="1 bytes too many"):
            read(kind, data + b"x")
        for at in range(0, len(data), 5):
            changed = bytes([*data[:at], data[at] ^ 0xFF, *data[at + 1 :]])
            with contextlib.suppress(Refused):
                assert read(kind, changed) != message
    with pytest.raises(Refused, match="no message of the kind Plan"):
        read(Plan, b"hello")


def test_lengths_are_limited():
    plan = make_server(3).plan
    huge = write(plan).replace((3).to_bytes(8, "little") + b"\x08", (2**40).to_bytes(8, "little"))
    with pytest.raises(Refused):
        read(Plan, huge)
    with pytest.raises(Refused, match="is no name of a silo"):
        read(Plan, write(plan._replace(names=("a/b",))))


def test_a_signature_covers_the_exchange_the_name_and_both_keys():
    own = silos(3)["site-000"]
    plan = make_server(3).plan
    keys = own.keys(plan)
    key = project().trust.public_key(keys.name, keys.certificate)
    signed = keys_to_sign(plan.digest(), keys.name, keys.box_key, keys.mask_key)
    silo.verify(keys.name, key, keys.signature, signed, "it")
    assert identity("site-000").certificate == keys.certificate
