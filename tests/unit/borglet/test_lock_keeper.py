"""Leases of locks on a machine: they end here before they end in the cell, and a lost one never comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from borglet.locks import keeper
from borglet.locks.keeper import MARGIN_S, RENEW_S, LinkAway, LockKeeper
from borglet.messages import LockAnswer, LockCall, LocksRenewed, RenewLocks, RunSession, TaskKey, TaskRun

LEASE_S = 15.0
RUN, OTHER = TaskRun(TaskKey("a" * 32, 0, 1), 1), TaskRun(TaskKey("a" * 32, 1, 1), 1)


def renewed(asked: RenewLocks, *runs: TaskRun, session: str = "s1") -> LocksRenewed:
    return LocksRenewed(asked.number, LEASE_S, [RunSession(run, session) for run in runs])


class Cell:
    """The other end of the link: it records messages, and answers when the test says so. Its time is virtual."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.keeper = LockKeeper(lambda: self.now)
        self.sent: list[Any] = []

    def send(self, message: msgspec.Struct) -> None:
        self.sent.append(message)

    async def calls(self, kind: type[Any]) -> Any:
        """Return the next message of this kind."""
        async with asyncio.timeout(10):
            while not (found := [message for message in self.sent if isinstance(message, kind)]):
                await asyncio.sleep(0)
        self.sent.remove(found[0])
        return found[0]

    async def acquires(
        self, run: TaskRun = RUN, *, waited_s: float = 0.0, slow_s: float = 0.0, session: str = "s1"
    ) -> LockAnswer:
        call = asyncio.ensure_future(self.keeper.call(run, "POST", "/v1/acquire", "{}"))
        asked = await self.calls(LockCall)
        assert asked.run == run
        self.now += waited_s + slow_s
        self.keeper.take(
            LockAnswer(asked.number, 200, "{}", holds=True, session=session, waited_s=waited_s, lease_s=LEASE_S)
        )
        return await call

    async def releases(self, run: TaskRun = RUN) -> None:
        call = asyncio.ensure_future(self.keeper.call(run, "POST", "/v1/release", "{}"))
        asked = await self.calls(LockCall)
        self.keeper.take(LockAnswer(asked.number, 200, "{}", holds=False))
        await call

    async def renews(self, *runs: TaskRun) -> RenewLocks:
        asked: RenewLocks = await self.calls(RenewLocks)
        self.keeper.take(renewed(asked, *runs))
        return asked

    async def left_s(self, run: TaskRun = RUN) -> float:
        answer = await self.keeper.session(run, 0.0)
        return float(str(answer["left_s"]))

    async def lost(self, run: TaskRun = RUN) -> bool:
        return bool((await self.keeper.session(run, 0.0))["lost"])


