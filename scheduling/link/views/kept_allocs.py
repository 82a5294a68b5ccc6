"""Kept allocs. The folder of an ended alloc stays on its machine until the log savers have saved its logs (§4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from borglet.messages import RestartPolicy, RunAlloc, RunTask, StopTask, TaskKey
from quota.vocabulary.resources import as_mapping
from scheduling.link.views.report_changes import View
from scheduling.models import KeptAlloc
from scheduling.spec import job_spec

# The target of a log saver may be unreachable for minutes. So a log saver restarts until its time ends.
_RESTART = RestartPolicy(on="failure", max_failures=1_000_000, window_s=3600.0, backoff_s=1.0, backoff_max_s=60.0)


@dataclass(slots=True)
class MachineTasks:
    """The desired state of one machine: the instructions for its Borglet. `view`: the machine's incarnations according
    to the database. The shard compares the machine's reports with this view.
    """

    view: View
    run: list[RunTask] = field(default_factory=list)
    stop: list[StopTask] = field(default_factory=list)
    allocs: list[RunAlloc] = field(default_factory=list)


def specs_of(rows: Iterable[KeptAlloc]) -> set[tuple[int, int]]:
    """Return (job id, version) for the spec of each log saver: a task that saves the logs of a kept alloc. Kept allocs
    that are already released are left out.
    """
    return {(saver["job_id"], saver["version"]) for row in rows if not row.released for saver in row.savers}


def add_kept(
    found: Mapping[int, MachineTasks],
    rows: Iterable[KeptAlloc],
    known: Mapping[tuple[int, int], job_spec.JobSpecification | None],
    *,
    cell: str,
    extra: Sequence[str],
) -> None:
    """Add the kept allocs in `rows` (ended allocs whose folder stays) and their log savers to `found`, which has the
    instructions of each machine by its id.

    `found` must already contain the tasks that are being stopped. `known`: specs by (job id, version). Log savers that
    have finished, or whose spec cannot be read, are not added.
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
    """Return the instruction to run a log saver, a task that saves the logs of an ended alloc. `saver`: the element of
    `row.savers` at `position`.

    The environment variable `BORG_ALLOC_ENDED` shows the task that the alloc has ended.
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
    """Return the task key that `text` contains in the form of `str(TaskKey)`."""
    job, index, incarnation = text.split("/")
    return TaskKey(job, int(index), int(incarnation))
