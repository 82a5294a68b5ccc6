"""Plots of a task's CPU and RAM usage. Each value covers five minutes. The last value is the newest sample."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import redis
from django.utils import timezone
from django.utils.translation import gettext as _

from portal import plots
from portal.plots import Plot, Series
from quota.vocabulary.resources import CPU, RAM, describe
from scheduling.models import InstanceUsage, Task
from scheduling.usage import live_usage

HISTORY = dt.timedelta(hours=3)
# The shortest period that a plot covers.
SHORTEST = dt.timedelta(minutes=15)
WINDOW = dt.timedelta(minutes=5)
# The shortest width of a sample in a plot, so that the first sample is visible.
NARROWEST = dt.timedelta(seconds=20)
# The age in seconds after which a sample is no longer shown.
SAMPLE_KEPT_S = 60.0
# The most seconds between the start of a task and the first sample.
FIRST_SAMPLE_S = 15


@dataclass(frozen=True, slots=True)
class Sample:
    """The CPU and RAM usage of a task in the last report of its machine. `at`: the time of this report."""

    at: dt.datetime
    cpu_milli: int
    ram_bytes: int


def newest_sample(task: Task) -> Sample | None:
    """Return the newest usage sample of a task, or None if it is older than a minute. Sends one Redis command."""
    if task.machine_id is None:
        return None
    try:
        now, rows = live_usage.read_machines(task.cell_id, [task.machine_id])
    except redis.RedisError:
        return None
    for row in rows[(rows["task_id"] == task.id) & (rows["incarnation"] == task.incarnation)]:
        if now - row["at"] <= SAMPLE_KEPT_S:
            at = dt.datetime.fromtimestamp(float(row["at"]), dt.UTC)
            return Sample(at, int(row["cpu_milli"]), int(row["ram_bytes"]))
    return None


def usage_charts(
    windows: Sequence[InstanceUsage], sample: Sample | None, *, limit: Sequence[int], until: dt.datetime
) -> list[Plot]:
    """Return the plots of CPU and RAM usage, or [] if there is no data. `limit`: the task's limit of each resource."""
    if not windows and sample is None:
        return []
    times = [window.start_time for window in windows]
    if sample is not None:
        begins = windows[-1].end_time if windows else sample.at
        times.append(min(max(begins, sample.at - WINDOW), sample.at - NARROWEST))
    since = max(until - HISTORY, min([*times, until - SHORTEST]))

    def series(name: str, of: Callable[[InstanceUsage], float], now: int | None = None) -> Series:
        values: list[int | None] = [int(of(window)) for window in windows]
        return Series(name, values if sample is None else [*values, now])

    cpu, ram = (sample.cpu_milli, sample.ram_bytes) if sample is not None else (None, None)
    draw = partial(
        plots.lines, times=times, since=timezone.localtime(since), until=timezone.localtime(until), step=WINDOW
    )
    return [
        draw(
            _("CPU"),
            series=[
                series(_("mean"), lambda window: 1000 * window.average_usage_cpus, cpu),
                series(_("90th percentile"), lambda window: 1000 * window.cpu_usage_distribution[9]),
            ],
            format_value=partial(describe, CPU),
            limit=limit[CPU],
        ),
        draw(
            _("RAM"),
            series=[
                series(_("mean"), lambda window: window.average_usage_memory, ram),
                series(_("peak"), lambda window: window.maximum_usage_memory),
                series(_("page cache"), lambda window: window.page_cache_memory),
            ],
            format_value=partial(describe, RAM),
            limit=limit[RAM],
        ),
    ]
