"""What a shard does with the messages of machines about locks (`borglet.messages.locks`).

    LockCall ──► read_request ─► one database thread: does the machine run the task? ─► scheduling.locks ─► LockAnswer
                     └─ waits ─► `LockWaits`, in the event loop
    RenewLocks ► those of all machines within 0.1 s are one statement ─► LocksRenewed

If PostgreSQL is away, calls get an error at once, and renewals no answer. The Borglets then end the leases themselves.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
import structlog

from borglet.messages import LockAnswer, LockCall, LocksRenewed, RenewLocks, TaskRun
from quota.vocabulary.errors import Rejected
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.database import Database, DatabaseAway
from scheduling.link.shard.metrics import ShardMetrics
from scheduling.link.transport.asgi import problem
from scheduling.locks import locks, notices, sessions, task_calls
from scheduling.locks.lock_rules import TASK_LEASE_S
from scheduling.locks.notices import LockKey
from scheduling.locks.sessions import Space
from scheduling.locks.task_calls import Request
from scheduling.locks.waiting import LockWaits

log = structlog.get_logger(__name__)

RENEW_WITHIN_S = 0.1
# Calls of one machine that are being answered. Most of them wait.
MOST_CALLS = 500
MOST_ENDED = 1_000


class LockRelay:
    """The calls about locks that one shard is answering. Use it in one asyncio loop."""

    def __init__(self, figures: ShardMetrics) -> None:
        self._database = Database("link-locks")
        self._figures = figures
        self.waits = LockWaits(self._read)
        self._calls: dict[Connection, set[asyncio.Task[None]]] = {}
        self._renewals: dict[Connection, RenewLocks] = {}
        self._renewing: asyncio.Task[None] | None = None
        figures.lock_waits = lambda: self.waits.waiting

    def call(self, held: Connection, call: LockCall) -> None:
        """Answer a request of a task on the machine of this connection, now or after it has waited."""
        calls = self._calls.setdefault(held, set())
        self._figures.lock_calls += 1
        if len(calls) >= MOST_CALLS:
            detail = f"tasks of this machine have {len(calls)} requests about locks open; let them end first"
            held.post(_rejection(call, Rejected("locks-busy", detail, status=503)))
            return
        answer = asyncio.get_running_loop().create_task(self._answer(held, call))
        calls.add(answer)
        answer.add_done_callback(calls.discard)

    def renew(self, held: Connection, renewal: RenewLocks) -> None:
        """Renew the leases of a machine, together with those of other machines."""
        earlier = self._renewals.get(held)
        ended = (earlier.ended if earlier is not None else []) + renewal.ended
        ended = [run for run in ended[:MOST_ENDED] if task_calls.well_formed(run)]
        self._renewals[held] = msgspec.structs.replace(renewal, ended=ended)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew_all())

    def left(self, held: Connection) -> None:
        """Forget a connection that has ended. Its calls acquire nothing any more."""
        for answer in self._calls.pop(held, ()):
            answer.cancel()

    def changed(self, message: bytes) -> None:
        """Handle a notice that locks have changed."""
        try:
            keys = notices.read(message)
        except ValueError as error:
            log.warning("cannot read a notice of locks; it is ignored", error=str(error))
            return
        for key in keys:
            self.waits.changed(key)

    async def stop(self) -> None:
        running = [answer for calls in self._calls.values() for answer in calls]
        if self._renewing is not None:
            running.append(self._renewing)
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._database.close()

    async def _answer(self, held: Connection, call: LockCall) -> None:
        try:
            answer = await self._answered(held.machine_id, call)
        except Rejected as error:
            answer = _rejection(call, error)
        except DatabaseAway:
            detail = "the cell's database is unreachable; try again later"
            answer = _rejection(call, Rejected("database-away", detail, status=503))
        except Exception:
            log.exception("cannot answer a request about locks", machine=held.hostname)
            detail = "the request failed in the link server; its log has the reason"
            answer = _rejection(call, Rejected("internal-error", detail, status=500))
        held.post(answer)

    async def _answered(self, machine_id: int, call: LockCall) -> LockAnswer:
        loop = asyncio.get_running_loop()
        came_at = tried_at = loop.time()
        request = task_calls.read_request(call.method, call.target, call.body)

        async def attempt() -> tuple[dict[str, Any], bool | None]:
            nonlocal tried_at
            tried_at = loop.time()
            return await self._database(_perform, machine_id, call.run, request)

        holds: bool | None = None
        if request.verb == "read" and request.after is not None:
            key = await self._database(_key, machine_id, call.run, request)
            found = await self.waits.watch(key, request.after, request.wait_s)
            body = task_calls.shown(found, name=request.name)
        elif request.verb == "acquire" and request.wait_s > 0:
            key = await self._database(_key, machine_id, call.run, request)
            body, holds = await self.waits.acquire(key, request.wait_s, attempt)
        else:
            body, holds = await attempt()
        text = msgspec.json.encode(body).decode()
        return LockAnswer(call.number, HTTPStatus.OK, text, holds, tried_at - came_at, TASK_LEASE_S)

    async def _renew_all(self) -> None:
        await asyncio.sleep(RENEW_WITHIN_S)
        while self._renewals:
            batch, self._renewals = self._renewals, {}
            ended = {held.machine_id: renewal.ended for held, renewal in batch.items() if renewal.ended}
            try:
                found = await self._database(_renew, [held.machine_id for held in batch], ended)
            except DatabaseAway as error:
                log.warning("locks of machines were not renewed", machines=len(batch), error=str(error))
                continue
            except Exception:
                log.exception("cannot renew locks of machines", machines=len(batch))
                continue
            self._figures.lock_renewals += sum(map(len, found.values()))
            for held, renewal in batch.items():
                held.post(LocksRenewed(renewal.number, TASK_LEASE_S, found.get(held.machine_id, [])))

    async def _read(self, key: LockKey) -> locks.Lock | None:
        return await self._database(locks.find, Space(key.cell_id, key.tenant_id), key.name)


def _perform(machine_id: int, run: TaskRun, request: Request) -> tuple[dict[str, Any], bool | None]:
    caller = task_calls.caller_of(machine_id, run)
    task_calls.check_use(caller, request)
    return task_calls.perform(caller, request)


def _key(machine_id: int, run: TaskRun, request: Request) -> LockKey:
    caller = task_calls.caller_of(machine_id, run)
    task_calls.check_use(caller, request)
    return caller.key(request.name)


def _renew(machine_ids: list[int], ended: dict[int, list[TaskRun]]) -> dict[int, list[TaskRun]]:
    sessions.end_runs(ended)
    return sessions.renew_machines(machine_ids)


def _rejection(call: LockCall, error: Rejected) -> LockAnswer:
    return LockAnswer(call.number, error.status, problem(error)[1].decode())
