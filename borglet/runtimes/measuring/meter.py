"""Measure the usage of running tasks, from their control groups if possible, otherwise from /proc."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from functools import cached_property

from borglet.messages import TaskKey, Usage
from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.cgroups.cgroups import CgroupTree
from borglet.runtimes.cgroups.v1 import GroupUsage
from borglet.runtimes.measuring.disk_usage import DiskWalk
from borglet.runtimes.measuring.traffic import Traffic
from borglet.runtimes.supervisor import proctable
from borglet.runtimes.supervisor.proctable import Process

log = logging.getLogger(__name__)

# The shortest interval for a rate. The kernel accounts CPU time at its ticks, which are some milliseconds apart.
MIN_INTERVAL_S = 0.2
# The most threads of one task whose state is read.
MAX_THREADS = 200


@dataclass(slots=True)
class Metered:
    """One running task, and the figures of its last measurement, with which the next measurement is compared."""

    supervisor_pid: int
    groups: dict[str, str]
    disk: DiskWalk  # of the task's own folders
    throttled_ns: int = 0
    throttled_milli: int = 0
    cpu_ns: int | None = None  # None: the task was adopted and not measured yet
    at: float = field(default_factory=time.monotonic)
    cpu_milli: int = 0
    disk_at: float | None = None  # start of the last walk
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        if self.cpu_ns == 0:
            self.traffic = Traffic.of_new()


class _Table:
    """The processes of the machine. The table reads all processes once, when a caller first needs them."""

    @cached_property
    def _read(self) -> tuple[dict[int, Process], float]:
        return proctable.table(), time.monotonic()

    @property
    def processes(self) -> dict[int, Process]:
        return self._read[0]

    @property
    def at(self) -> float:
        """Return the time at which the processes were read, in seconds of a monotonic clock."""
        return self._read[1]

    @cached_property
    def children(self) -> dict[int, list[int]]:
        return proctable.children_of(self.processes)


class Meter:
    """Measures the usage of all tasks of one Borglet. The CPU usage of a task is the mean since the last measurement.
    If that was less than 0.2 s ago, the last CPU usage is returned again.
    """

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree

    def measure(self, tasks: dict[TaskKey, Metered]) -> dict[TaskKey, Usage]:
        """Return the usage of tasks. Tasks whose usage cannot be read are omitted."""
        table = _Table()
        found = {}
        for key, task in tasks.items():
            try:
                found[key] = self._usage(task, table)
            except Exception:
                log.exception("cannot read the usage of task %s; the next sample tries again", key)
        return found

    def _usage(self, task: Metered, table: _Table) -> Usage:
        measured, now = self._from_groups(task), time.monotonic()
        if measured.cpu_ns is None:
            now = table.at
        if measured.cpu_ns is None or measured.ram_bytes is None or measured.processes is None:
            measured = _fill(measured, table, task.supervisor_pid)
        pids = cgroupfs.members(dict(list(task.groups.items())[:1]))  # all groups contain the same processes
        if not pids:
            pids = set(proctable.descendants(table.children, task.supervisor_pid))
        elapsed_s = now - task.at
        if task.cpu_ns is None or elapsed_s >= MIN_INTERVAL_S:
            task.traffic.look(task.groups, pids, elapsed_s)
            if task.cpu_ns is not None:
                spent_ns = max(0, (measured.cpu_ns or 0) - task.cpu_ns)
                task.cpu_milli = round(spent_ns / elapsed_s / 1e6)
                task.throttled_milli = round(max(0, measured.throttled_ns - task.throttled_ns) / elapsed_s / 1e6)
            task.cpu_ns, task.throttled_ns, task.at = measured.cpu_ns or 0, measured.throttled_ns, now
        return Usage(
            cpu_milli=task.cpu_milli,
            ram_bytes=measured.ram_bytes or 0,
            disk_bytes=task.disk.bytes,
            processes=measured.processes or 0,
            throttled_milli=task.throttled_milli,
            threads=measured.processes or 0,
            read_bytes_s=task.traffic.last.read,
            written_bytes_s=task.traffic.last.written,
            received_bytes_s=task.traffic.last.received,
            sent_bytes_s=task.traffic.last.sent,
            cached_bytes=measured.cached_bytes,
            oom_kills=measured.oom_kills,
        )

    def _from_groups(self, task: Metered) -> GroupUsage:
        try:
            return self._tree.measure(task.groups)
        except OSError:  # the task is ending at this moment
            return GroupUsage(0, 0, 0)

    def ready(self, tasks: dict[TaskKey, Metered]) -> dict[TaskKey, int]:
        """Return for each task how many of its threads run or wait for a CPU core. At most `MAX_THREADS` threads per
        task are read, beginning with the lowest process id.
        """
        children: dict[int, list[int]] | None = None
        found = {}
        for key, task in tasks.items():
            pids = cgroupfs.members(task.groups)
            if not pids:
                if children is None:
                    children = proctable.children_of(proctable.table())
                pids = set(proctable.descendants(children, task.supervisor_pid))
            found[key] = proctable.ready_threads(sorted(pids), at_most=MAX_THREADS)
        return found

    def proportional_ram(self, supervisor_pid: int) -> int:
        """Return the exact memory of a task in bytes. A page that several processes share counts once. This method is
        slow, so do not call it for each sample.
        """
        children = proctable.children_of(proctable.table())
        return sum(proctable.pss_bytes(pid) or 0 for pid in proctable.descendants(children, supervisor_pid))


def _fill(measured: GroupUsage, table: _Table, supervisor: int) -> GroupUsage:
    """Return a copy of `measured`, in which the missing values (None) are computed from the process table.
    `supervisor`: its process id.
    """
    below = [table.processes[pid] for pid in proctable.descendants(table.children, supervisor)]
    ticks = sum(process.cpu_ticks + process.reaped_ticks for process in below)
    if supervisor in table.processes:  # it collects orphans of the task, and their CPU time
        ticks += table.processes[supervisor].reaped_ticks
    return replace(
        measured,
        cpu_ns=ticks * 10**9 // proctable.TICKS_PER_S if measured.cpu_ns is None else measured.cpu_ns,
        ram_bytes=sum(p.rss_bytes for p in below) if measured.ram_bytes is None else measured.ram_bytes,
        processes=sum(p.threads for p in below if p.state != b"Z")
        if measured.processes is None
        else measured.processes,
    )
