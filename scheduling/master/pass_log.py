"""Results of scheduling passes. Redis has the newest results of each scheduler, and Prometheus has sums of all passes.

    Master ─ record ─► Redis: a capped list per (cell, scheduler) ─ recent ─► Sigma, SRE console
                   └─► metrics of this process ─► /metrics

The scheduler does not use these results. So Redis may lose them, and a pass does not wait for Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from redis import Redis

from scheduling.core.vocabulary.plan import Plan
from scheduling.journal import wakeups
from scheduling.master import metrics
from scheduling.master.commit import CommitOutcome

KEPT = 200
_KEPT_S = 7 * 86_400


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a pass. `at`: when it began, in seconds since the epoch. `conflicts`: the number of assignments
    that the commit rejected.
    """

    at: float
    revision: int
    pending: int
    classes: int
    placed: int
    conflicts: int
    preempted: int
    unplaced: int
    cache_hits: int
    cache_misses: int
    pass_ms: float
    commit_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of some passes. Durations are in ms. A percentage is None if there was nothing to count."""

    passes: int
    placed: int
    preempted: int
    conflicts: int
    pass_p50: float
    pass_p99: float
    commit_p50: float
    commit_p99: float
    conflict_percent: float | None
    cache_percent: float | None


def of(plan: Plan, outcome: CommitOutcome, *, at: float, pass_s: float, commit_s: float) -> Pass:
    stats = plan.stats
    return Pass(
        at=round(at, 3),
        revision=plan.revision,
        pending=stats.pending,
        classes=stats.classes,
        placed=len(outcome.applied),
        conflicts=len(outcome.refused),
        preempted=sum(len(assignment.victims) for assignment in outcome.applied),
        unplaced=sum(count for why in plan.unplaced for _, count in why.tasks),
        cache_hits=stats.cache_hits,
        cache_misses=stats.cache_misses,
        pass_ms=round(1000 * pass_s, 2),
        commit_ms=round(1000 * commit_s, 2),
    )


def record(cell_id: int, cell: str, scheduler: str, one: Pass) -> None:
    """Store the result `one` of a pass, without making the scheduler wait."""
    metrics.passes.labels(cell, scheduler).observe(one.pass_ms / 1000)
    metrics.commits.labels(cell, scheduler).observe(one.commit_ms / 1000)
    metrics.placements.labels(cell, scheduler).inc(one.placed)
    metrics.conflicts.labels(cell, scheduler).inc(one.conflicts)
    metrics.preemptions.labels(cell, scheduler).inc(one.preempted)
    metrics.cache_hits.labels(cell, scheduler).inc(one.cache_hits)
    metrics.cache_misses.labels(cell, scheduler).inc(one.cache_misses)
    metrics.pass_pending.labels(cell, scheduler).set(one.pending)
    metrics.pass_classes.labels(cell, scheduler).set(one.classes)
    wakeups.send("pass", lambda redis: _push(redis, _key(cell_id, scheduler), msgspec.json.encode(one)))


def recent(cell_id: int, scheduler: str, number: int = KEPT) -> list[Pass]:
    """Return the newest `number` passes of a scheduler, newest first. Raises `redis.RedisError` if Redis cannot be
    reached.
    """
    found = wakeups.client().lrange(_key(cell_id, scheduler), 0, number - 1)
    return [msgspec.json.decode(one, type=Pass) for one in found]


def recent_of_all(schedulers: Iterable[tuple[int, str]], number: int = KEPT) -> dict[tuple[int, str], list[Pass]]:
    """Return the newest `number` passes of each scheduler, newest first. `schedulers`: (cell id, name of the
    scheduler). Sends one request to Redis. Raises `redis.RedisError` if Redis cannot be reached.
    """
    wanted = list(schedulers)
    pipe = wakeups.client().pipeline(transaction=False)
    for cell_id, scheduler in wanted:
        pipe.lrange(_key(cell_id, scheduler), 0, number - 1)
    found = pipe.execute() if wanted else []
    decoder = msgspec.json.Decoder(Pass)
    return {one: [decoder.decode(row) for row in rows] for one, rows in zip(wanted, found, strict=True)}


def summary(passes: Sequence[Pass]) -> Summary | None:
    """Return the summary of `passes`, or None if `passes` is empty."""
    if not passes:
        return None
    deciding, committing = (
        np.percentile([getattr(one, name) for one in passes], (50, 99)) for name in ("pass_ms", "commit_ms")
    )
    placed, conflicts = sum(one.placed for one in passes), sum(one.conflicts for one in passes)
    hits, misses = sum(one.cache_hits for one in passes), sum(one.cache_misses for one in passes)
    return Summary(
        passes=len(passes),
        placed=placed,
        preempted=sum(one.preempted for one in passes),
        conflicts=conflicts,
        pass_p50=float(deciding[0]),
        pass_p99=float(deciding[1]),
        commit_p50=float(committing[0]),
        commit_p99=float(committing[1]),
        conflict_percent=_percent(conflicts, placed),
        cache_percent=_percent(hits, misses),
    )


def _push(redis: Redis, key: str, row: bytes) -> None:
    redis.pipeline(transaction=False).lpush(key, row).ltrim(key, 0, KEPT - 1).expire(key, _KEPT_S).execute()  # type: ignore[attr-defined]


def _key(cell_id: int, scheduler: str) -> str:
    return f"borg:passes:{cell_id}:{scheduler}"


def _percent(part: int, rest: int) -> float | None:
    return 100 * part / (part + rest) if part + rest else None
