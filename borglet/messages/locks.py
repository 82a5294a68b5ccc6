"""Locks of tasks. A task sends HTTP requests to a socket of its Borglet, which passes them on to the shard.

task ── HTTP ─► Borglet ── LockCall ───► shard ─► PostgreSQL
                        ◄─ LockAnswer ──
                Borglet ── RenewLocks ─► shard   every few seconds, while tasks of the machine hold locks
                        ◄─ LocksRenewed
"""

from __future__ import annotations

import msgspec

from borglet.messages.desired import TaskKey


class TaskRun(msgspec.Struct, frozen=True, order=True):
    """One run of an incarnation on this machine. It is a session of locks, which ends with the run."""

    key: TaskKey
    run: int


class RunSession(msgspec.Struct, frozen=True):
    """A run that holds locks. `session`: the id of its session, so that a new session is not taken for a lost one."""

    run: TaskRun
    session: str


class LockCall(msgspec.Struct, frozen=True, tag="lock-call", tag_field="type", omit_defaults=True):
    """A request of a task. `number`: the answer has the same. `run`: the task to which the Borglet gave the socket.
    `target`: path and query of the request.
    """

    number: int
    run: TaskRun
    method: str
    target: str
    body: str = ""


class LockAnswer(msgspec.Struct, frozen=True, tag="lock-answer", tag_field="type", omit_defaults=True):
    """The answer for the task. `body`: JSON. `holds`: whether the run holds locks now; None: the call did not change
    this. `session`: the session that holds them. `waited_s`: how long the shard waited before it did what the answer
    says. `lease_s`: how long the locks stay the run's after that, without a renewal.
    """

    number: int
    status: int
    body: str
    holds: bool | None = None
    session: str = ""
    waited_s: float = 0.0
    lease_s: float = 0.0


class RenewLocks(msgspec.Struct, frozen=True, tag="renew-locks", tag_field="type", omit_defaults=True):
    """A renewal of all locks that tasks of this machine hold. `ended`: runs whose sessions end, so that their locks
    become free. `lost`: those of them that still run, each with the session that it has lost. Only this session ends;
    the run may have begun another one before the shard reads the message.
    """

    number: int
    ended: list[TaskRun] = []
    lost: list[RunSession] = []  # an earlier shard ignores it, and ends all sessions of the run


class LocksRenewed(msgspec.Struct, frozen=True, tag="locks-renewed", tag_field="type", omit_defaults=True):
    """The runs of this machine that hold locks, for `lease_s` seconds after the renewal was sent. Another run holds
    none, or has lost those that it had. `kept`: runs whose session was not renewed or ended now, because another
    request uses it; their leases are as before.
    """

    number: int
    lease_s: float
    runs: list[RunSession] = []
    kept: list[RunSession] = []  # an earlier Borglet counts their locks as lost