def with_cell(story: Callable[[Cell], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        cell = Cell()
        cell.keeper.connected(cell.send)
        try:
            await story(cell)
        finally:
            await cell.keeper.close()

    asyncio.run(main())


def test_a_lease_begins_when_the_request_was_sent() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires(slow_s=2.0)
        assert await cell.left_s() == LEASE_S - MARGIN_S - 2.0
        with pytest.raises(LinkAway, match="too late"):  # the earlier lease ended while the call waited
            await cell.acquires(waited_s=30.0, slow_s=1.0)
        assert await cell.left_s() == 0
        assert await cell.lost()

    with_cell(story)


def test_the_time_for_which_the_cell_waited_does_not_count() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires(waited_s=30.0, slow_s=2.0)
        assert await cell.left_s() == LEASE_S - MARGIN_S - 2.0

    with_cell(story)


def test_a_renewal_extends_the_lease_from_when_it_was_sent() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)  # sends a message at once
        cell.now += 3.0
        asked = await cell.calls(RenewLocks)
        cell.now += 2.0
        assert asked.ended == [OTHER]
        cell.keeper.take(renewed(asked, RUN))
        assert await cell.left_s() == LEASE_S - MARGIN_S - 2.0

    with_cell(story)


def test_without_the_link_a_lease_ends_here_first_and_is_then_ended_in_the_cell() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        cell.keeper.disconnected()
        with pytest.raises(LinkAway, match="no connection"):
            await cell.keeper.call(RUN, "GET", "/v1/locks", "")
        cell.now += LEASE_S - MARGIN_S - 0.1
        assert await cell.left_s() > 0
        waiting = asyncio.ensure_future(cell.keeper.session(RUN, 60.0))
        await asyncio.sleep(0)
        cell.now += 0.2
        assert (await waiting)["holds"] is False
        assert await cell.lost()
        cell.sent.clear()
        cell.keeper.connected(cell.send)
        call = asyncio.ensure_future(cell.keeper.call(RUN, "POST", "/v1/acquire", "{}"))
        asked = await cell.calls(RenewLocks)
        assert asked.ended == [RUN], "a run that lost its locks does not get them back"
        assert cell.sent == [], "a new acquisition waits until the old session has ended"
        assert asked.lost == [RunSession(RUN, "s1")]
        cell.keeper.take(LocksRenewed(asked.number, LEASE_S, []))
        acquire = await cell.calls(LockCall)
        cell.keeper.take(LockAnswer(acquire.number, 200, "{}", holds=True, session="s2", lease_s=LEASE_S))
        await call
        assert await cell.left_s() > 0
        assert not await cell.lost()

    with_cell(story)


def test_a_session_that_the_cell_has_ended_is_lost_at_the_next_renewal() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)
        await cell.renews()
        assert await cell.lost()

    with_cell(story)


def test_a_new_session_is_not_taken_for_a_lost_one() -> None:
    """An owner ends the session of a run. Before the next renewal, the run acquires another lock in a new session."""

    async def acquires(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        with pytest.raises(LinkAway, match="lost"):
            await cell.acquires(session="s2")
        assert await cell.lost()
        asked = await cell.renews()
        assert asked.ended == [RUN]
        assert asked.lost == [RunSession(RUN, "s1"), RunSession(RUN, "s2")]

    async def renews(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)
        cell.keeper.take(renewed(await cell.calls(RenewLocks), RUN, session="s2"))
        assert await cell.lost()
        cell.keeper.end(RUN)
        asked = await cell.renews()
        assert (asked.ended, asked.lost) == ([RUN], []), "all sessions of a run that has ended end"

    with_cell(acquires)
    with_cell(renews)


def test_a_session_that_was_not_renewed_now_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "KNOWN_WITHIN_S", 0.01)

    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        kept = [RunSession(RUN, "s1")]
        asked = await cell.calls(RenewLocks)
        cell.keeper.take(LocksRenewed(asked.number, LEASE_S, [], kept))
        with pytest.raises(LinkAway, match="cannot say yet"):  # a new Borglet
            await cell.keeper.session(RUN, 0.0)
        assert not cell.keeper.has_none(RUN), "perhaps it has"
        await cell.acquires()
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)
        asked = await cell.calls(RenewLocks)
        cell.now += 3.0
        cell.keeper.take(LocksRenewed(asked.number, LEASE_S, [], [*kept, RunSession(OTHER, "s3")]))
        assert await cell.left_s() == LEASE_S - MARGIN_S - 3.0
        cell.now += keeper.RENEW_KEPT_S  # it asks again soon
        cell.keeper.begin(OTHER)
        assert (await cell.calls(RenewLocks)).ended == [OTHER], "its session has not ended yet"

    with_cell(story)


def test_a_renewal_that_was_sent_before_a_release_says_nothing_about_the_session() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)
        early = await cell.calls(RenewLocks)
        await cell.releases()
        cell.keeper.take(renewed(early, RUN))
        assert await cell.left_s() == 0, "the session has ended"
        assert not await cell.lost()
        await cell.acquires()
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)
        asked = await cell.calls(RenewLocks)
        await cell.releases()
        await cell.acquires(session="s2")
        cell.keeper.take(renewed(asked, RUN))
        assert await cell.left_s() > 0, "the new session is not lost"

    with_cell(story)


