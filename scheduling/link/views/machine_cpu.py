"""Convert CPU between the cell, which counts normalised cores (§5.4), and a machine, which has its own cores. No I/O.

    limits in the desired state ── ÷ factor ──► Borglet: control groups of the tasks
    usage of tasks, and windows ◄── × factor ── Borglet: measured CPU

The shard converts, so that Borglets of every release know only the cores of their machine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from borglet.messages import RunAlloc, RunTask, TaskKey, Usage, UsageWindow
from quota.vocabulary.resources import CPU, NAMES
from scheduling.policy.cpu_factors import ONE, machine_milli, normalised
from scheduling.usage.measured import MeasuredUsage

_CPU = NAMES[CPU]
# The positions of amounts of CPU in `Usage`.
_IN_USAGE = [n for n, name in enumerate(Usage.__struct_fields__) if name in ("cpu_milli", "throttled_milli")]
_IN_WINDOW = ("cpu_milli", "most_cpu_milli", "random_cpu_milli", "throttled_milli")
Instruction = TypeVar("Instruction", RunTask, RunAlloc)


@dataclass(frozen=True, slots=True)
class MachineCpu:
    """Converts amounts of CPU of one machine. `factor`: that of its platform, in thousandths. `limits`: the normalised
    limits of the tasks that should run there, in milli-cores. `whole`: the task ids of tasks that reserve whole cores,
    by their keys. Their limits are cores of the machine, so their usage is too.
    """

    factor: int = ONE
    limits: Mapping[TaskKey, int] = field(default_factory=dict)
    whole: Mapping[TaskKey, int] = field(default_factory=dict)

    def limited(self, task: Instruction) -> Instruction:
        """Return an instruction for a task or an alloc with its CPU limit in milli-cores of the machine. Tasks that
        reserve whole cores keep their limit, because they reserve that many cores of the machine.
        """
        cpu = task.limit.get(_CPU, 0)
        if not cpu or (isinstance(task, RunTask) and task.whole_cores):
            return task
        return msgspec.structs.replace(task, limit={**task.limit, _CPU: machine_milli(cpu, self.factor)})

    def normalised_usage(self, measured: MeasuredUsage) -> MeasuredUsage:
        """Return the usage of a machine and its tasks in normalised milli-cores, except that of tasks with whole
        cores.
        """
        if self.factor == ONE:
            return measured
        figures = array("q", measured.figures)
        whole = set(self.whole.values())
        starts = [row * measured.columns for row, task in enumerate(measured.task_ids) if task not in whole]
        for position in _IN_USAGE:
            if position < measured.columns:
                for start in starts:
                    figures[start + position] = normalised(figures[start + position], self.factor)
        return measured._replace(figures=figures)

    def normalised_window(self, window: UsageWindow) -> UsageWindow:
        """Return a window of the usage of a task in normalised milli-cores, or as it is if the task has whole cores."""
        if self.factor == ONE or window.key in self.whole:
            return window
        limit = self._asked_limit(window)
        return msgspec.structs.replace(
            window,
            **{name: normalised(getattr(window, name), self.factor) for name in _IN_WINDOW},
            cpu_distribution=[normalised(milli, self.factor) for milli in window.cpu_distribution],
            cpu_tail=[normalised(milli, self.factor) for milli in window.cpu_tail],
            limit_cpu_milli=normalised(window.limit_cpu_milli, self.factor) if limit is None else limit,
        )

    def _asked_limit(self, window: UsageWindow) -> int | None:
        """Return the limit that the task asked for, or None if it has left, or had another limit in this window."""
        limit = self.limits.get(window.key)
        same = limit is not None and window.limit_cpu_milli in (limit, machine_milli(limit, self.factor))
        return limit if same else None


PLAIN = MachineCpu()


def machine_cpu(factor: int, tasks: Sequence[RunTask | RunAlloc], task_id: Callable[[TaskKey], int]) -> MachineCpu:
    """Return the conversion for a machine. `factor`: that of its platform, in thousandths. `tasks`: what should run
    there, with normalised limits. `task_id`: returns the id of one of these tasks.
    """
    if factor == ONE:
        return PLAIN
    whole = {task.key: task_id(task.key) for task in tasks if isinstance(task, RunTask) and task.whole_cores}
    return MachineCpu(factor, {task.key: task.limit.get(_CPU, 0) for task in tasks}, whole)
