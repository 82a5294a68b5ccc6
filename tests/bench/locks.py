"""`locks`: how fast locks are acquired and released, how fast watchers wake, and what sessions of locks cost.

PostgreSQL has durable commits. 10,000 machines have a task that holds a lock, so their sessions exist during all cases.

Cases:

    acquire    pairs of acquire and release per second by eight threads, each with a lock of its own; p50 and p99 of an
               acquisition in ms
    renew      one statement that renews the sessions of 10,000 machines: ms, and µs per session. Each session is
               renewed every 4 s, so `core` is the share of a core that all renewals need on an idle host
    watch      time from a committed write until 200 watchers in one process have the new content: p50 and p99 in ms
    takeover   time from the end of the holder's session until a request that waits has the lock: p50 and p99 in ms

`load`: the load average before.

    BENCH_SESSIONS=1000     fewer machines
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench.databases import databases

THREADS, SECONDS, WATCHERS, ROUNDS = 8, 10.0, 200, 50
_RENEW_S = 4.0


def measure() -> Iterator[dict[str, Any]]:
    sessions = int(os.environ.get("BENCH_SESSIONS", "10000"))
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        space = _make(sessions)
        for case in (_acquire, _renew, _watch, _takeover):
            load = round(os.getloadavg()[0], 1)
            yield {"case": case.__name__.strip("_"), "sessions": sessions, "load": load, **case(space, sessions)}


def _make(sessions: int) -> Any:
    """Create a cell, and a job with a task on each machine, which holds a lock."""
    from quota.vocabulary.permissions import Role
    from scheduling.journal.sql import execute
    from scheduling.locks.sessions import Space
    from tests.integration import rows, world

    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    ann = world.principal("ann", tenant=tenant, role=Role.OPERATOR)
    job = world.submit(ann, cell, world.with_task("web", tasks=1, locks=["held"]))
    world.place(job, rows.a_machine(cell), 0)
    execute("SET session_replication_role = replica")  # foreign keys are not checked
    execute(
        "INSERT INTO scheduling_machine SELECT (jsonb_populate_record(m, jsonb_build_object('id', n, 'hostname',"
        " 'b' || n))).* FROM scheduling_machine AS m, generate_series(1, %s) AS n WHERE m.id <> n",
        [sessions],
    )
    execute(
        "INSERT INTO scheduling_task SELECT (jsonb_populate_record(t, jsonb_build_object('id', t.id + n, 'index', n,"
        " 'machine_id', n))).* FROM scheduling_task AS t, generate_series(1, %s) AS n WHERE t.job_id = %s",
        [sessions, job.id],
    )
    execute(
        "INSERT INTO scheduling_locksession (uid, cell_id, tenant_id, owner, lease_s, expires_at, machine, job, index,"
        " incarnation, run) SELECT gen_random_uuid(), %s, %s, 'web/' || n, 15, now() + interval '1 day', n, %s, n, 1, 1"
        " FROM generate_series(1, %s) AS n",
        [cell.id, tenant.id, job.uid, sessions],
    )
    execute(
        "INSERT INTO scheduling_lockfile (cell_id, tenant_id, name, content, sequence, changed_by, changed_at, token,"
        " session) SELECT cell_id, tenant_id, 'held/' || index, '', 0, owner, now(), 1, id FROM scheduling_locksession"
        " WHERE index %% %s = 0",
        [max(1, sessions // 900)],  # the tenant may have a few more locks
    )
    execute("SET session_replication_role = DEFAULT")
    execute("ANALYZE scheduling_task, scheduling_locksession, scheduling_lockfile, scheduling_job")
    return Space(cell.id, tenant.id)


def _acquire(space: Any, sessions: int) -> dict[str, Any]:
    from django.db import connection

    from scheduling.locks import locks
    from scheduling.locks.sessions import Seeker

    took: list[list[float]] = [[] for _ in range(THREADS)]
    until = time.monotonic() + SECONDS

    def work(number: int) -> None:
        while (began := time.monotonic()) < until:
            lock, _ = locks.acquire(space, f"bench/{number}", Seeker(f"bench/{number}"))
            took[number].append(time.monotonic() - began)
            locks.release(space, lock.name, Seeker(f"bench/{number}", uid=lock.session))
        connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    all_ = [seconds for one in took for seconds in one]
    return {"value": round(len(all_) / SECONDS), "unit": "pairs/s", "better": "higher", **_shares(all_)}


def _renew(space: Any, sessions: int) -> dict[str, Any]:
    from scheduling.locks.sessions import Connected, renew_machines

    took = []
    for _ in range(10):
        began = time.monotonic()
        found = renew_machines([Connected(machine, 0) for machine in range(1, sessions + 1)])
        took.append(time.monotonic() - began)
        assert len(found) == sessions, len(found)
    middle = sorted(took)[5]
    each_us = middle / sessions * 1e6
    return {
        "value": round(middle * 1000, 1),
        "unit": "ms",
        "better": "lower",
        "us_each": round(each_us, 1),
        "core": round(middle / _RENEW_S, 3),
    }


def _watch(space: Any, sessions: int) -> dict[str, Any]:
    from scheduling.locks import locks

    took: list[float] = []

    async def story(waits: Any, call: Callable[..., Any], key: Any) -> None:
        sequence = (await call(locks.write, space, key.name, "0", actor="bench")).sequence
        for number in range(ROUNDS):
            watchers = [asyncio.ensure_future(waits.watch(key, sequence, 30.0)) for _ in range(WATCHERS)]
            await asyncio.sleep(0.05)  # all of them wait
            sequence = (await call(locks.write, space, key.name, str(number), actor="bench")).sequence
            written_at = time.monotonic()
            await asyncio.gather(*watchers)
            took.append(time.monotonic() - written_at)

    _with_waits(space, "bench/watched", story)
    return {**_value(took), "watchers": WATCHERS}


def _takeover(space: Any, sessions: int) -> dict[str, Any]:
    from scheduling.locks import locks
    from scheduling.locks import sessions as lock_sessions
    from scheduling.locks.sessions import Seeker

    took: list[float] = []

    async def story(waits: Any, call: Callable[..., Any], key: Any) -> None:
        held, _ = await call(locks.acquire, space, key.name, Seeker("first"))
        for number in range(ROUNDS):
            seeker = Seeker(f"next-{number}")
            waiting = asyncio.ensure_future(
                waits.acquire(key, 30.0, lambda seeker=seeker: call(locks.acquire, space, key.name, seeker))
            )
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await call(lock_sessions.end, space, held.holder, held.session)
            held, _ = await waiting
            took.append(time.monotonic() - began)

    _with_waits(space, "bench/taken", story)
    return _value(took)


def _with_waits(space: Any, name: str, story: Callable[..., Any]) -> None:
    """Run a story with the requests that wait in one process, which gets notices through Redis as a shard does."""
    from django.conf import settings

    from scheduling.link.shard.database import Database
    from scheduling.link.transport.redis_client import RedisClient
    from scheduling.locks import locks, notices
    from scheduling.locks.notices import LockKey
    from scheduling.locks.waiting import LockWaits

    async def main() -> None:
        reads, writes = Database("bench-reads"), Database("bench-writes")
        waits = LockWaits(lambda key: reads(locks.find, space, key.name))
        ready = asyncio.Event()

        class Notices(RedisClient):
            def _subscribed(self) -> None:
                ready.set()

            async def _take(self, channel: str, data: bytes) -> None:
                for key in notices.read(data):
                    waits.changed(key)

            def start(self) -> None:
                self._tasks.begin(self._listen_forever(notices.CHANNEL))

        client = Notices(settings.BORG_REDIS_URL, use="bench")
        client.start()
        await ready.wait()

        async def call(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
            return await writes(lambda: function(*given, **named))

        await story(waits, call, LockKey(space.cell_id, space.tenant_id, name))
        await client.stop()
        await reads.close()
        await writes.close()

    asyncio.run(main())


def _value(took: list[float]) -> dict[str, Any]:
    shares = _shares(took)
    return {"value": shares["p50_ms"], "unit": "ms", "better": "lower", **shares}


def _shares(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1000, 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 2),
    }
