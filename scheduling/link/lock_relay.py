"""What a shard does with the messages of machines about locks (`borglet.messages.locks`).

    LockCall ──► read_request ─► a database thread: does the machine run the task? ─► scheduling.locks ─► LockAnswer
                     └─ waits ─► `LockWaits`, in the event loop
    RenewLocks ► those of all machines within 0.1 s are one statement, in a thread of its own ─► LocksRenewed

If PostgreSQL is away, calls get an error at once, and renewals no answer. The Borglets then end the leases themselves.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import msgspec
import structlog

from borglet.messages import LockAnswer, LockCall, LocksRenewed, RenewLocks, RunSession, TaskRun
from quota.vocabulary.errors import Conflict, Rejected
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.database import Database, DatabaseAway
from scheduling.link.shard.metrics import ShardMetrics
from scheduling.link.transport.asgi import problem
from scheduling.locks import locks, notices, sessions, task_calls
from scheduling.locks.lock_rules import TASK_LEASE_S
from scheduling.locks.notices import LockKey
from scheduling.locks.sessions import Connected, Renewed, Space
from scheduling.locks.task_calls import Caller, Done, Request
from scheduling.locks.waiting import LockWaits

log = structlog.get_logger(__name__)
_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)
T = TypeVar("T")

RENEW_WITHIN_S = 0.1
# How often a renewal tries sessions that other transactions use.
TRIES, TRY_AGAIN_S = 3, 0.05
# Calls that wait: of one run, of one machine, and of the shard, with the bytes of the contents that they will write.
MAX_WAITING_OF_RUN, MAX_WAITING_OF_MACHINE, MAX_WAITING, MAX_WAITING_BYTES = 32, 500, 50_000, 64 * 2**20
# Calls that wait for the database thread.
MAX_QUEUED = 1_000
MAX_ENDED = 1_000
# A watcher that asks again is checked again after this time. Changes are always checked.
CALLER_S, MAX_CALLERS = 5.0, 20_000


@dataclass(eq=False, slots=True)
class _Open:
    """A call that is being answered. `acquires`: it acquires a lock. `waits`: it may wait for a lock."""

    connection: Connection
    run: TaskRun
    acquires: bool
    waits: bool
    size: int
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Renewal:
    """The renewals of a machine that are made together. `number`: of the newest one. `lost`: sessions that running
    tasks have lost.
    """

    number: int
    ended: set[TaskRun] = field(default_factory=set)
    lost: dict[TaskRun, set[uuid.UUID]] = field(default_factory=dict)

    def add(self, renewal: RenewLocks) -> None:
        self.number = renewal.number
        lost = {one.run: one.session for one in renewal.lost}
        self.ended |= {run for run in renewal.ended[:MAX_ENDED] if run not in lost and task_calls.well_formed(run)}
        for one in renewal.lost[:MAX_ENDED]:
            if task_calls.well_formed(one.run) and _UID.fullmatch(one.session):
                self.lost.setdefault(one.run, set()).add(uuid.UUID(hex=one.session))

    def lost_sessions(self) -> set[uuid.UUID]:
        return set().union(*self.lost.values())

    def remains(self, found: list[RunSession]) -> bool:
        """Return whether one of these sessions should have ended."""
        return any(one.run in self.ended or uuid.UUID(hex=one.session) in self.lost.get(one.run, ()) for one in found)


class LockRelay:
    """The calls about locks that one shard is answering. Use it in one asyncio loop."""

    def __init__(self, figures: ShardMetrics) -> None:
        self._database = Database("link-locks")
        # A thread of its own, so that no tenant's calls delay the renewals of others.
        self._renewals_database = Database("link-lock-renewals")
        self._figures = figures
        self.waits = LockWaits(self._read)
        self._open: dict[Connection, set[_Open]] = {}
        self._waiting: Counter[Connection | TaskRun] = Counter()
        self._waiting_calls = self._waiting_bytes = self._queued = 0
        self._callers: dict[tuple[Connected, TaskRun], tuple[Caller, float]] = {}
        self._renewals: dict[Connection, _Renewal] = {}
        self._renewing: asyncio.Task[None] | None = None
        figures.lock_waits = lambda: self.waits.waiting

    def call(self, connection: Connection, call: LockCall) -> None:
        """Answer a request of a task on the machine of this connection, now or after it has waited."""
        self._figures.lock_calls += 1
        try:
            request = task_calls.read_request(call.method, call.target, call.body)
            waits = request.wait_s > 0
            size = len(request.content or "")
            if waits:
                self._check_waiting(connection, call.run, size)
        except Rejected as error:
            connection.post(_rejection(call.number, error))
            return
        opened = _Open(connection, call.run, request.verb == "acquire", waits, size)
        self._count(opened, 1)
        # The task of asyncio does not keep `call`, whose body may be large.
        number = call.number
        opened.task = asyncio.get_running_loop().create_task(self._answer(connection, number, call.run, request))
        self._open.setdefault(connection, set()).add(opened)
        opened.task.add_done_callback(lambda task: self._closed(opened, number, cancelled=task.cancelled()))

    def renew(self, connection: Connection, renewal: RenewLocks) -> None:
        """Renew the leases of a machine, together with those of other machines. Calls of runs that have ended acquire
        nothing any more.
        """
        merged = self._renewals.setdefault(connection, _Renewal(0))
        merged.add(renewal)
        for opened in list(self._open.get(connection, ())) if renewal.ended else ():
            cancels = opened.run in merged.ended or (opened.acquires and opened.run in merged.lost)
            if cancels and opened.task is not None:
                opened.task.cancel()
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew_all())

    def left(self, connection: Connection) -> None:
        """Forget a connection that has ended. Its calls acquire nothing any more."""
        self._renewals.pop(connection, None)
        for opened in list(self._open.get(connection, ())):
            if opened.task is not None:
                opened.task.cancel()

    def changed(self, message: bytes) -> None:
        """Handle a notice that locks have changed."""
        try:
            keys = notices.read(message)
        except ValueError as error:
            log.warning(
                "cannot read a message from Redis about changed locks;"
                " requests that wait for locks read them again a few seconds later",
                error=str(error),
            )
            return
        for key in keys:
            self.waits.changed(key)

    async def stop(self) -> None:
        running = [opened.task for calls in self._open.values() for opened in calls if opened.task is not None]
        if self._renewing is not None:
            running.append(self._renewing)
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._database.close()
        await self._renewals_database.close()

    # -- limits

    def _check_waiting(self, connection: Connection, run: TaskRun, size: int) -> None:
        """Raise `Rejected` if too many calls wait. Calls that do not wait, such as releases, are always accepted."""
        for of, number, most in (
            ("the task", self._waiting[run], MAX_WAITING_OF_RUN),
            ("this machine", self._waiting[connection], MAX_WAITING_OF_MACHINE),
            ("this link server", self._waiting_calls, MAX_WAITING),
        ):
            if number >= most:
                raise _busy(f"{number} requests of {of} wait for locks already, which is the limit")
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise _busy("the requests that wait for locks have too large contents; acquire the lock without a content")

    def _count(self, opened: _Open, change: int) -> None:
        if not opened.waits:
            return
        self._waiting_calls += change
        self._waiting_bytes += change * opened.size
        for key in (opened.connection, opened.run):
            self._waiting[key] += change
            if not self._waiting[key]:
                del self._waiting[key]

    def _closed(self, opened: _Open, number: int, *, cancelled: bool) -> None:
        if cancelled:  # perhaps before the first line of `_answer`
            detail = "the session of the task ended while the request waited; acquire the lock again"
            opened.connection.post(_rejection(number, Conflict("session-ended", detail)))
        self._count(opened, -1)
        calls = self._open.get(opened.connection)
        if calls is not None:
            calls.discard(opened)
            if not calls:
                del self._open[opened.connection]

    # -- answers

    async def _answer(self, connection: Connection, number: int, run: TaskRun, request: Request) -> None:
        try:
            answer = await self._answered(_connected(connection), number, run, request)
        except Rejected as error:
            answer = _rejection(number, error)
        except DatabaseAway:
            detail = "the cell's database is unreachable; try again later"
            answer = _rejection(number, Rejected("database-away", detail, status=503))
        except Exception:
            log.exception("cannot answer a request about locks", machine=connection.hostname)
            detail = "the request failed in the link server; its log has the reason"
            answer = _rejection(number, Rejected("internal-error", detail, status=500))
        connection.post(answer)

    async def _answered(self, machine: Connected, number: int, run: TaskRun, request: Request) -> LockAnswer:
        loop = asyncio.get_running_loop()
        received_at = tried_at = loop.time()

        async def attempt() -> Done:
            nonlocal tried_at
            tried_at = loop.time()
            return await self._in_thread(lambda: _perform(machine, run, request))

        if request.verb == "read" and request.after is not None:
            caller = await self._caller(machine, run)
            task_calls.check_use(caller, request)
            found = await self.waits.watch(caller.key(request.name), request.after, request.wait_s)
            done = Done(task_calls.shown(found, name=request.name))
        elif request.verb == "acquire" and request.wait_s > 0:
            caller = await self._caller(machine, run)
            task_calls.check_use(caller, request)
            done = await self.waits.acquire(caller.key(request.name), request.wait_s, attempt)
        else:
            done = await attempt()
        text = msgspec.json.encode(done.body).decode()
        waited_s = tried_at - received_at
        return LockAnswer(number, HTTPStatus.OK, text, done.holds, done.session, waited_s, TASK_LEASE_S)

    async def _caller(self, machine: Connected, run: TaskRun) -> Caller:
        """Return the task of a run. It may have been stopped since a few seconds, so each attempt checks it again."""
        now = asyncio.get_running_loop().time()
        known = self._callers.get((machine, run))
        if known is not None and now < known[1]:
            return known[0]
        caller = await self._in_thread(lambda: task_calls.caller_of(machine, run))
        if len(self._callers) >= MAX_CALLERS:
            self._callers.clear()
        self._callers[machine, run] = caller, now + CALLER_S
        return caller

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._queued >= MAX_QUEUED:
            raise _busy("this link server has too many requests about locks")
        self._queued += 1
        try:
            return await self._database(work)
        finally:
            self._queued -= 1

    async def _read(self, key: LockKey) -> locks.Lock | None:
        return await self._in_thread(lambda: locks.find(Space(key.cell_id, key.tenant_id), key.name))

    # -- renewals

    async def _renew_all(self) -> None:
        await asyncio.sleep(RENEW_WITHIN_S)
        while self._renewals:
            batch, self._renewals = self._renewals, {}
            machines = {_connected(connection): renewal for connection, renewal in batch.items()}
            try:
                found = await self._renewals_database(_renew, machines)
            except DatabaseAway as error:
                log.warning(
                    "PostgreSQL is unreachable; the leases of locks that tasks hold were not renewed",
                    machines=len(batch),
                    error=str(error),
                )
                continue
            except Exception:
                log.exception("cannot renew the leases of locks that tasks hold", machines=len(batch))
                continue
            self._figures.lock_renewals += sum(map(len, found.sessions.values()))
            for connection, renewal in batch.items():
                renewed, busy = found.sessions[connection.machine_id], found.busy[connection.machine_id]
                connection.post(LocksRenewed(renewal.number, TASK_LEASE_S, renewed, busy))


def _connected(connection: Connection) -> Connected:
    return Connected(connection.machine_id, connection.session)


def _perform(machine: Connected, run: TaskRun, request: Request) -> Done:
    caller = task_calls.caller_of(machine, run)
    task_calls.check_use(caller, request)
    return task_calls.perform(caller, request)


def _renew(machines: dict[Connected, _Renewal]) -> Renewed:
    """Make renewals. Sessions that other transactions use are tried again: most transactions take some milliseconds."""
    found = Renewed({}, {})
    for attempt in range(TRIES):
        if attempt:
            time.sleep(TRY_AGAIN_S)
        sessions.end_runs({machine: renewal.ended for machine, renewal in machines.items()})
        sessions.end_lost({machine: renewal.lost_sessions() for machine, renewal in machines.items()})
        some = sessions.renew_machines(machines)
        for machine_id, _ in machines:
            found.sessions[machine_id] = some.sessions.get(machine_id, [])
            found.busy[machine_id] = some.busy.get(machine_id, [])
        machines = {
            machine: renewal
            for machine, renewal in machines.items()
            if found.busy[machine.machine_id] or renewal.remains(found.sessions[machine.machine_id])
        }
        if not machines:
            break
    return found


def _busy(what: str) -> Rejected:
    return Rejected("locks-busy", f"{what}; try again later", status=503)


def _rejection(number: int, error: Rejected) -> LockAnswer:
    return LockAnswer(number, error.status, problem(error)[1].decode())