def test_a_run_that_loses_its_locks_acquires_none_for_which_it_waits() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        waiting = asyncio.ensure_future(cell.keeper.call(RUN, "POST", "/v1/acquire", "{}"))
        watching = asyncio.ensure_future(cell.keeper.call(RUN, "GET", "/v1/locks/a?after=1&wait_s=60", ""))
        await cell.calls(LockCall)
        watch = await cell.calls(LockCall)
        cell.keeper.begin(OTHER)
        cell.keeper.end(OTHER)
        await cell.renews()
        with pytest.raises(LinkAway, match="were lost"):
            await waiting
        cell.keeper.take(LockAnswer(watch.number, 200, "{}"))
        assert (await watching).status == 200, "a watch needs no session"

    with_cell(story)


def test_a_restarted_task_acquires_after_its_earlier_run_has_ended() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        cell.keeper.end(RUN)
        again = TaskRun(RUN.key, 2)
        cell.keeper.begin(again)
        call = asyncio.ensure_future(cell.keeper.call(again, "POST", "/v1/acquire", "{}"))
        await cell.renews()
        assert cell.sent == [], "its own earlier run may still hold the lock"
        asked = await cell.calls(LockCall)
        cell.keeper.take(LockAnswer(asked.number, 409, "{}"))
        await call

    with_cell(story)


def test_each_answer_to_a_renewal_counts_from_when_it_was_sent() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        await cell.acquires()
        asked = []
        for number in range(3):
            other = TaskRun(TaskKey("b" * 32, number, 1), 1)
            cell.keeper.begin(other)
            cell.keeper.end(other)
            asked.append(await cell.calls(RenewLocks))
            cell.now += 1.0
        cell.keeper.take(renewed(asked[1], RUN))
        assert await cell.left_s() == LEASE_S - MARGIN_S - 2.0
        cell.keeper.take(renewed(asked[2], RUN))
        assert await cell.left_s() == LEASE_S - MARGIN_S - 1.0
        cell.keeper.take(renewed(asked[0], RUN))
        assert await cell.left_s() == LEASE_S - MARGIN_S - 1.0

    with_cell(story)


def test_the_session_of_a_run_with_live_processes_ends_later() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews()
        cell.keeper.end(RUN, after_s=0.05)
        for _ in range(5):
            await asyncio.sleep(0)
        assert cell.sent == []
        assert (await cell.renews()).ended == [RUN]

    with_cell(story)


def test_a_new_borglet_continues_sessions_of_runs_that_live_and_ends_others() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        await cell.renews(RUN, OTHER)
        assert 0 < await cell.left_s() <= LEASE_S - MARGIN_S
        assert (await cell.renews(RUN)).ended == [OTHER]

    with_cell(story)


def test_a_machine_without_locks_sends_nothing() -> None:
    async def story(cell: Cell) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        assert cell.sent == []
        cell.keeper.begin(RUN)
        await cell.renews()
        cell.now += 10 * RENEW_S
        cell.keeper.begin(OTHER)
        for _ in range(10):
            await asyncio.sleep(0)
        assert cell.sent == [], "tasks that may use locks and hold none are not renewed"

    with_cell(story)


def test_calls_fail_at_once_when_the_connection_is_lost() -> None:
    async def story(cell: Cell) -> None:
        cell.keeper.begin(RUN)
        call = asyncio.ensure_future(cell.keeper.call(RUN, "GET", "/v1/locks", ""))
        await cell.calls(LockCall)
        cell.keeper.disconnected()
        with pytest.raises(LinkAway, match="was lost"):
            await call

    with_cell(story)
