"""The sessions in which runs of tasks hold locks, and their leases.

A lease begins here when the request was sent, which is before PostgreSQL wrote it. So it ends here first, whatever the
clocks show. A run whose lease has ended is ended in PostgreSQL too, as soon as the link is back: it never holds its
locks again without acquiring them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from borglet.messages import LockAnswer, LockCall, LocksRenewed, RenewLocks, RunSession, TaskRun

log = logging.getLogger(__name__)

RENEW_S = 4.0
RENEW_KEPT_S = 0.5  # if other transactions used sessions during the last renewal
# A lease ends here so much earlier than in PostgreSQL. It covers clocks whose rates differ by up to a fifteenth.
MARGIN_S = 1.0
# For a call that does not wait. The shard's own limits are shorter.
ANSWER_WITHIN_S = 20.0
MOST_WAIT_S = 60.0
# A new Borglet knows the sessions of its machine when it has a connection to the cell.
KNOWN_WITHIN_S = 2.0
MOST_ENDED = 500
MOST_RENEWALS = 100  # without an answer

ACQUIRE = ("POST", "/v1/acquire")

Send = Callable[[msgspec.Struct], None]


def boot_clock() -> float:
    """Return seconds since the machine started. Unlike the monotonic clock, it includes time in which the machine was
    suspended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LinkAway(Exception):
    """The error if a request cannot be sent to the cell, or its answer did not come. The message has the cure."""


