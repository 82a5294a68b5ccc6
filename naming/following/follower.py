"""Keeps a directory of names up to date: it reads the changes from the journals of the cells, in a thread.

    round: cells() ─► per changed cell: tail, or a snapshot if the cell is new or restored ─► wait for a notification

While a cell is not read yet, queries for its names get the answer SERVFAIL. While the journal is unreachable, the
resolver answers with the names that it read last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import structlog

from naming.counters import ServerCounters
from naming.dns.zones.directory import Status, ZoneDirectory
from naming.following.news import DatedEvent, NewsSource, NewsUnavailable, NewsUnreadable, ZoneFacts
from naming.table.table import NameTable

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

SLICE = 1_000  # events that are applied in one step of the event loop, which takes about a millisecond
COALESCE_S = 0.02  # between two rounds
POLL_S = 0.5  # between two rounds without a notification, because notifications may be lost
RETRY_S = 0.2
FAULT_S = 5.0
STALE_S = 30.0
MOST_BEHIND = 200_000  # revisions; a follower that is further behind reads the rows, which is faster
PATIENCE_S = 1.0  # wait for the journal before the resolver answers from stored names


class Follower:
    """Follows the journals of all cells, and keeps their name tables up to date. The function `on_loaded` is called
    once, when all cells have been read.

    `stale_s`: after this many seconds without contact to the journal, the status becomes stale.
    """

    def __init__(
        self,
        directory: ZoneDirectory,
        source: NewsSource,
        *,
        on_loaded: Callable[[], None] = lambda: None,
        stale_s: float = STALE_S,
        figures: ServerCounters | None = None,
    ) -> None:
        self.directory = directory
        self._figures = figures or ServerCounters()
        self._source = source
        self._on_loaded = on_loaded
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="news")
        self._stale_s = stale_s
        self._tables: dict[int, NameTable] = {}
        self._histories: dict[int, str] = {}  # history id by cell
        self._began_at = asyncio.get_running_loop().time()
        self._heard_at: float | None = None  # of the loop's clock
        self._kept: list[NameTable] = []  # tables from files that have not caught up with the journal yet
        self._loaded = self._away = False
        self.answers = asyncio.Event()  # set once the directory has names

    def start_from(self, cell_id: int, table: NameTable, history_id: str) -> None:
        """Use the stored table `table` for a cell, instead of reading all names of the cell. Call this method before
        `run`.

        The resolver answers from the table once the table contains all changes in the journal. If the journal is
        unreachable, the resolver answers from the table as it is, and the status is stale.
        """
        table.ready = False
        if cell_id in self._tables:
            self._drop(cell_id)
        self._kept.append(table)
        self._put(cell_id, table)
        self._histories[cell_id] = history_id
        self.directory.serial = max(self.directory.serial, cell_id)

    def _answer_from_kept(self) -> None:
        """Let the resolver answer from the tables that it loaded from files, although they are not up to date."""
        if self._kept:
            for table in self._kept:
                table.ready = True
            log.warning("the resolver answers from stored names", cells=len(self._kept))
            self._kept.clear()
            self.directory.status = Status.STALE
            self.answers.set()

    def identity(self, table: NameTable) -> tuple[int, str]:
        """Return the id of a table's cell, and the id of the cell's database. The second id changes when the database
        is restored from a backup. The table must be ready.
        """
        cell_id = next(cell_id for cell_id, known in self._tables.items() if known is table)
        return cell_id, self._histories[cell_id]

    def unheard_s(self) -> float:
        """Return the seconds since the journal was last read. If it was never read, return the seconds since the
        start.
        """
        return asyncio.get_running_loop().time() - (self._heard_at or self._began_at)

    async def run(self) -> None:
        """Follow the journals until the asyncio task of this call is cancelled."""
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                try:
                    await self._round()
                    await asyncio.sleep(COALESCE_S)
                    await self._call(self._source.wait, POLL_S)
                except NewsUnavailable as error:
                    if not self._away:
                        log.warning("the journal is unreachable; the resolver answers from memory", error=str(error))
                    self._away = True
                    self._answer_from_kept()
                    await asyncio.sleep(RETRY_S)
                except Exception:
                    # Old answers are better than no answers. The status becomes stale, and the log contains the cause.
                    log.exception("cannot follow the journal; the resolver answers from memory")
                    self._answer_from_kept()
                    await asyncio.sleep(FAULT_S)
        finally:
            watch.cancel()
            self._thread.submit(self._source.close)
            self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    async def _round(self) -> None:
        cells = await self._call(self._source.cells)
        self._keep_only(cells)
        for facts in cells:
            await self._catch_up(facts)
        self._heard_at = asyncio.get_running_loop().time()
        if self._away or self.directory.status is Status.STALE:
            log.info("the journal is reachable again", cells=len(cells))
        self._away = False
        if not self._loaded:
            self._loaded = True
            self._on_loaded()
        self.directory.status = Status.OK
        self.answers.set()

    def _keep_only(self, cells: Iterable[ZoneFacts]) -> None:
        """Create an empty table for each new cell in `cells`. Remove the tables of cells that were removed or
        renamed.
        """
        known = {facts.cell_id: facts for facts in cells}
        for cell_id, table in list(self._tables.items()):
            if cell_id not in known or known[cell_id].name != table.cell:
                self._drop(cell_id)
        for cell_id, facts in known.items():
            if cell_id not in self._tables:
                self._put(cell_id, NameTable(facts.name))
            self._tables[cell_id].start = facts.start
        self.directory.serial = max([self.directory.serial, *known])
        self.directory.loaded = True

    def _drop(self, cell_id: int) -> None:
        table = self._tables.pop(cell_id)
        self._kept = [kept for kept in self._kept if kept is not table]
        self._histories.pop(cell_id, None)
        del self.directory.cells[table.cell]
        self.directory.generation += 1

    def _put(self, cell_id: int, table: NameTable) -> None:
        self._tables[cell_id] = self.directory.cells[table.cell] = table
        self.directory.generation += 1

    async def _catch_up(self, facts: ZoneFacts) -> None:
        table = self._tables[facts.cell_id]
        restored = facts.revision < table.revision or (facts.history_ordinal, facts.history_id) != (
            table.history_ordinal,
            self._histories.get(facts.cell_id),
        )
        far = facts.revision - table.revision > MOST_BEHIND
        if restored or far or not (table.ready or table in self._kept):
            await self._take_snapshot(facts)
            return
        while table.revision < facts.revision:
            try:
                news = await self._call(self._source.tail, facts.cell_id, table.revision)
                if not news or news[0].revision != table.revision + 1:
                    raise NewsUnreadable(
                        f"revision {table.revision + 1} is no longer in the journal, so all names are read again"
                    )
            except NewsUnreadable as error:
                log.warning(
                    "the resolver cannot continue with the journal of a cell; it reads all DNS names of the cell again",
                    cell=facts.name,
                    reason=str(error),
                )
                await self._take_snapshot(facts)
                return
            await self._apply(table, news)
        if table in self._kept:
            self._kept.remove(table)
            table.ready = True

    async def _apply(self, table: NameTable, news: list[DatedEvent]) -> None:
        done = 0
        for revision, event, _ in news:
            if done >= SLICE and revision != table.revision:
                await asyncio.sleep(0)
                done = 0
            table.apply(event, revision)
            done += 1
        if news and news[0].at:
            self._figures.observe_lag(max(0.0, time.time() - news[0].at))

    async def _take_snapshot(self, facts: ZoneFacts) -> None:
        """Load all names of a cell into a new table. Then use this table instead of the cell's old table."""
        snapshot = await self._call(self._source.snapshot, facts.cell_id)
        table = NameTable(facts.name, history_ordinal=snapshot.history_ordinal, start=facts.start)
        for start in range(0, len(snapshot.events), SLICE):
            for event in snapshot.events[start : start + SLICE]:
                table.apply(event, snapshot.names_revision)
            await asyncio.sleep(0)
        table.revision, table.names_revision = snapshot.revision, snapshot.names_revision
        table.ready = True
        self._histories[facts.cell_id] = snapshot.history_id
        self._kept = [kept for kept in self._kept if kept is not self._tables[facts.cell_id]]
        self._put(facts.cell_id, table)
        counts = dict(zip(("jobs", "placed", "serving"), table.counts(), strict=True))
        log.info(
            "the resolver has loaded the DNS names of a cell",
            cell=facts.name,
            revision=table.revision,
            serial=table.serial,
            **counts,
        )

    async def _watch(self) -> None:
        """Set the status to stale if the journal was not read for `stale_s` seconds. This also works while a read
        hangs.
        """
        await asyncio.sleep(PATIENCE_S)
        self._answer_from_kept()
        while True:
            await asyncio.sleep(POLL_S)
            heard = self._heard_at
            silent_s = 0.0 if heard is None else asyncio.get_running_loop().time() - heard
            if silent_s > self._stale_s and self.directory.status is not Status.STALE:
                self.directory.status = Status.STALE
                log.warning("the names are stale; the resolver answers from memory", silent_s=round(silent_s, 1))
