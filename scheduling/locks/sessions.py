"""The sessions that hold locks: their leases, renewals and ends. Only the clock of PostgreSQL decides whether a session
has ended.

    task:  acquire ─► session of the run ─► its Borglet renews all sessions of the machine, in one statement per shard
    user:  acquire ─► session with a uid  ─► the user renews it

A transaction locks the row of the lock first, and then rows of sessions in order of id.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import InternalError, OperationalError, connection, transaction
from psycopg.errors import IdleInTransactionSessionTimeout

from borglet.messages import RunSession, TaskKey, TaskRun
from quota.vocabulary.errors import Conflict
from scheduling.journal.sql import execute, query
from scheduling.locks import notices
from scheduling.locks.lock_rules import IDLE_TRANSACTION_S, TASK_LEASE_S

# Ended sessions are deleted after this time, when the tenant gets a new session.
_KEPT_ENDED = "1 hour"
_SESSIONS = "SELECT id FROM scheduling_locksession"
# The machines `m` whose connection is the newest one.
_NEWEST = (
    "(SELECT m.id FROM unnest(%s::bigint[], %s::bigint[]) AS c (machine, session)"
    " JOIN scheduling_machine AS m ON m.id = c.machine AND m.session = c.session) AS m"
)


@dataclass(frozen=True, slots=True)
class Space:
    """The locks of a tenant in a cell."""

    cell_id: int
    tenant_id: int


class Connected(NamedTuple):
    """A machine, and the number of its connection. Messages of older connections of the machine are ignored."""

    machine_id: int
    session: int


@dataclass(frozen=True, slots=True)
class Seeker:
    """The one who acquires, holds or releases a lock. `owner`: a name for people.

    For a task: its machine and run. For a user: `uid` of the session, or None to begin a new one. `key`: the
    idempotency key of the request that begins it; "" without one.
    """

    owner: str
    lease_s: float = TASK_LEASE_S
    machine: int | None = None
    run: TaskRun | None = None
    uid: uuid.UUID | None = None
    key: str = ""

    @property
    def ids(self) -> tuple[uuid.UUID | None, int | None, int | None, int | None]:
        """Return job, index, incarnation and run of a task."""
        if self.run is None:
            return None, None, None, None
        key = self.run.key
        return uuid.UUID(hex=key.job), key.index, key.incarnation, self.run.run


@dataclass(frozen=True, slots=True)
class Session:
    """A session that has not ended. `mine`: it belongs to the seeker who asked."""

    id: int
    uid: uuid.UUID
    owner: str
    left_s: float
    mine: bool


@contextlib.contextmanager
def lock_transaction() -> Iterator[None]:
    """Run the block in a transaction. PostgreSQL ends it if the process stops in the middle, because renewals and other
    requests need the rows that it has locked. Then a later statement raises `OperationalError`. The rest of a
    transaction around the block has no such limit.
    """
    inside = connection.in_atomic_block
    try:
        with transaction.atomic():
            execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_S:g}s'")
            yield
            if inside:
                execute("SET LOCAL idle_in_transaction_session_timeout = DEFAULT")
    except InternalError as error:
        if isinstance(error.__cause__, IdleInTransactionSessionTimeout):
            raise OperationalError(str(error)) from error
        raise


def lock_sessions(space: Space, holder: int | None, seeker: Seeker | None) -> tuple[Session | None, Session | None]:
    """Lock the rows of the session `holder` and of the seeker. Return both; None for a session that does not exist or
    has ended. Call this in a transaction.
    """
    job, index, incarnation, run = seeker.ids if seeker is not None else (None, None, None, None)
    rows = query(
        "SELECT id, uid, owner, extract(epoch FROM expires_at - clock_timestamp()), job, index, incarnation, run, key"
        " FROM scheduling_locksession WHERE cell_id = %s AND tenant_id = %s AND (id = %s OR uid = %s"
        " OR (owner = %s AND key = %s AND key <> '') OR (job = %s AND index = %s AND incarnation = %s AND run = %s))"
        " ORDER BY id FOR UPDATE",
        [
            *(space.cell_id, space.tenant_id, holder, seeker.uid if seeker is not None else None),
            *((seeker.owner, seeker.key) if seeker is not None else (None, None)),
            *(job, index, incarnation, run),
        ],
    )
    found: list[Session | None] = [None, None]
    for id_, uid, owner, left_s, *ids, key in rows:
        if left_s <= 0:
            continue
        mine = seeker is not None and (
            tuple(ids) == seeker.ids
            if seeker.run is not None
            else owner == seeker.owner and (uid == seeker.uid or (seeker.key != "" and key == seeker.key))
        )
        session = Session(id_, uid, owner, float(left_s), mine)
        if id_ == holder:
            found[0] = session
        if mine:
            found[1] = session
    return found[0], found[1]


def extended(space: Space, seeker: Seeker, own: Session | None) -> Session:
    """Return the session of a seeker with a lease that begins now. Begin the session if `own` (see `lock_sessions`) is
    None. Raises `Conflict` if the seeker names a session that has ended.
    """
    if own is not None:
        execute(
            "UPDATE scheduling_locksession SET expires_at = greatest(expires_at,"
            " clock_timestamp() + lease_s * interval '1 s') WHERE id = %s",
            [own.id],
        )
        return own
    if seeker.uid is not None:
        raise Conflict(
            "session-ended",
            f"session {seeker.uid} has ended, or is not yours; acquire the lock without a session;"
            " this begins a new one",
        )
    job, index, incarnation, run = seeker.ids
    # A session that has expired does not come back, so that it does not hold its earlier locks again.
    execute(
        "DELETE FROM scheduling_locksession WHERE expires_at <= clock_timestamp()"
        " AND ((cell_id = %s AND tenant_id = %s AND owner = %s AND key = %s AND key <> '')"
        " OR (job = %s AND index = %s AND incarnation = %s AND run = %s))",
        [space.cell_id, space.tenant_id, seeker.owner, seeker.key, job, index, incarnation, run],
    )
    _delete_ended(space)
    # Another request may begin the session meanwhile.
    same = "(job, index, incarnation, run)"
    if job is None:
        same = "(cell_id, tenant_id, owner, key) WHERE key <> ''"
    (row,) = query(
        "INSERT INTO scheduling_locksession (uid, cell_id, tenant_id, owner, lease_s, expires_at, machine, job, index,"
        " incarnation, run, key)"
        " VALUES (%s, %s, %s, %s, %s, clock_timestamp() + %s * interval '1 s', %s, %s, %s, %s, %s, %s)"
        f" ON CONFLICT {same} DO UPDATE"
        " SET expires_at = greatest(scheduling_locksession.expires_at, EXCLUDED.expires_at)"
        " RETURNING id, uid",
        [
            *(uuid.uuid4(), space.cell_id, space.tenant_id, seeker.owner, seeker.lease_s, seeker.lease_s),
            *(seeker.machine, job, index, incarnation, run, seeker.key),
        ],
    )
    return Session(row[0], row[1], seeker.owner, seeker.lease_s, mine=True)


def renew(space: Space, owner: str, uid: uuid.UUID) -> float:
    """Renew the session of a user. Return its lease in seconds. Raises `Conflict` if the session has ended, is not the
    user's or holds no lock any more.
    """
    rows = query(
        "UPDATE scheduling_locksession SET expires_at = clock_timestamp() + lease_s * interval '1 s' WHERE uid = %s"
        " AND cell_id = %s AND tenant_id = %s AND owner = %s AND machine IS NULL AND expires_at > clock_timestamp()"
        " RETURNING lease_s",
        [uid, space.cell_id, space.tenant_id, owner],
    )
    if not rows:
        cure = "its locks may have other holders; stop the work that needs them, and acquire them again"
        raise Conflict("session-ended", f"session {uid} has ended, or is not yours; {cure}")
    return float(rows[0][0])


def end(space: Space, owner: str, uid: uuid.UUID) -> None:
    """End the session of a user. Its locks are free at once. Do nothing if it has ended."""
    _end("uid = %s AND cell_id = %s AND tenant_id = %s AND owner = %s", [uid, space.cell_id, space.tenant_id, owner])


@dataclass(frozen=True, slots=True)
class Renewed:
    """The sessions of machines, by machine id. `busy`: other transactions use them, so they were not renewed."""

    sessions: dict[int, list[RunSession]]
    busy: dict[int, list[RunSession]]


def renew_machines(machines: Iterable[Connected]) -> Renewed:
    """Renew the sessions of all tasks on these machines, in one statement. It waits for no other transaction.

    A session that has expired is not renewed. Nor is one whose incarnation the machine should neither run nor stop,
    because the master has replaced it.
    """
    rows = query(
        "WITH found AS (SELECT s.id, s.machine, s.job, s.index, s.incarnation, s.run, s.uid"
        " FROM scheduling_locksession AS s"
        " JOIN scheduling_job AS j ON j.uid = s.job JOIN scheduling_task AS t ON t.job_id = j.id AND t.index = s.index"
        f" JOIN {_NEWEST} ON m.id = s.machine"
        " WHERE s.expires_at > clock_timestamp()"
        " AND (t.incarnation = s.incarnation AND t.machine_id = s.machine OR EXISTS (SELECT 1"
        " FROM scheduling_departure AS d WHERE d.task_id = t.id AND d.incarnation = s.incarnation"
        " AND d.machine_id = s.machine))),"
        " locked AS (SELECT id FROM scheduling_locksession WHERE id IN (SELECT id FROM found)"
        " ORDER BY id FOR UPDATE SKIP LOCKED),"
        " renewed AS (UPDATE scheduling_locksession AS s"
        " SET expires_at = clock_timestamp() + s.lease_s * interval '1 s' FROM locked"
        " WHERE s.id = locked.id AND s.expires_at > clock_timestamp() RETURNING s.id)"
        " SELECT f.machine, f.job, f.index, f.incarnation, f.run, f.uid, renewed.id IS NOT NULL"
        " FROM found AS f LEFT JOIN renewed ON renewed.id = f.id",
        columns(machines, 2),
    )
    found = Renewed(defaultdict(list), defaultdict(list))
    for machine, job, index, incarnation, run, uid, done in rows:
        one = RunSession(TaskRun(TaskKey(job.hex, index, incarnation), run), uid.hex)
        (found.sessions if done else found.busy)[machine].append(one)
    return found


def end_runs(ended: Mapping[Connected, Iterable[TaskRun]]) -> None:
    """End the sessions of runs that have ended, by machine. Their locks are free at once. A session that another
    transaction uses does not end.
    """
    ids = [(*machine, *Seeker("", run=run).ids) for machine, runs in ended.items() for run in runs]
    if ids:
        _end(
            "(machine, job, index, incarnation, run) IN (SELECT m.id, e.job, e.index, e.incarnation, e.run"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::uuid[], %s::int[], %s::int[], %s::int[])"
            " AS e (machine, session, job, index, incarnation, run)"
            " JOIN scheduling_machine AS m ON m.id = e.machine AND m.session = e.session)",
            columns(ids, 6),
            "SKIP LOCKED",
        )


def end_lost(lost: Mapping[Connected, Iterable[uuid.UUID]]) -> None:
    """End sessions that running tasks have lost, by machine, as `end_runs`."""
    ids = [(*machine, uid) for machine, uids in lost.items() for uid in uids]
    if ids:
        _end(
            "(machine, uid) IN (SELECT m.id, e.uid FROM unnest(%s::bigint[], %s::bigint[], %s::uuid[])"
            " AS e (machine, session, uid) JOIN scheduling_machine AS m ON m.id = e.machine AND m.session = e.session)",
            columns(ids, 3),
            "SKIP LOCKED",
        )


def _end(where: str, values: list[object], locked: str = "") -> None:
    with lock_transaction():
        ids = [row[0] for row in query(f"{_SESSIONS} WHERE {where} ORDER BY id FOR UPDATE {locked}", values)]
        if ids:
            execute("DELETE FROM scheduling_locksession WHERE id = ANY(%s)", [ids])
            freed = query("SELECT cell_id, tenant_id, name FROM scheduling_lockfile WHERE session = ANY(%s)", [ids])
            notices.publish(freed)


def columns(rows: Iterable[Sequence[Any]], number: int) -> list[object]:
    """Return rows as `number` lists of values, which PostgreSQL reads with `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(number)]


def end_if_expired(session: int | None) -> None:
    """Delete the session with this id if it has expired. So it does not count as live again if the clock of PostgreSQL
    is set back, for example by a failover to another host. The caller has locked its row.
    """
    if session is not None:
        execute("DELETE FROM scheduling_locksession WHERE id = %s AND expires_at <= clock_timestamp()", [session])


def end_if_idle(session: Session) -> bool:
    """End a session that holds no lock any more. Return whether it continues. The caller has locked its row."""
    gone = execute(
        "DELETE FROM scheduling_locksession WHERE id = %s AND NOT EXISTS (SELECT 1 FROM scheduling_lockfile"
        " WHERE session = %s)",
        [session.id, session.id],
    )
    return not gone


def _delete_ended(space: Space) -> None:
    execute(
        "DELETE FROM scheduling_locksession WHERE id IN (SELECT id FROM scheduling_locksession WHERE tenant_id = %s"
        " AND cell_id = %s AND expires_at < clock_timestamp() - %s::interval LIMIT 100 FOR UPDATE SKIP LOCKED)",
        [space.tenant_id, space.cell_id, _KEPT_ENDED],
    )
