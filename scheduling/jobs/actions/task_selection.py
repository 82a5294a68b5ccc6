"""Selects tasks of a job by ranges of their indexes, such as `3,5-9`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import Q, QuerySet

from quota.vocabulary.errors import NotFound, invalid
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.models import Job, Task

Ranges = Sequence[tuple[int, int]]
MOST_RANGES = 100


def parse_ranges(text: str) -> Ranges | None:
    """Return the ranges of task indexes in a text such as `3,5-9` as pairs (first, last), sorted and without overlaps,
    or None for an empty text, which selects no tasks by index. Raises `Rejected` for any other text.
    """
    if not text:
        return None
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) <= 7 and int(end) < MAX_TASKS for end in ends):
            raise invalid(
                "tasks", f"{part.strip()[:20]!r} is not an index of a task or a range; write for example 3,5-9"
            )
        found.append((int(ends[0]), int(ends[1])))
        if found[-1][0] > found[-1][1]:
            raise invalid("tasks", f"{part.strip()[:20]!r} ends before it begins; write the smaller index first")
    joined: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    if len(joined) > MOST_RANGES:
        raise invalid("tasks", f"{len(joined)} ranges are too many; give at most {MOST_RANGES} per request")
    return joined


def format_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def tasks_in(job: Job, ranges: Ranges | None) -> QuerySet[Task]:
    """Return the tasks of a job with the indexes in `ranges`, or all if `ranges` is None. Raises `NotFound` if the job
    has fewer tasks.
    """
    tasks = Task.objects.filter(job=job)
    if ranges is None:
        return tasks
    if ranges[-1][1] >= job.tasks_total:
        raise NotFound("task", f"{job.name}/{ranges[-1][1]}", known=[f"0 to {job.tasks_total - 1}"])
    chosen = Q()
    for first, last in ranges:
        chosen |= Q(index__range=(first, last))
    return tasks.filter(chosen)
