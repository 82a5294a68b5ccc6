"""Cordons: machines that a re-packing keeps free of new tasks, and from which it lets tasks leave step by step.

    machines_cordon ─► a drain for which no task leaves ─► cordon_open: some or all tasks leave ─► machines_uncordon

A cordon is a drain (`Drain`) with a re-packing. `scheduling.machines.evacuation` evicts the tasks that leave.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scheduling.core.vocabulary import events
from scheduling.journal.journal import JournalEntry
from scheduling.machines.machines import DRAINING, UP, announce_wish, set_rows
from scheduling.models import Drain, Machine, Repacking


def machines_cordon(entry: JournalEntry, machine_ids: Collection[int], repacking: Repacking, reason: str) -> set[int]:
    """Let no new tasks start on those of the machines that are up. Return their ids. Locks the machines' rows."""
    rows = list(
        Machine.objects.select_for_update().filter(pk__in=machine_ids, cell_id=entry.cell_id, state=UP).order_by("id")
    )
    drains = [
        Drain(
            machine=row,
            began_at=entry.time,
            reason=reason[:300],
            asked_by=repacking.started_by,
            repacking=repacking,
            only=[],
        )
        for row in rows
    ]
    Drain.objects.bulk_create(drains)
    set_rows(entry, [row.id for row in rows], DRAINING, reason)
    for row in rows:
        announce_wish(entry, row, events.MachineState(machine_id=row.id, state=DRAINING, reason=reason))
    return {row.id for row in rows}


def cordon_open(repacking: Repacking, machine_id: int, *, only: Sequence[int] | None, tasks: int) -> None:
    """Let tasks leave a machine. `only`: their ids; None: all. `tasks`: how many there are."""
    Drain.objects.filter(machine=machine_id, repacking=repacking).update(
        only=None if only is None else list(only), tasks=tasks
    )


def machines_uncordon(
    entry: JournalEntry, repacking: Repacking, machine_ids: Collection[int], reason: str
) -> list[int]:
    """Let new tasks start on those of the machines that the re-packing still drains. Return their ids. A machine that
    is down stays down until it connects again. Locks the machines' rows.
    """
    rows = list(
        Machine.objects.select_for_update(of=("self",))
        .filter(pk__in=machine_ids, cell_id=entry.cell_id, drain__repacking=repacking)
        .order_by("id")
    )
    Drain.objects.filter(machine__in=rows).delete()
    set_rows(entry, [row.id for row in rows if row.state == DRAINING], UP, reason)
    for row in rows:
        announce_wish(entry, row, events.MachineState(machine_id=row.id, state=UP, reason=reason))
    return [row.id for row in rows]
