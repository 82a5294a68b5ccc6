"""Helpers that store windows of usage for tests, as the link stores them."""

from __future__ import annotations

import datetime as dt

from borglet.messages import TaskKey, UsageWindow
from scheduling.models import Job, Task
from scheduling.usage import usage_windows
from scheduling.usage.usage_windows import TaskWindow


def store_usage(
    job: Job, index: int, at: dt.datetime, *, cpu_milli: int = 50, ram_bytes: int = 2**25, windows: int = 1
) -> None:
    """Store `windows` windows of five minutes for a placed task. The first window is the one that contains `at`."""
    task = Task.objects.get(job=job, index=index)
    assert task.machine_id is not None
    begin = int(at.timestamp()) // 300 * 300
    usage_windows.store(
        [
            TaskWindow(
                job.cell_id,
                task.machine_id,
                task.id,
                UsageWindow(
                    key=TaskKey(job.uid.hex, index, task.incarnation),
                    start=begin + 300 * number,
                    span_s=300,
                    samples=60,
                    cpu_milli=cpu_milli,
                    most_cpu_milli=2 * cpu_milli,
                    random_cpu_milli=cpu_milli,
                    cpu_distribution=[cpu_milli] * 11,
                    cpu_tail=[cpu_milli] * 9,
                    ram_bytes=ram_bytes,
                    most_ram_bytes=ram_bytes,
                    limit_cpu_milli=task.limit[0],
                    limit_ram_bytes=task.limit[1],
                    cached_bytes=0,
                    most_threads=1,
                ),
            )
            for number in range(windows)
        ]
    )