@dataclass(slots=True)
class _Lease:
    """The lease of a run that holds locks. `session`: the id of its session in the cell. `over`: set when it ends."""

    session: str
    until: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class _Call:
    """A request of a run that the cell has not answered yet. `acquires`: it acquires a lock."""

    run: TaskRun
    acquires: bool
    answer: asyncio.Future[LockAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(LinkAway(detail))


class LockKeeper:
    """Passes requests of tasks about locks to the link, and keeps the sessions of their runs alive.

    Use it in one asyncio loop. `clock`: seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self._send: Send | None = None
        self._number = 0
        self._calls: dict[int, _Call] = {}
        self._live: set[TaskRun] = set()
        self._leases: dict[TaskRun, _Lease] = {}
        # The newest number when the last answer about a run's session came. Earlier renewals say nothing about it.
        self._answered: dict[TaskRun, int] = {}
        self._lost: set[TaskRun] = set()  # runs that lost a lease, and have acquired no lock since
        # To be ended in PostgreSQL: all sessions of runs that have ended, and the lost sessions of others.
        self._ended: set[TaskRun] = set()
        self._lost_sessions: dict[TaskRun, set[str]] = {}
        self._unsure = True  # the cell may have sessions of this machine that are not in `_leases`
        # Renewals without an answer, by number, and when they were sent.
        self._renewals: dict[int, tuple[float, RenewLocks]] = {}
        self._sent_at = -RENEW_S
        self._due = asyncio.Event()
        self._confirmed = asyncio.Event()  # set and cleared when a renewal was answered
        self._renewing: asyncio.Task[None] | None = None

    # -- the link

    def connected(self, send: Send) -> None:
        """Begin to send messages with `send`."""
        self._send, self._unsure = send, True
        self._renewals.clear()
        self._renewing = asyncio.get_running_loop().create_task(self._renew_forever())

    def disconnected(self) -> None:
        """Send nothing any more. Requests that have no answer yet fail."""
        self._send = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        self._confirmed.set()
        self._confirmed.clear()
        for call in self._calls.values():
            call.fail("the connection to the cell was lost before its answer; read the lock, or acquire it again")

    def take(self, message: LockAnswer | LocksRenewed) -> None:
        """Handle a message of the shard."""
        if isinstance(message, LockAnswer):
            call = self._calls.get(message.number)
            if call is not None and not call.answer.done():
                call.answer.set_result(message)
        elif (renewal := self._renewals.get(message.number)) is not None:
            for number in [number for number in self._renewals if number <= message.number]:
                del self._renewals[number]  # the shard answers the newest of several
            self._renewed(message, *renewal)

    async def close(self) -> None:
        self.disconnected()
        await asyncio.sleep(0)

    # -- tasks

    def begin(self, run: TaskRun) -> None:
        """Begin to accept requests of a run."""
        self._live.add(run)
        if self._unsure:
            self._due.set()

    def end(self, run: TaskRun, *, after_s: float = 0.0) -> None:
        """End the session of a run that has ended. Its locks become free as soon as the shard has the message.

        `after_s`: wait this long, because some processes of the run may still live.
        """
        if run not in self._live:
            return
        if after_s > 0:
            asyncio.get_running_loop().call_later(after_s, self.end, run)
            return
        self._live.discard(run)
        self._lost.discard(run)
        self._lost_sessions.pop(run, None)
        self._answered.pop(run, None)
        self._finish(run)
        self._ended.add(run)
        self._due.set()

    async def call(self, run: TaskRun, method: str, target: str, body: str) -> LockAnswer:
        """Return the cell's answer to a request of a run. Raises `LinkAway` if there is none."""
        send = await self._ready(run)
        self._number += 1
        number, sent_at = self._number, self._clock()
        call = self._calls[number] = _Call(run, (method, target) == ACQUIRE)
        try:
            send(LockCall(number, run, method, target, body))
            async with asyncio.timeout(MOST_WAIT_S + ANSWER_WITHIN_S):
                answer = await call.answer
        except TimeoutError as error:
            raise LinkAway("the cell did not answer in time; read the lock again, or acquire it again") from error
        finally:
            del self._calls[number]
        if answer.holds is not None and run in self._live:
            self._answered[run] = self._number
        if answer.holds is False:
            self._finish(run)
        elif answer.holds and not self._hold(run, answer.session, sent_at + answer.waited_s, answer.lease_s):
            raise LinkAway("the cell answered too late, and the locks of the task are lost; acquire them again")
        return answer

    async def _ready(self, run: TaskRun) -> Send:
        """Return the function that sends messages, when the cell has ended the session that the run lost, and those of
        earlier runs of the task. Raises `LinkAway` if there is no connection.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while self._send is not None and self._is_ending(run):
                    await self._confirmed.wait()
        if self._send is None:
            raise LinkAway("this machine has no connection to its cell now; try again later")
        if self._is_ending(run):
            raise LinkAway("the cell has not ended the lost session of the task yet; try again later")
        return self._send

    def _is_ending(self, run: TaskRun) -> bool:
        return run in self._lost_sessions or any(ended.key == run.key for ended in self._ended)

    async def session(self, run: TaskRun, wait_s: float) -> dict[str, object]:
        """Return whether the run's locks are certainly its own, for how many seconds, and whether it has lost some
        since it last acquired one. With `wait_s`, wait until it does not hold locks any more.

        Raises `LinkAway` if a new Borglet does not know yet whether the run holds locks.
        """
        loop = asyncio.get_running_loop()
        if not self._knows(run):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait_s, KNOWN_WITHIN_S)):
                    while not self._knows(run):
                        await self._confirmed.wait()
            if not self._knows(run):
                detail = (
                    "the Borglet cannot say yet whether the task holds locks; until it can, subtract the time since"
                    " your last answer from the `left_s` of that answer"
                )
                raise LinkAway(detail)
        deadline = loop.time() + min(wait_s, MOST_WAIT_S)
        while (lease := self._lease_of(run)) is not None and (wait_s := deadline - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, lease.until - self._clock())):
                    await lease.over.wait()
        left_s = self.left_s(run)
        name = f"{run.key}/{run.run}"
        return {"session": name, "holds": left_s > 0, "left_s": left_s, "lost": run in self._lost}

    def left_s(self, run: TaskRun) -> float:
        """Return for how many seconds the locks of a run are certainly its own; 0 if it holds none."""
        lease = self._lease_of(run)
        return round(lease.until - self._clock(), 3) if lease is not None else 0.0

    def has_none(self, run: TaskRun) -> bool:
        """Return whether it is certain that the run holds no lock. After the start of this process, that is not certain
        until the cell has answered a renewal.
        """
        return self._knows(run) and run not in self._leases

    # -- leases

    def _knows(self, run: TaskRun) -> bool:
        return not self._unsure or run in self._leases or run in self._lost

    def _hold(self, run: TaskRun, session: str, begun_at: float, lease_s: float) -> bool:
        """Begin or extend the lease of a run. Return whether the run has its locks. `begun_at`: a time before
        PostgreSQL wrote it.

        If the run had another session, it has lost the locks of that session. Then it loses the new one too, so that it
        cannot take the new lease for that of its earlier locks.
        """
        until, now = begun_at + lease_s - MARGIN_S, self._clock()
        if run not in self._live:
            self._ended.add(run)
            self._due.set()
            return False
        lease = self._leases.get(run)
        if until <= now or (lease is not None and lease.until <= now):
            self._lose(run, "its lease was not renewed in time", session)
            return False
        if lease is not None and lease.session != session:
            self._lose(run, "the cell has ended its session", session)
            return False
        self._lost.discard(run)
        if lease is not None:
            lease.until = max(lease.until, until)
            return True
        if not self._leases:
            self._sent_at = now
        self._leases[run] = _Lease(session, until)
        self._due.set()
        return True

    def _finish(self, run: TaskRun) -> None:
        lease = self._leases.pop(run, None)
        if lease is not None:
            lease.over.set()

    def _lose(self, run: TaskRun, why: str, *sessions: str) -> None:
        """End the lease of a run. `sessions`: other sessions of the run that must end in the cell too."""
        log.warning("task %s has lost its locks: %s", run.key, why)
        lease = self._leases.get(run)
        self._finish(run)
        self._lost.add(run)
        for call in self._calls.values():
            if call.run == run and call.acquires:  # the shard ends these requests
                call.fail("the locks of the task were lost meanwhile; acquire the lock again")
        self._end_lost(run, *sessions, *([lease.session] if lease is not None else []))

    def _end_lost(self, run: TaskRun, *sessions: str) -> None:
        self._lost_sessions.setdefault(run, set()).update(sessions)
        self._due.set()

    def _lease_of(self, run: TaskRun) -> _Lease | None:
        """Return the lease of a run, or None if it has ended."""
        lease = self._leases.get(run)
        if lease is not None and lease.until <= self._clock():
            self._lose(run, "its lease was not renewed in time")
            return None
        return lease

    async def _renew_forever(self) -> None:
        while True:
            for run in list(self._leases):
                self._lease_of(run)
            self._due.clear()
            urgent = self._ended or self._lost_sessions or (self._unsure and self._live)
            if self._send is not None and (urgent or (self._leases and self._clock() >= self._sent_at + RENEW_S)):
                self._number, self._sent_at = self._number + 1, self._clock()
                renewal = RenewLocks(self._number, *self._to_end())
                self._renewals[self._number] = self._sent_at, renewal
                while len(self._renewals) > MOST_RENEWALS:
                    del self._renewals[next(iter(self._renewals))]
                self._send(renewal)
            pause_s = max(0.01, self._sent_at + RENEW_S - self._clock()) if urgent or self._leases else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._due.wait()

    def _to_end(self) -> tuple[list[TaskRun], list[RunSession]]:
        """Return the runs whose sessions end, and those of them that still run, with the sessions that they lost."""
        living = sorted(self._lost_sessions)[:MOST_ENDED]
        lost = [RunSession(run, session) for run in living for session in sorted(self._lost_sessions[run])]
        return sorted(self._ended)[:MOST_ENDED] + living, lost

    def _renewed(self, message: LocksRenewed, sent_at: float, renewal: RenewLocks) -> None:
        renewed = {one.run: one.session for one in message.runs}
        kept = {one.run: one.session for one in message.kept}
        listed = renewed | kept
        self._unsure = any(run in self._live and run not in self._leases for run in kept)
        self._ended -= set(renewal.ended) - listed.keys()
        for one in renewal.lost:
            if listed.get(one.run) != one.session and (sessions := self._lost_sessions.get(one.run)) is not None:
                sessions.discard(one.session)
                if not sessions:
                    del self._lost_sessions[one.run]
        changed = {run for run, number in self._answered.items() if message.number <= number}
        for run in renewed.keys() - self._leases.keys() - changed:
            if run in self._live and run not in self._lost and run not in self._lost_sessions:
                self._hold(run, renewed[run], sent_at, message.lease_s)
            elif run in self._live:
                self._end_lost(run, renewed[run])
            else:
                self._ended.add(run)
                self._due.set()
        for run, lease in list(self._leases.items()):
            if renewed.get(run) == lease.session:
                lease.until = max(lease.until, sent_at + message.lease_s - MARGIN_S)
            elif run not in changed and kept.get(run) != lease.session:
                self._lose(run, "the cell has ended its session", *([listed[run]] if run in listed else []))
        if any(run in self._leases for run in kept):  # a busy session must not stay without a renewal for long
            self._sent_at = min(self._sent_at, self._clock() - RENEW_S + RENEW_KEPT_S)
            self._due.set()
        self._confirmed.set()
        self._confirmed.clear()
