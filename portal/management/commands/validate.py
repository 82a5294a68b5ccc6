"""Check that the rows, counters, quota and journal of a cell, or of all cells, agree. The exit status is 1 if they do
not. Ended jobs are checked if they ended since the newest checkpoint, or all of them with `--ended-jobs`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.core.cell.state import CellState
from scheduling.history.checkpoints.folder import own_checkpoints
from scheduling.history.checkpoints.rows import load_recorded
from scheduling.history.checkpoints.state_at_moment import replay
from scheduling.master.invariants import replay_journal, validate
from scheduling.master.snapshot import load_state
from scheduling.models import Cell


class Command(BaseCommand):
    help = "Check that the rows, counters, quota and journal of a cell, or of all cells, match. Changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cell", nargs="?")
        parser.add_argument(
            "--whole-journal",
            action="store_true",
            help="Replay the journal from its beginning, not from a checkpoint. Includes --ended-jobs.",
        )
        parser.add_argument(
            "--ended-jobs",
            action="store_true",
            help="Check all ended jobs, not only those that ended since the newest checkpoint.",
        )

    def handle(self, *args: Any, cell: str | None, whole_journal: bool, ended_jobs: bool, **options: Any) -> None:
        cells = Cell.objects.filter(name=cell) if cell else Cell.objects.all()
        if cell and not cells:
            raise CommandError(f"Cannot check cell {cell!r}: there is no such cell. Omit the name to check all cells.")
        not_replayed: set[int] = set()

        def replayed(cell_id: int) -> CellState | None:
            state = replay_journal(cell_id) if whole_journal else replay(cell_id)
            if state is None:
                not_replayed.add(cell_id)
            return state

        check = partial(validate, load=load_state if whole_journal else load_recorded, replay=replayed, parallel=True)
        after = {row.id: 0 if whole_journal or ended_jobs else _newest_checkpoint(row) for row in cells}
        problems = [(row.name, problem) for row in cells for problem in check(row.id, after=after[row.id])]
        for row in cells:
            if row.id in not_replayed:
                self.stdout.write(f"{row.name}: the journal was not replayed, because its first events are missing")
            if after[row.id]:
                self.stdout.write(
                    f"{row.name}: jobs that ended at or before revision {after[row.id]} (the newest checkpoint) were"
                    " not checked; --ended-jobs checks them too"
                )
        for name, problem in problems:
            self.stderr.write(f"{name}: {problem}")
        if problems:
            raise CommandError(
                f"{len(problems)} invariants are broken. The lines above describe them. Report this as a bug."
            )
        self.stdout.write(f"{len(cells)} cells checked; no invariant is broken")


def _newest_checkpoint(cell: Cell) -> int:
    """Return the revision of the newest checkpoint of a cell, or 0 if it has none. A checkpoint of a later revision
    than the cell's belongs to commits that were lost.
    """
    revisions = (one.header.revision for one in own_checkpoints(cell))
    return next((revision for revision in revisions if revision <= cell.revision), 0)
