"""Tests of the limits on watches, which are requests that wait for changes: in total and per caller."""

from __future__ import annotations

import threading

import pytest

from portal.live.watch_limits import OpenWatch, TooManyWatches, Watches
from quota.vocabulary.permissions import Principal

ANN, BOB, TASK = Principal("ann", user_id=1), Principal("bob", user_id=2), Principal("task:cc/ubar/web/0")


def begin(watches: Watches, principal: Principal) -> OpenWatch:
    return watches.begin(principal, most=4, most_of_one=2)


def test_one_caller_leaves_room_for_others() -> None:
    watches = Watches()
    first = begin(watches, ANN)
    begin(watches, Principal("ann", user_id=1, tenant="ubar"))  # by another token
    with pytest.raises(TooManyWatches) as refused:
        begin(watches, ANN)
    assert (refused.value.status, refused.value.figures["most"]) == (429, 2)
    problem = "ann has 2 open watches, which is the limit; close some of them, or try again in 10 s"
    assert str(refused.value) == problem
    begin(watches, TASK)
    begin(watches, BOB)
    with pytest.raises(TooManyWatches, match="this web process has 4 open watches"):
        begin(watches, BOB)
    first.end()
    first.end()  # a second call changes nothing
    begin(watches, ANN)
    with pytest.raises(TooManyWatches):
        begin(watches, ANN)


def test_a_watch_leaves_nothing_behind_whichever_side_ends_it() -> None:
    watches = Watches()
    begun = [watches.begin(ANN, most=10_000, most_of_one=10_000) for _ in range(4_000)]
    threads = [threading.Thread(target=lambda: [watch.end() for watch in begun]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(watches) == 0
    assert begin(watches, ANN)
