"""Finds the tasks that a rolling restart still has to replace."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from scheduling.models import Task, Update

_PLACED_BEFORE = (
    "SELECT t.id FROM unnest(%s::integer[], %s::integer[], %s::integer[]) AS r(first, last, incarnation)"
    " JOIN scheduling_task AS t ON t.job_id = %s AND t.index BETWEEN r.first AND r.last"
    " AND t.incarnation = r.incarnation WHERE t.state = 'running'"
)


def tasks_to_restart(update: Update) -> QuerySet[Task]:
    """Return the tasks of a restart that still run in the incarnation that they had when it began. A task that left its
    machine since then for any reason is not among them.
    """
    columns = zip(*update.restarts, strict=True) if update.restarts else [(), (), ()]
    placed_before = RawSQL(_PLACED_BEFORE, [*map(list, columns), update.job_id])  # noqa: S611 - a constant statement
    return Task.objects.filter(id__in=placed_before)


def incarnation_ranges(tasks: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return `[first, last, incarnation]` for ranges of neighbouring tasks with the same incarnation. `tasks`: (index,
    incarnation), in order of the indexes.
    """
    ranges: list[list[int]] = []
    for index, incarnation in tasks:
        if ranges and ranges[-1][1:] == [index - 1, incarnation]:
            ranges[-1][1] = index
        else:
            ranges.append([index, index, incarnation])
    return ranges
