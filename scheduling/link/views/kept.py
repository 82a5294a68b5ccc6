"""Kept allocs: folders that stay on a machine after their alloc has left, until log savers have ended (§4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from borglet.messages import RestartPolicy, RunAlloc, RunTask, StopTask, TaskKey
from quota.vocabulary.resources import as_mapping
from scheduling.link.views.diff import View
from scheduling.models import KeptAlloc
from scheduling.spec import job_spec

# The target of a log saver may be unreachable for minutes. So a log saver restarts until its time ends.
_RESTART = RestartPolicy(on="failure", max_failures=1_000_000, window_s=3600.0, backoff_s=1.0, backoff_max_s=60.0)


@dataclass(slots=True)
class MachineTasks:
    """What one machine should do: the instructions for its Borglet. `view`: the machine's incarnations according to
    the database, with which the shard compares the reports of the machine.
    """

    view: View
    run: list[RunTask] = field(default_factory=list)
    stop: list[StopTask] = field(default_factory=list)
    allocs: list[RunAlloc] = field(default_factory=list)


def specs_of(rows: Iterable[KeptAlloc]) -> set[tuple[int, int]]:
    """Return the pairs (job id, version) of the specs of all log savers in the kept allocs that are not released."""
    return {(saver["job_id"], saver["version"]) for row in rows if not row.released for saver in row.savers}


def add_kept(
    found: Mapping[int, MachineTasks],
    rows: Iterable[KeptAlloc],
    known: Mapping[tuple[int, int], job_spec.JobSpecification | None],
    *,
    cell: str,
    extra: Sequence[str],
) -> None:
    """Add kept allocs and their log savers to `found`, which has the tasks of each machine by its id.

    `found` must already contain the tasks that are being stopped. `known`: specs by (job id, version). Log savers
    that have finished, or have no readable spec, do not run.
    """
    for row in rows:
        here = found[row.machine_id]
        key = task_key(row.key)
        if row.released:
            here.view.dropping[key] = row.id
            if key not in here.view.stop:
                here.stop.append(StopTask(key, "released"))
            continue
        here.allocs.append(RunAlloc(key, row.name, as_mapping(row.limit, extra=extra), 0, False, False, ended=True))
        here.view.allocs_kept.add(key)
        for position, saver in enumerate(row.savers):
            job = known.get((saver["job_id"], saver["version"]))
            if not saver["done"] and job is not None and saver["index"] < job.tasks:
                task = _saver(row, position, saver, job, cell=cell, extra=extra)
                here.run.append(task)
                here.view.savers[task.key] = (row.id, position)


def _saver(
    row: KeptAlloc,
    position: int,
    saver: Mapping[str, Any],
    job: job_spec.JobSpecification,
    *,
    cell: str,
    extra: Sequence[str],
) -> RunTask:
    """Return the instruction to run a log saver, a task that saves the logs of an alloc after the alloc has ended. The
    environment variable `BORG_ALLOC_ENDED` shows the log saver that its alloc has ended. `saver`: the item of the list
    `row.savers` at `position`.
    """
    task = job.task(saver["index"])
    return RunTask(
        key=TaskKey(row.uid.hex, position, 1),
        name=f"{cell}/{saver['tenant']}/{saver['job']}/{saver['index']}",
        command=task.argv,
        env={**task.env, "BORG_ALLOC_ENDED": "1"},
        limit=as_mapping(task.limit, extra=extra),
        ports={},
        priority=job.priority,
        latency_sensitive=False,
        prod=False,
        spec_version=saver["version"],
        notice_s=task.notice_s,
        max_processes=task.max_processes,
        restart=_RESTART,
        waits_for=sorted(task_key(waited) for waited in row.waits),
        working_dir=task.working_dir,
        user=task.user,
        root=task.root,
        slack=task.slack,
        alloc=task_key(row.key),
    )


def task_key(text: str) -> TaskKey:
    """Return the key of a task from its text form, which `str(TaskKey)` returns."""
    job, index, incarnation = text.split("/")
    return TaskKey(job, int(index), int(incarnation))
