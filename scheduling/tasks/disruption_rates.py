"""The rate of disruptions of a job: how many of its tasks were evicted within a window of time (§4).

    eviction of a task that is up ─ its job has `max_disruptions` ─► DisruptionCount, one row per slot of time
                                                                        │
    drains, re-packing, preemption ◄── how many disruptions are left ◄──┘ slots within the window

A window slides. It has 60 slots, so a job has at most 61 rows within its window, and reading them does not take longer
with time. A slot counts until its last disruption has left the window, so the rate is never exceeded. The rows outlive
the master, and the database's clock decides.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute, query

SLOTS = 60  # per window
_COUNT = f"""
    INSERT INTO scheduling_disruptioncount AS d (job_id, began_at, at, number)
    SELECT j.id, date_bin(make_interval(secs => j.disruption_window_s / {SLOTS}), %(now)s, 'epoch'::timestamptz),
        %(now)s, n.number
    FROM unnest(%(jobs)s::bigint[], %(numbers)s::integer[]) AS n(job_id, number)
    JOIN scheduling_job AS j ON j.id = n.job_id WHERE j.max_disruptions > 0
    ON CONFLICT (job_id, began_at) DO UPDATE SET number = d.number + excluded.number, at = excluded.at"""
_FORGET = """
    DELETE FROM scheduling_disruptioncount AS d USING scheduling_job AS j
    WHERE d.job_id = ANY(%(jobs)s) AND j.id = d.job_id
        AND d.at <= %(now)s - make_interval(secs => j.disruption_window_s)"""
# `newer`: the disruptions of a slot and of all later slots. The oldest slots leave the window first, so the next
# disruption is possible when the newest slot leaves whose `newer` is at least the limit.
_RATES = """
    SELECT id, max_disruptions, disruption_window_s, coalesce(sum(number), 0)::bigint,
        max(at) FILTER (WHERE newer >= max_disruptions) + make_interval(secs => disruption_window_s)
    FROM (
        SELECT j.id, j.max_disruptions, j.disruption_window_s, d.number, d.at,
            sum(d.number) OVER (PARTITION BY j.id ORDER BY d.began_at DESC, d.id DESC) AS newer
        FROM scheduling_job AS j LEFT JOIN scheduling_disruptioncount AS d
            ON d.job_id = j.id AND d.at > now() - make_interval(secs => j.disruption_window_s)
        WHERE j.max_disruptions > 0 AND {which}
    ) AS slots GROUP BY id, max_disruptions, disruption_window_s"""

_LEFT = """
    SELECT j.id, greatest(0, j.max_disruptions - coalesce((
        SELECT sum(d.number) FROM scheduling_disruptioncount AS d
        WHERE d.job_id = j.id AND d.at > now() - make_interval(secs => j.disruption_window_s)), 0))::bigint
    FROM scheduling_job AS j WHERE j.max_disruptions > 0 AND j.cell_id = %s AND j.ended_at IS NULL"""


@dataclass(frozen=True, slots=True)
class DisruptionRate:
    """The disruptions of a job within the last `window_s` seconds. `most`: how many there may be. `counted`: how many
    there were. `next_at`: when the next one is possible, if none is left.
    """

    most: int
    window_s: float
    counted: int
    next_at: dt.datetime | None = None

    @property
    def left(self) -> int:
        """Return how many more tasks may be disrupted now."""
        return max(0, self.most - self.counted)


def disruptions_count(entry: JournalEntry, job_ids: Iterable[int]) -> None:
    """Count disruptions of tasks. `job_ids`: the job of each disrupted task. Jobs without `max_disruptions` are left
    out. The rows that have left the window of these jobs are deleted.
    """
    numbers = Counter(job_ids)
    if not numbers:
        return
    values = {"now": entry.time, "jobs": sorted(numbers), "numbers": [numbers[job] for job in sorted(numbers)]}
    if execute(_COUNT, values):
        execute(_FORGET, values)


def rates_of_jobs(job_ids: Collection[int]) -> dict[int, DisruptionRate]:
    """Return the rates of those jobs that have one, by job id. Makes one query, unless `job_ids` is empty."""
    return _read("j.id = ANY(%s)", sorted(job_ids)) if job_ids else {}


def rates_of_cell(cell_id: int) -> dict[int, DisruptionRate]:
    """Return the rates of all live jobs of a cell that have one, by job id. Makes one query, with an index of these
    jobs.
    """
    return _read("j.cell_id = %s AND j.ended_at IS NULL", cell_id)


def left_in_cell(cell_id: int) -> dict[int, int]:
    """Return how many more tasks may be disrupted now, by id of each live job of a cell that has a rate. Makes one
    query, which is faster than that of `rates_of_cell`, because each pass of the scheduler makes it.
    """
    return dict(query(_LEFT, [cell_id]))


def _read(which: str, value: Any) -> dict[int, DisruptionRate]:
    rows = query(_RATES.format(which=which), [value])
    return {job: DisruptionRate(*values) for job, *values in rows}
