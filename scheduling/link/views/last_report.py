"""The last report of a machine. A report is decoded completely only if it contains something new besides usage. No
I/O.

    message ─► WireReport ─► same tasks, allocs, generation as before? ─┬─ yes: only usage is new
                                                                        └─ no:  decode, compare with the `View`

Nearly all reports contain only new usage. Decoding the tasks of two thousand reports per second would cost too much.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import msgspec

from borglet.messages import MalformedMessage, Phase, Report, Usage, WireReport, opened
from scheduling.link.views.report_changes import View
from scheduling.usage.measured import MeasuredUsage

_COLUMNS = len(Usage.__struct_fields__)
# A task has processes only in these phases. In other phases its usage means nothing.
_MEASURED = (Phase.STARTING, Phase.UP, Phase.STOPPING)
_NO_TASK = 0


@dataclass(slots=True)
class LastReport:
    """The last report of a machine. `settled`: the report agrees with the machine's present view, so there is nothing
    to change.

    `wire`: the report, not decoded and without usage. `columns`, `figures`, `task_ids`, `incarnations`: the usage in
    the newest report (see `MeasuredUsage`). `report`: the decoded report, or None while the report is settled.
    """

    wire: WireReport
    columns: int
    figures: array[int]
    tasks: int
    report: Report | None
    settled: bool = False
    task_ids: array[int] = field(default_factory=lambda: array("q"))
    incarnations: array[int] = field(default_factory=lambda: array("q"))

    def opened(self) -> Report:
        """Return the report in decoded form."""
        if self.report is None:
            self.report = opened(self.wire)
        return self.report

    def settle(self) -> None:
        """Mark the report as settled: nothing in it remains to be stored. Free the memory of its decoded form."""
        self.settled, self.report = True, None

    def assign(self, view: View, machine_id: int) -> None:
        """Find the task id and the incarnation for each row of the reported usage, and store them. The first row
        belongs to the machine itself.
        """
        self.task_ids, self.incarnations = array("q", (-machine_id,)), array("q", (0,))
        for task in self.opened().tasks:
            expected = view.run.get(task.key)
            known = expected is not None and task.phase in _MEASURED
            self.task_ids.append(expected.task_id if expected is not None and known else _NO_TASK)
            self.incarnations.append(task.key.incarnation)

    def measured(self, machine_id: int) -> MeasuredUsage | None:
        """Return the usage of the machine and its tasks, or None if `assign` was not called yet."""
        if not self.task_ids:
            return None
        return MeasuredUsage(machine_id, self.columns, self.figures, self.task_ids, self.incarnations)


def merge_report(before: LastReport | None, wire: WireReport) -> LastReport:
    """Return the last report of a machine after the message `wire`. If `wire` differs from `before` only in usage, the
    function stores the new usage in `before` and returns `before`.

    Raises `MalformedMessage` if `wire` is not valid; the error names the wrong field.
    """
    if before is None or not _same(before.wire, wire):
        return _new(wire)
    if wire.usage_columns:
        before.columns, before.figures = _figures(wire, before.tasks)
    return before


def _same(before: WireReport, wire: WireReport) -> bool:
    return (
        before.tasks == wire.tasks
        and before.generation == wire.generation
        and before.history_id == wire.history_id
        and before.allocs == wire.allocs
        and before.packages == wire.packages
        and not wire.removals
        and not before.removals
    )


def _new(wire: WireReport) -> LastReport:
    # `Raw` keeps the whole message alive, so the tasks are copied out of it.
    kept = msgspec.structs.replace(wire, tasks=wire.tasks.copy(), usages=[], usage_columns=0)
    report = opened(kept)
    if wire.usage_columns:
        columns, figures = _figures(wire, len(report.tasks))
    else:
        columns, figures = _COLUMNS, array("q")
        for usage in (report.usage, *(task.usage for task in report.tasks)):
            figures.extend(min(max(0, figure), 2**63 - 1) for figure in msgspec.structs.astuple(usage))
    return LastReport(kept, columns, figures, len(report.tasks), report)


def _figures(wire: WireReport, tasks: int) -> tuple[int, array[int]]:
    """Return (number of columns, usage numbers). Columns that only a newer version of the Borglet sends are left out.

    `tasks`: the number of tasks in the report. Raises `MalformedMessage` if the number of usage numbers is wrong.
    """
    columns, figures = wire.usage_columns, wire.usages
    if columns > _COLUMNS:
        columns, figures = _COLUMNS, [figure for n, figure in enumerate(figures) if n % wire.usage_columns < _COLUMNS]
    if len(figures) != columns * (1 + tasks):
        raise MalformedMessage(
            f"Expected {columns * (1 + tasks)} numbers, which are {columns} for the machine and {columns} for each of"
            f" {tasks} tasks, but got {len(figures)}; use the same release of Borglet and cell - at `$.usages`"
        )
    return columns, array("q", figures)
