"""Manage limits, scheduling class, cores and grants (temporary limits) of each running task (§6.2).

start ─► create ─► cores chosen, groups made and limited         resize ─► the same steps again, in place
pressure/guard ─► adjust ─► the CPU limits of tasks that use too much CPU and of all batch tasks together are set,
                            and the memory limits of tasks that may use more memory than their limit (slack)
end of a task ─► release ─► its cores are shared again
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from borglet.messages import RunAlloc, RunTask, TaskKey
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.cgroups.cgroupfs import Groups
from borglet.runtimes.cgroups.cgroups import CgroupTree
from borglet.runtimes.cgroups.limits import NO_GRANT, Grant, KernelLimits, ceiling, kernel_limits
from borglet.runtimes.cgroups.reserved_cores import CorePool, NoCores
from borglet.runtimes.cgroups.system import places_of
from borglet.runtimes.home.taskdirs import directory_name
from borglet.runtimes.supervisor import proctable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    task: RunTask
    groups: Groups
    grant: Grant = NO_GRANT


class Containers:
    """The control groups, scheduling classes and cores of all running tasks of one Borglet."""

    def __init__(self, tree: CgroupTree) -> None:
        self.tree = tree
        cores = tree.cores()
        self.pool = CorePool(cores, places_of(cores))
        self._held: dict[TaskKey, _Held] = {}
        self._batch = (0, True)  # ceiling of all batch tasks in milli-cores, whether they are in the idle class
        self._envelopes: dict[TaskKey, int] = {}  # memory limits of allocs in bytes

    def attributes(self) -> dict[str, str]:
        """Return attributes of this machine, by name. The attributes `isolation.…` say how each limit is enforced. The
        attribute `cores` is the number of cores that can be reserved. It is missing if this number is 0.
        """
        cores = {"cores": str(len(self.pool.cores))} if self.pool.cores else {}
        return self.tree.isolation() | cores

    def limits_of(self, task: RunTask) -> KernelLimits:
        return kernel_limits(task, grant=self._grant_of(task), cpus=self.pool.of(task.key))

    def _grant_of(self, task: RunTask) -> Grant:
        held = self._held.get(task.key)
        return held.grant if held is not None else NO_GRANT

    def manners(self, limits: KernelLimits) -> dict[str, int]:
        """Return the niceness and the scheduling class for the threads of a task with the limits `limits`.

        If CPU weights are available, threads of all batch tasks are in the idle class: otherwise a latency-sensitive
        thread that wakes may wait until the next timer tick. If they are not, only threads of best-effort tasks are in
        the idle class.
        """
        if self.tree.enforces("cpu"):
            return {"nice": 0, "policy": os.SCHED_IDLE if limits.batch else os.SCHED_OTHER}
        policy = os.SCHED_IDLE if limits.cpu_idle else os.SCHED_BATCH if limits.batch else os.SCHED_OTHER
        return {"nice": limits.nice, "policy": policy}

    def behave(self, task: RunTask, pids: Collection[int]) -> None:
        """Apply the niceness and scheduling class of `task` to all threads of the processes `pids`.

        Unless the Borglet has privileges, this call can only lower the class of a thread.
        """
        manners = self.manners(self.limits_of(task))
        for pid in pids:
            for thread in proctable.threads_of(pid):
                try:
                    os.sched_setscheduler(thread, manners["policy"], os.sched_param(0))
                    os.setpriority(os.PRIO_PROCESS, thread, manners["nice"])
                except (ProcessLookupError, PermissionError):
                    continue

    def ceiling_of(self, task: RunTask) -> dict[str, int]:
        """Return the limits beyond which the Borglet ends the task. For a task with memory slack, the RAM limit is
        the amount granted to it now.
        """
        return ceiling(task, self._grant_of(task))

    def create(self, task: RunTask, name: str) -> Groups:
        """Choose the cores of a task, make its control groups, and set their limits. Raises `StartFailed` if too few
        cores are free, and OSError if a group cannot be made.
        """
        self._admit(task)
        alloc = directory_name(task.alloc) if task.alloc is not None else ""
        envelope = self._envelopes.get(task.alloc, 0) if task.alloc is not None else 0
        groups = self.tree.create(name, self.limits_of(task), alloc=alloc, alloc_ram_bytes=envelope)
        self._held[task.key] = _Held(task, groups)
        return groups

    def _admit(self, task: RunTask) -> None:
        if task.whole_cores and not self.pool.cores:
            raise StartFailed(
                "whole_cores: this machine cannot reserve cores for a task (attribute isolation.cores is none);"
                " leave whole_cores out, or ask for machines with control groups"
            )
        try:
            changed = self.pool.admit(task)
        except NoCores as error:
            raise StartFailed(str(error)) from error
        if changed:
            self._repin(but=task.key)

    def adopt(self, task: RunTask, groups: Groups) -> None:
        """Add a task that an earlier Borglet started. The task keeps its cores and its present memory limit."""
        self.pool.adopt(task, self.tree.cores_of(groups))
        grant = Grant(ram_bytes=cgroupfs.memory_limit(groups)) if task.slack.ram else NO_GRANT
        self._held[task.key] = _Held(task, groups, grant)

    def settle(self) -> None:
        """Write all limits again after all calls of `adopt`. An earlier Borglet may have written only some limits."""
        for key, held in self._held.items():
            if held.task.whole_cores and key not in self.pool.owned:
                try:
                    self.pool.admit(held.task)
                except NoCores as error:
                    log.warning("task %s runs without reserved cores: %s", held.task.name, error)
        for held in self._held.values():
            self._write(held)
        self._limit_batch((0, True))

    def resize(self, task: RunTask) -> list[str]:
        """Apply a changed limit, class or priority of a running task. Return a text per limit that the kernel rejected.

        If too few cores are free, the task keeps its present cores. All other changes are made, then `StartFailed` is
        raised.
        """
        held = self._held.get(task.key)
        if held is None:
            return []
        held.task = task
        if not task.slack.ram:
            held.grant = Grant(cpu_milli=held.grant.cpu_milli)
        missing: StartFailed | None = None
        try:
            self._admit(task)
        except StartFailed as error:
            missing = error
        refused = self._write(held)
        if missing is not None:
            raise missing
        return refused

    def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool) -> None:
        """Apply the grants (temporary limits) of the control loop. A task without a grant gets its usual limits. Only
        changed limits are written to the kernel.
        """
        if not self.tree.roots:  # without control groups, the usual limits apply
            return
        for key, held in self._held.items():
            grant = grants.get(key, NO_GRANT)
            if grant != held.grant:
                held.grant = grant
                self._write(held)
        if (batch_milli, batch_idle) != self._batch:
            self._limit_batch((batch_milli, batch_idle))

    def hold_alloc(self, alloc: RunAlloc) -> None:
        """Limit the memory of all tasks in an alloc together to the alloc's limit (§2.4). Raises OSError if the kernel
        rejects the limit.

        An ended alloc gets no common limit: only the tasks that save its logs still run, and each of them has its own
        limit.
        """
        ram_bytes = 0 if alloc.ended else alloc.limit.get("ram", 0)
        if self._envelopes.get(alloc.key) == ram_bytes:
            return
        self._envelopes[alloc.key] = ram_bytes
        self.tree.bound_alloc(directory_name(alloc.key), ram_bytes)

    def forget_alloc(self, key: TaskKey) -> None:
        self._envelopes.pop(key, None)

    def release(self, key: TaskKey) -> None:
        """Delete the data about an ended task, and let other tasks use its cores again."""
        self._held.pop(key, None)
        if self.pool.release(key):
            self._repin(but=key)

    def _limit_batch(self, batch: tuple[int, bool]) -> None:
        try:
            self.tree.limit_batch(batch[0], idle=batch[1])
        except OSError as error:
            log.warning("cannot set the CPU weight of batch tasks (%d milli-cores, idle class: %s): %s", *batch, error)
        else:
            self._batch = batch

    def _write(self, held: _Held) -> list[str]:
        try:
            return self.tree.limit(held.groups, self.limits_of(held.task))
        except FileNotFoundError:
            return []  # the task is ending at this moment
        except OSError as error:  # only this task is affected
            log.warning("cannot apply all limits of task %s: %s", held.task.name, error)
            return []

    def _repin(self, *, but: TaskKey) -> None:
        """After a change of the reserved cores, restrict each latency-sensitive task except `but` to its present
        cores.
        """
        for key, held in self._held.items():
            if key == but or not held.task.latency_sensitive:
                continue
            try:
                self.tree.pin(held.groups, self.pool.of(key))
            except FileNotFoundError:
                continue  # the task is ending at this moment
            except OSError as error:
                log.warning("cannot change the cores of task %s, which keeps its old ones: %s", held.task.name, error)
