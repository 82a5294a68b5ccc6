"""Tests of two pure decisions: which source of a package to try next, and which packages to delete from the disk."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from borglet.messages import PackageSources, PeerAddress
from borglet.packages.disk_space import excess_of, to_remove
from borglet.packages.source_choice import THE_STORE, AskForSources, Choosing, FetchPatience, GiveUp, Pause, Try
from borglet.packages.store import StoredPackage
from tests.examples import examples

ONE, TWO = PeerAddress("10.0.0.1", 1), PeerAddress("10.0.0.2", 1)


def choosing(**patience: float) -> Choosing:
    return Choosing(FetchPatience(**patience), random.Random(1), now=0.0)  # type: ignore[arg-type]


def named(*peers: PeerAddress, store: bool = True, retry_after_s: float = 0.0) -> PackageSources:
    return PackageSources(list(peers), "/packages/x" if store else "", "ticket", retry_after_s)


def test_peers_in_their_order_then_the_store_then_a_pause() -> None:
    found = choosing()
    assert found.step(0.0) == AskForSources()
    found.answered(named(TWO, ONE))
    steps = []
    for _ in range(3):
        step = found.step(0.0)
        assert isinstance(step, Try)
        steps.append(step.source)
        found.failed(step.source, "slow", "1 byte/s")
    assert steps == [TWO, ONE, THE_STORE]
    assert isinstance(found.step(0.0), Pause)
    assert found.step(0.0) == AskForSources()
    found.answered(named(TWO, ONE))
    assert found.step(0.0) == Try(THE_STORE)  # a peer that failed is not tried again


def test_a_peer_that_was_busy_is_tried_again_and_costs_no_round() -> None:
    found = choosing(rounds=1)
    for _ in range(20):
        assert found.step(0.0) == AskForSources()
        found.answered(named(ONE, store=False))
        assert found.step(0.0) == Try(ONE)
        found.failed(ONE, "busy", "HTTP 503")
        assert isinstance(found.step(0.0), Pause)
    assert found.step(901.0) == GiveUp("; ".join(["peer 10.0.0.1:1: busy: HTTP 503"] * 6))


def test_the_link_says_when_to_come_back() -> None:
    found = choosing()
    for _ in range(50):
        assert found.step(0.0) == AskForSources()
        found.answered(named(store=False, retry_after_s=2.0))
        pause = found.step(0.0)
        assert isinstance(pause, Pause)
        assert 1.6 <= pause.seconds <= 2.4


def test_a_link_that_is_away_costs_time_and_no_round() -> None:
    found = choosing(rounds=1)
    now = 0.0
    for _ in range(30):
        assert found.step(now) == AskForSources()
        found.unavailable("the link can't be reached", final=False)
        pause = found.step(now)
        assert isinstance(pause, Pause)
        now += pause.seconds
    assert 30.0 < now < 900.0
    assert isinstance(found.step(900.0), GiveUp)


def test_a_final_word_of_the_link_ends_it_at_once() -> None:
    found = choosing()
    found.step(0.0)
    found.unavailable("the link answered 404", final=True)
    assert found.step(0.0) == GiveUp("the link answered 404")


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_whatever_happens_it_ends(data: st.DataObject) -> None:
    """Draw random failures of sources. The search must give up after a bounded number of rounds, or after a bounded
    time.

    Between two rounds there must always be a pause.
    """
    found, now, tries = choosing(rounds=3, patience_s=60.0), 0.0, 0
    for _ in range(2000):
        step = found.step(now)
        if isinstance(step, GiveUp):
            assert step.why
            return
        if isinstance(step, AskForSources):
            tries = 0
            if data.draw(st.booleans()):
                found.unavailable("away", final=data.draw(st.booleans()))
            else:
                peers = data.draw(st.lists(st.sampled_from([ONE, TWO]), max_size=3))
                wait_s = data.draw(st.sampled_from([0.0, 0.5]))
                found.answered(named(*peers, store=data.draw(st.booleans()), retry_after_s=wait_s))
        elif isinstance(step, Try):
            tries += 1
            assert tries <= 4
            found.failed(step.source, data.draw(st.sampled_from(["busy", "slow", "mismatch"])), "")
        else:
            assert step.seconds > 0.0
            now += step.seconds
    raise AssertionError(f"still at it after {now:.0f} s")


def installed(digest: str, size: int, used_at: float) -> StoredPackage:
    return StoredPackage(digest, digest, size, used_at)


def test_the_least_recently_used_leaves_first_and_no_more_than_must() -> None:
    here = [installed("a", 10, 3.0), installed("b", 10, 1.0), installed("c", 10, 2.0), installed("d", 10, 0.0)]

    def leaving(excess_bytes: int, *in_use: str) -> str:
        chosen = to_remove(here, set(in_use), excess_bytes=excess_bytes)
        return "".join(each.digest for each in chosen)

    assert leaving(0) == ""
    assert leaving(1) == "d"
    assert leaving(11) == "db"
    assert leaving(11, "d", "c") == "ba"
    assert leaving(1000, "a") == "dbc"


def test_room_is_short_for_the_budget_or_for_the_disk() -> None:
    plenty = 10**9
    assert excess_of(50, 40, budget_bytes=100, free_bytes=plenty, keep_free_bytes=0) == 0
    assert excess_of(70, 40, budget_bytes=100, free_bytes=plenty, keep_free_bytes=0) == 10
    assert excess_of(50, 40, budget_bytes=plenty, free_bytes=60, keep_free_bytes=30) == 10
    assert excess_of(200, 0, budget_bytes=100, free_bytes=60, keep_free_bytes=300) == 240
