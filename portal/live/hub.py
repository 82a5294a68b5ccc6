"""The hub: one thread per process, which reads new journal events of all watched cells and sends changes to viewers.

All viewers of a page get the same message. The thread works at most four times per second. Redis wakes the thread when
there are new events. Without Redis, the thread polls the database. If a viewer is too slow, it loses messages, and its
browser loads the whole page again (*resync*).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.db import DatabaseError, close_old_connections, connection

from portal.live.page_changes import Announcement, CellNews, Happened, TasksTopic, Topic, news_of, verdict_marks
from portal.live.watch_limits import OpenWatch
from scheduling.journal import journal, wakeups
from scheduling.models import Cell

log = structlog.get_logger(__name__)

TICK_S = 0.25
OUTBOX = 8


@dataclass(eq=False)
class Viewer:
    """One browser that shows one page. `topic`: what the page shows. `outbox`: the messages that wait to be sent. Only
    the event loop `loop` may use the outbox.

    `watch`: counts this viewer towards the limits on open live pages, until the viewer leaves.
    """

    topic: Topic
    loop: asyncio.AbstractEventLoop
    watch: OpenWatch | None = None
    outbox: asyncio.Queue[dict[str, Any]] = field(default_factory=lambda: asyncio.Queue(OUTBOX))

    def put(self, message: dict[str, Any]) -> None:
        """Add a message to the outbox. If the outbox is full, replace all its messages by one message that asks the
        browser to load the page again.
        """
        if self.outbox.full():
            while not self.outbox.empty():
                self.outbox.get_nowait()
            message = {"seq": message["seq"], "revision": message["revision"], "resync": True}
        self.outbox.put_nowait(message)


@dataclass
class Page:
    """A live page that has at least one viewer. `topic`: what the page shows.

    `seq`: the number of the last message to the viewers. `revision`: the newest journal revision that the page shows.
    `verdict`: when the scheduler last changed its explanation of the job's pending tasks; None if there is no
    explanation.
    """

    topic: Topic
    revision: int
    seq: int = 0
    verdict: Any = None
    viewers: set[Viewer] = field(default_factory=set)


class Hub:
    """Sends changes of pages to viewers, in its own thread.

    Any thread may call the methods. Code in an event loop must not call `watch`, because `watch` queries the database.
    """

    def __init__(self, name: str = "live-hub") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pages: dict[Topic, Page] = {}
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._histories: dict[int, int] = {}  # number of the journal's history, by id of each cell of the last tick

    def watch(self, viewer: Viewer, *, revision: int) -> dict[str, Any]:
        """Start sending changes to `viewer`. `revision`: the journal revision that the viewer's page shows. Return the
        first message for the viewer.

        If the page already has viewers, `viewer.topic` is replaced by their topic object.
        """
        topic = viewer.topic
        with self._lock:
            if page := self._pages.get(topic):
                return self._joined(page, viewer, revision)
        newest, mark = journal.newest(topic.cell_id), None
        if isinstance(topic, TasksTopic):
            mark = verdict_marks([topic.job_id])[topic.job_id]
        with self._lock:
            page = self._pages.setdefault(topic, Page(topic, newest, verdict=mark))
            hello = self._joined(page, viewer, revision)
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._wanted.set()
        return hello

    def _joined(self, page: Page, viewer: Viewer, revision: int) -> dict[str, Any]:
        viewer.topic = page.topic
        page.viewers.add(viewer)
        return {"hello": True, "seq": page.seq, "revision": page.revision, "resync": revision < page.revision}

    def revision(self, topic: Topic) -> int:
        """Return the journal revision that the page of `topic` shows. Return 0 if the page has no viewers."""
        with self._lock:
            page = self._pages.get(topic)
            return page.revision if page is not None else 0

    def leave(self, viewer: Viewer) -> None:
        """Stop sending changes to `viewer`, and end its watch."""
        with self._lock:
            page = self._pages.get(viewer.topic)
            if page is not None:
                page.viewers.discard(viewer)
                if not page.viewers:
                    del self._pages[viewer.topic]
        if viewer.watch is not None:
            viewer.watch.end()

    def stop(self) -> None:
        """End the thread of the hub. This takes at most one poll interval."""
        self._stopped.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(wakeups.POLL_S + 2.0)

    def _run(self) -> None:
        waiter, cells = None, frozenset[int]()
        while not self._stopped.is_set():
            watched = self._cells()
            if watched != cells or waiter is None:
                if waiter is not None:
                    waiter.close()
                waiter, cells = (wakeups.Waiter(sorted(watched)) if watched else None), watched
            if waiter is None:
                connection.close()
                self._wanted.wait()
                self._wanted.clear()
                continue
            began = time.monotonic()
            try:
                close_old_connections()
                self._tick()
            except DatabaseError as error:
                log.warning("live pages cannot read the database; trying again", error=str(error))
                connection.close()
                self._stopped.wait(wakeups.POLL_S)
            except Exception:  # an error on one page must not end the thread that serves all pages
                log.exception("live pages could not be updated")
                self._stopped.wait(wakeups.POLL_S)
            self._stopped.wait(max(0.0, TICK_S - (time.monotonic() - began)))
            waiter.wait(wakeups.POLL_S)
        if waiter is not None:
            waiter.close()
        connection.close()

    def pages(self) -> list[Page]:
        """Return the pages that have viewers."""
        with self._lock:
            return list(self._pages.values())

    def _cells(self) -> frozenset[int]:
        return frozenset(page.topic.cell_id for page in self.pages())

    def _tick(self) -> None:
        """Read new events and send the resulting changes to the viewers.

        Queries: one for the revisions of all cells, one for the times of all explanations of pending tasks, one for
        each cell with events, and a fixed number for each changed page.
        """
        by_cell: dict[int, list[Page]] = defaultdict(list)
        for page in self.pages():
            by_cell[page.topic.cell_id].append(page)
        cells = Cell.objects.filter(id__in=by_cell).values_list("id", "revision", "history_ordinal")
        known = {cell_id: (revision, history) for cell_id, revision, history in cells}
        topics = [page.topic for pages in by_cell.values() for page in pages]
        jobs = [topic.job_id for topic in topics if isinstance(topic, TasksTopic)]
        marks = verdict_marks(jobs) if jobs else {}
        for cell_id, pages in by_cell.items():
            revision, history = known.get(cell_id, (0, None))
            restored = self._histories.get(cell_id, history) != history
            self._follow(cell_id, pages, revision, marks, restored=restored)
        self._histories = {cell_id: history for cell_id, (_, history) in known.items()}

    def _follow(self, cell_id: int, pages: list[Page], until: int, marks: dict[int, Any], *, restored: bool) -> None:
        """Send the changes of a cell up to the revision `until` to the viewers of `pages`. `marks`: by job id, when the
        scheduler last changed its explanation of the job's pending tasks.

        `restored`: whether the cell was restored, from a backup or in place, since the last call. The viewers then load
        their pages again.
        """
        after, most = min(page.revision for page in pages), max(page.revision for page in pages)
        if restored or until < most:
            news = CellNews(until, None)
        else:
            news = news_of(cell_id, after=after, until=until) if until > after else CellNews(until, ())
        for page in pages:
            page_news, mark = news, None
            if isinstance(page.topic, TasksTopic):
                mark = marks.get(page.topic.job_id)
                if mark != page.verdict and news.events is not None:
                    verdict = Happened("verdict", page.topic.job_id, None, None)
                    page_news = CellNews(until, [*news.events, verdict])
            if until != page.revision or mark != page.verdict:
                self.send(page, page_news.revision, mark, page.topic.changes(page_news))

    def send(self, page: Page, revision: int, verdict: Any, changes: Announcement | None) -> None:
        """Send `changes` to the viewers of a page, unless `changes` is None. `revision`: the journal revision that the
        page shows with these changes. `verdict`: when the explanation of pending tasks on the page was made.
        """
        with self._lock:
            if self._pages.get(page.topic) is not page:  # its viewers have left, and others may have come
                return
            page.revision, page.verdict = revision, verdict
            if changes is None:
                return
            page.seq += 1
            message = {"seq": page.seq, "revision": page.revision, **changes.message()}
            viewers = list(page.viewers)
        for viewer in viewers:
            try:
                viewer.loop.call_soon_threadsafe(viewer.put, message)
            except RuntimeError:  # the event loop of the viewer has ended
                self.leave(viewer)


hub = Hub()
