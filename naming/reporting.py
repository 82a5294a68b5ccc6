"""Reports the metrics of a resolver. Each process writes its counters to shared memory. The first process serves the
metrics of all processes.
"""

from __future__ import annotations

import asyncio

from naming.counters import Board, CellFigures, ServerCounters, add_up
from naming.following.follower import Follower
from naming.following.snapshots import SnapshotKeeper
from naming.metrics import exposition

EVERY_S = 1.0


class MetricsReporter:
    """Reports the metrics of one process of a resolver. `number`: the number of this process. `board`: the memory that
    the processes of the resolver share; None if the resolver has only one process.
    """

    def __init__(
        self,
        figures: ServerCounters,
        follower: Follower,
        keeper: SnapshotKeeper | None = None,
        *,
        board: Board | None = None,
        number: int = 0,
    ) -> None:
        self._figures = figures
        self._follower = follower
        self._keeper = keeper
        self._board = board
        self._number = number

    def figures(self, *, names: bool) -> ServerCounters:
        """Return the current counters of this process. `names`: whether to count also the jobs and tasks, which is
        slow.
        """
        figures, directory = self._figures, self._follower.directory
        figures.status = directory.status.value
        figures.unheard_s = self._follower.unheard_s()
        figures.snapshot_failures = 0 if self._keeper is None else self._keeper.failed
        figures.cells = {}
        for table in directory.cells.values():
            if table.ready:
                cell = figures.cells[table.cell] = CellFigures(table.revision, table.serial)
                if names:
                    cell.jobs, cell.placed, cell.serving = table.counts()
                if self._keeper is not None:
                    cell.snapshot_at = self._keeper.written_at(table.cell)
        return figures

    def exposition(self) -> bytes:
        """Return the metrics of all processes in the text format of Prometheus."""
        own = self.figures(names=True)
        if self._board is None:
            return exposition(own)
        return exposition(add_up([own, *self._board.others(self._number)]), self._board.restarts())

    async def run(self) -> None:
        """Write the counters of this process to the shared memory each second. Runs until its asyncio task is
        cancelled.
        """
        while self._board is not None:
            self._board.write(self._number, self.figures(names=False))
            await asyncio.sleep(EVERY_S)
        await asyncio.Event().wait()
