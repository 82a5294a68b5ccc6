"""Tests of token buckets, with virtual time."""

from __future__ import annotations

from serving.buckets import WINDOW_S, Bucket, Rate

RATE = Rate("token", 5)


def accepted(bucket: Bucket, requests: int, *, now: float) -> int:
    """Send requests at the time `now`, and return how many have a token."""
    number = 0
    for _ in range(requests):
        if not bucket.wait_s(now):
            bucket.take(now)
            number += 1
    return number


def test_a_full_bucket_has_the_requests_of_ten_seconds() -> None:
    bucket = Bucket(RATE, now=100.0)
    assert bucket.left(100.0) == RATE.quota == 50
    assert accepted(bucket, 80, now=100.0) == 50
    assert (bucket.left(100.0), bucket.refill_s(100.0)) == (0, WINDOW_S)


def test_tokens_return_at_the_rate() -> None:
    bucket = Bucket(RATE, now=0.0)
    accepted(bucket, 50, now=0.0)
    assert 0.199 < bucket.wait_s(0.0) < 0.201
    assert not bucket.wait_s(0.2)
    assert accepted(bucket, 50, now=3.0) == 15
    assert [accepted(bucket, 10, now=3.0 + second) for second in range(1, 21)] == [5] * 20


def test_a_pause_fills_the_bucket_and_no_more() -> None:
    bucket = Bucket(RATE, now=0.0)
    accepted(bucket, 30, now=0.0)
    assert bucket.refill_s(0.0) == 6
    assert (bucket.left(6.0), bucket.left(1_000.0)) == (50, 50)
    assert accepted(bucket, 80, now=1_000.0) == 50


def test_rejected_requests_take_no_tokens() -> None:
    bucket = Bucket(RATE, now=0.0)
    accepted(bucket, 1_000, now=0.0)
    assert accepted(bucket, 1, now=0.2) == 1
