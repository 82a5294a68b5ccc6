"""The published promise of a cell, and which pending times and evictions break it. Pure.

The rules are careful with other people's money: a pending time counts only if the scheduler has recorded that nothing
but missing capacity delays the task.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quota.vocabulary.resources import SIZE, Vector
from scheduling.core.vocabulary.reasons import ReasonCode, Why
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.policy.cell_settings import CellSettings

# The number of evictions is promised per task for this time.
DAYS = 30
# Reasons for which the cell answers. All others depend on the job: its constraints, spread, crashes, its alloc set, or
# that it is a gang. Ports and whole cores are in use by other tasks, as CPU and RAM are. SREs dedicate pools.
CELL_REASONS = frozenset(
    {
        ReasonCode.NO_MACHINES,
        ReasonCode.RESOURCE,
        ReasonCode.PORTS,
        ReasonCode.CORES,
        ReasonCode.BOOKED,
        ReasonCode.MACHINE_STATE,
        ReasonCode.MAINTENANCE,
        ReasonCode.DEDICATED_POOL,
        ReasonCode.OUTSIDE_POOL,
    }
)
# Causes for which the cell answers (Figure 3). Updates, crashes and allocs that leave belong to the job. A prod task is
# evicted because of a shortage only if it uses more than its own limit (`core.reclamation.shortage`).
CELL_CAUSES = (
    EvictionCause.PREEMPTION.value,
    EvictionCause.MACHINE_FAILURE.value,
    EvictionCause.MACHINE_SHUTDOWN.value,
    EvictionCause.LOST.value,
    EvictionCause.DEDICATED_POOL.value,
)
# A look counts at most this long a time before it: what was recorded before is unknown.
LONGEST_LOOK_S = 300.0
_HOUR = dt.timedelta(hours=1)
_MICROSECOND = dt.timedelta(microseconds=1)
_MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise of a cell to prod tasks within quota. `start_s`: the seconds within which they start; `evictions`:
    how often each of them is evicted in 30 days at most; 0: not promised. `share`: the share of the price that is
    credited for pending time. `eviction_hours`: the hours of the price that are credited per eviction.
    """

    start_s: float
    evictions: int
    share: float
    eviction_hours: float

    def __bool__(self) -> bool:
        return bool(self.start_s or self.evictions)

    @property
    def pending_terms(self) -> dict[str, float]:
        return {"start_s": self.start_s, "share_milli": float(round(self.share * 1000))}

    @property
    def eviction_terms(self) -> dict[str, float]:
        return {"evictions": float(self.evictions), "days": float(DAYS), "hours": self.eviction_hours}


def promise_of(settings: CellSettings) -> Promise:
    """Return the promise in the settings of a cell."""
    return Promise(
        settings.promise_start_s,
        int(settings.promise_evictions),
        settings.promise_share,
        settings.promise_eviction_hours,
    )


def lacks_capacity(whys: Sequence[Why]) -> str:
    """Return the main reason if nothing but missing capacity delays all pending tasks of a job, else "".

    `whys`: the recorded verdicts of the job. A job without a verdict does not count, and neither does a task that would
    not fit into the empty cell. Classes that are not examined yet have no verdict: see `counted_tasks`.
    """
    if not whys or any(why.never or why.code not in CELL_REASONS for why in whys):
        return ""
    if any(one.code not in CELL_REASONS for why in whys for one in why.ruled_out):
        return ""
    return str(whys[0].code)


def counted_tasks(whys: Sequence[Why], job_id: int, *, max_running: int, running: int) -> int:
    """Return how many pending tasks of a job count at most: those of the verdicts, and no more than may run at once.
    `max_running`: 0 for no limit. `running`: how many tasks of the job have a machine.
    """
    examined = sum(number for why in whys for job, number in why.tasks if job == job_id)
    return min(examined, max(0, max_running - running)) if max_running else examined


def by_hour(begin: dt.datetime, end: dt.datetime) -> Iterator[tuple[dt.datetime, dt.datetime, dt.datetime]]:
    """Yield (hour, begin, end) for each part of a time that is in one hour (UTC)."""
    while begin < end:
        hour = begin.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)
        until = min(end, hour + _HOUR)
        yield hour, begin, until
        begin = until


def over(limit: Sequence[int], span: dt.timedelta) -> Vector:
    """Return limit × time in unit·seconds, for the built-in resources."""
    micros = span // _MICROSECOND
    return tuple(value * micros // _MICROS for value in limit[:SIZE])


def sentences(promise: Promise) -> list[str]:
    """Return the promise as sentences for people; empty if nothing is promised."""
    texts = []
    if promise.start_s:
        texts.append(
            f"A prod task within quota starts within {_duration(promise.start_s)}, if only missing capacity"
            f" delays it. For longer waits, {100 * promise.share:.4g} % of the price of its quota is credited. A job"
            " that excludes machines by constraints or spread is not covered."
        )
    if promise.evictions:
        times = "once" if promise.evictions == 1 else f"{promise.evictions} times"
        hours = "hour" if promise.eviction_hours == 1 else "hours"
        texts.append(
            f"The cell evicts each prod task at most {times} in {DAYS} days. For each further eviction, the price of"
            f" the task for {promise.eviction_hours:g} {hours} is credited."
        )
    return texts


def _duration(seconds: float) -> str:
    if seconds >= 60 and seconds % 60 == 0:
        minutes = int(seconds // 60)
        return f"{minutes} {'minute' if minutes == 1 else 'minutes'}"
    return f"{seconds:g} s"
