"""Shamir's secret sharing, against the one of PyCryptodome."""

import itertools
import os

import pytest
from Crypto.Protocol.SecretSharing import Shamir

from fafed.privacy.secure_sum import shamir

SECRETS = [bytes(range(32)), bytes(32), b"\xff" * 32]


def shares(threshold, points):
    return dict(zip(points, shamir.split(SECRETS, threshold, points), strict=True))


def test_any_shares_as_many_as_the_threshold_give_the_secrets():
    found = shares(3, (1, 2, 4, 7, 2**16))
    for some in itertools.combinations(found, 3):
        assert shamir.combine({point: found[point] for point in some}) == SECRETS
        reversed_ = {point: found[point] for point in some[::-1]}
        assert shamir.combine(reversed_) == SECRETS


def test_more_shares_than_the_threshold_give_the_secrets():
    assert shamir.combine(shares(2, (1, 2, 3))) == SECRETS


def test_one_share_too_few_fits_every_secret():
    """With the shares of two silos and any secret there is a polynomial, so a third share too."""
    found = shares(3, (1, 2, 3, 4))
    for some in itertools.combinations(found, 2):
        assert all(
            a != b
            for a, b in zip(shamir.combine({p: found[p] for p in some}), SECRETS, strict=True)
        )


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (2, 3), (4, 5), (14, 20)])
def test_the_shares_are_those_of_pycryptodome(threshold, count):
    secret = os.urandom(16)
    points = range(1, count + 1)
    ours = dict(zip(points, shamir.split([secret], threshold, points), strict=True))
    some = list(ours)[-threshold:]
    assert Shamir.combine([(point, ours[point][0]) for point in some]) == secret
    theirs = dict(Shamir.split(threshold, count, secret))
    assert shamir.combine({point: [theirs[point]] for point in some}) == [secret]


def test_the_polynomial_is_that_of_its_random_coefficients(monkeypatch):
    """p(x) = secret + b x + a x^2, computed with PyCryptodome's field."""
    from Crypto.Protocol.SecretSharing import _Element

    a, b, secret = (bytes([i]) * 16 for i in (0xD1, 0x9E, 0x47))
    drawn = iter([a, b])
    monkeypatch.setattr(shamir.os, "urandom", lambda count: next(drawn))
    points = (1, 2, 3, 255, 65536)
    for point, (share,) in zip(points, shamir.split([secret], 3, points), strict=True):
        x = _Element(point)
        assert share == (_Element(secret) + _Element(b) * x + _Element(a) * x * x).encode()


def test_coefficients_are_drawn_afresh_for_every_secret():
    """Two equal secrets have different shares, now and the next time."""
    found = [shamir.split([bytes(32), bytes(32)], 2, (1, 2))[0] for _ in range(2)]
    halves = {share[at : at + 16] for pair in found for share in pair for at in (0, 16)}
    assert len(halves) == 8
