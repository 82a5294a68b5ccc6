"""The drains of the machines of maintenance windows: their beginning, their changes, and their end.

    machine in draining windows ─┬─ no drain ─────────────► a drain that belongs to the window that starts first
                                 ├─ drain of a re-packing ─► taken over
                                 ├─ drain of a window ─────► changed if another one starts earlier, or one has started
                                 └─ drain of a person ─────► stays, also after the window
    machine in no draining window any more, drain of a window ─► ends

A drain of a window is an ordinary drain (`scheduling.machines.evacuation`). Tasks that end by themselves before the
window starts stay until then (`Drain.only`).
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Sequence

from scheduling.core.vocabulary import events
from scheduling.journal.journal import JournalEntry
from scheduling.machines.machines import DOWN, DRAINING, UP, announce_wish, set_rows
from scheduling.maintenance.ownership import WantedDrain, wanted_drain
from scheduling.maintenance.scope import is_covered, tasks_ending_before
from scheduling.models import Drain, Machine, MaintenanceWindow, Task
from scheduling.models.machines import REMOVED
from scheduling.tasks import counters

_BATCH = 500
_CHANGED = ("window", "repacking", "reason", "asked_by", "began_at", "deadline", "break_budgets", "tasks", "only")


def drains_settle(
    entry: JournalEntry, windows: Sequence[MaintenanceWindow], machine_ids: Collection[int], now: dt.datetime
) -> int:
    """Give the machines the drains that they should have. Return how many machines changed.

    `windows`: all windows of the cell whose machines are being drained; their rows are locked. Locks the machines' rows
    in order of id.
    """
    locked = Machine.objects.select_for_update().filter(pk__in=machine_ids, cell_id=entry.cell_id)
    rows = list(locked.exclude(state=REMOVED).order_by("id"))
    known = {drain.machine_id: drain for drain in Drain.objects.filter(machine__in=rows)}
    changed: dict[int, list[Machine]] = defaultdict(list)  # by the window that drains the machine from now on
    free: list[Machine] = []
    by_id = {window.pk: window for window in windows}
    everything: set[int] = set()
    for row in rows:
        drain = known.get(row.id)
        covering = [window for window in windows if is_covered(window, row) and row.id not in window.returned]
        if not covering:
            if drain is not None and drain.window_id is not None:
                free.append(row)
            continue
        if drain is not None and drain.window_id is None and drain.repacking_id is None:
            continue  # a person drains it
        wanted = wanted_drain(covering, now)
        if drain is not None and _is_wanted(drain, wanted):
            continue
        known[row.id] = drain = drain or Drain(machine=row, began_at=entry.time)
        if drain.window_id is None:
            drain.began_at = entry.time
        drain.break_budgets = wanted.break_budgets
        changed[wanted.window.pk].append(row)
        if wanted.everything:
            everything.add(row.id)
    for number, machines in changed.items():
        _change(entry, by_id[number], machines, known, everything)
    Drain.objects.filter(machine__in=free).delete()
    reason = "the maintenance has ended"
    set_rows(entry, [row.id for row in free if row.state == DRAINING], UP, reason)
    for row in free:
        announce_wish(entry, row, events.MachineState(machine_id=row.id, state=UP, reason=reason))
    return len(free) + sum(map(len, changed.values()))


def drain_reason(window: MaintenanceWindow) -> str:
    return f"maintenance window {window.pk}: {window.reason}"[:300]


def _is_wanted(drain: Drain, wanted: WantedDrain) -> bool:
    same = drain.window_id == wanted.window.pk and drain.break_budgets == wanted.break_budgets
    return same and (drain.only is None or not wanted.everything)


def _change(
    entry: JournalEntry,
    window: MaintenanceWindow,
    machines: Sequence[Machine],
    drains: dict[int, Drain],
    everything: Collection[int],
) -> None:
    """Store the drains of the machines, which belong to the window from now on."""
    ids = [row.id for row in machines]
    leaving, total = _tasks_on(ids, window)
    reason = drain_reason(window)
    new: list[Drain] = []
    old: list[Drain] = []
    for row in machines:
        drain = drains[row.id]
        drain.window, drain.repacking, drain.reason, drain.asked_by = window, None, reason, window.asked_by
        drain.deadline, drain.tasks = window.starts_at, drain.tasks or total[row.id]
        drain.only = None if row.id in everything else leaving.get(row.id)
        (new if drain.pk is None else old).append(drain)
    Drain.objects.bulk_create(new, batch_size=_BATCH)
    Drain.objects.bulk_update(old, _CHANGED, batch_size=_BATCH)
    set_rows(entry, [row.id for row in machines if row.state != DOWN], DRAINING, reason)
    for row in machines:
        state = events.MachineState(
            machine_id=row.id,
            state=DRAINING,
            reason=reason,
            break_budgets=drains[row.id].break_budgets,
            deadline=window.starts_at.timestamp(),
        )
        announce_wish(entry, row, state)


def _tasks_on(machine_ids: list[int], window: MaintenanceWindow) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return two values by machine id: the ids of the tasks that leave, only for machines on which other tasks end
    before the window starts, and the number of all tasks.
    """
    running = Task.objects.filter(machine__in=machine_ids, state=counters.RUNNING).order_by("id")
    staying = tasks_ending_before(machine_ids, window.starts_at)
    total: dict[int, int] = defaultdict(int)
    leaving: dict[int, list[int]] = defaultdict(list)
    partial = set()
    for task, machine, alloc in running.values_list("id", "machine_id", "alloc_id"):
        total[machine] += 1
        if task in staying:
            partial.add(machine)
        elif alloc is None:
            leaving[machine].append(task)
    return {machine: leaving[machine] for machine in partial}, total
