"""One thread per process follows the journals of all watched cells and sends changes to the viewers of each page.

Work is per page, not per viewer: all viewers of a page get the same message. The thread ticks at most four times per
second. Notices wake it, and without Redis it polls. A viewer that is too slow loses messages and reads its page again.
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

from portal.live.topics import Announcement, CellNews, Happened, TasksTopic, Topic, news_of, verdict_marks
from portal.live.watches import OpenWatch
from scheduling.journal import journal, wakeups
from scheduling.models import Cell

log = structlog.get_logger(__name__)

TICK_S = 0.25
OUTBOX = 8


@dataclass(eq=False)
class Viewer:
    """One browser on one page. The event loop owns the outbox; the hub's thread calls `put` through the loop.

    `watch`: ends when the viewer leaves.
    """

    topic: Topic
    loop: asyncio.AbstractEventLoop
    watch: OpenWatch | None = None
    outbox: asyncio.Queue[dict[str, Any]] = field(default_factory=lambda: asyncio.Queue(OUTBOX))

    def put(self, message: dict[str, Any]) -> None:
        """Add a message to the outbox, or replace all of them by a resync if it is full. Call it in the loop."""
        if self.outbox.full():
            while not self.outbox.empty():
                self.outbox.get_nowait()
            message = {"seq": message["seq"], "revision": message["revision"], "resync": True}
        self.outbox.put_nowait(message)


@dataclass
class _Page:
    """A topic with viewers. `seq`: of its last message; `revision`: how far it has followed the journal."""

    topic: Topic
    revision: int
    seq: int = 0
    verdict: Any = None
    viewers: set[Viewer] = field(default_factory=set)


class Hub:
    """The hub. Call `watch` and `leave` from any thread, but `watch` queries the database, so not from a loop."""

    def __init__(self, name: str = "live-hub") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pages: dict[Topic, _Page] = {}
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._histories: dict[int, int] = {}  # of the cells of the last tick

    def watch(self, viewer: Viewer, *, revision: int) -> dict[str, Any]:
        """Start to send changes to `viewer`, whose page is of `revision`. Return its first message.

        All viewers of equal topics share the topic object of the first viewer.
        """
        topic = viewer.topic
        with self._lock:
            if page := self._pages.get(topic):
                return self._joined(page, viewer, revision)
        newest, mark = journal.newest(topic.cell_id), None
        if isinstance(topic, TasksTopic):
            mark = verdict_marks([topic.job_id])[topic.job_id]
        with self._lock:
            page = self._pages.setdefault(topic, _Page(topic, newest, verdict=mark))
            hello = self._joined(page, viewer, revision)
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._wanted.set()
        return hello

    def _joined(self, page: _Page, viewer: Viewer, revision: int) -> dict[str, Any]:
        viewer.topic = page.topic
        page.viewers.add(viewer)
        return {"hello": True, "seq": page.seq, "revision": page.revision, "resync": revision < page.revision}

    def revision(self, topic: Topic) -> int:
        """Return the revision that the page shows, or 0 without viewers."""
        with self._lock:
            page = self._pages.get(topic)
            return page.revision if page is not None else 0

    def leave(self, viewer: Viewer) -> None:
        with self._lock:
            page = self._pages.get(viewer.topic)
            if page is not None:
                page.viewers.discard(viewer)
                if not page.viewers:
                    del self._pages[viewer.topic]
        if viewer.watch is not None:
            viewer.watch.end()

    def stop(self) -> None:
        """End the thread within one poll interval."""
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
                log.warning("live pages wait for the database", error=str(error))
                connection.close()
                self._stopped.wait(wakeups.POLL_S)
            except Exception:  # an error of one page must not end the thread that serves all pages
                log.exception("live pages could not be updated")
                self._stopped.wait(wakeups.POLL_S)
            self._stopped.wait(max(0.0, TICK_S - (time.monotonic() - began)))
            waiter.wait(wakeups.POLL_S)
        if waiter is not None:
            waiter.close()
        connection.close()

    def topics(self) -> list[Topic]:
        with self._lock:
            return list(self._pages)

    def _cells(self) -> frozenset[int]:
        with self._lock:
            return frozenset(topic.cell_id for topic in self._pages)

    def _tick(self) -> None:
        """Queries: two for all cells and verdicts, one per cell with events, a fixed number per changed page."""
        with self._lock:
            pages = {topic: (page.revision, page.verdict) for topic, page in self._pages.items()}
        cells: dict[int, list[Topic]] = defaultdict(list)
        for topic in pages:
            cells[topic.cell_id].append(topic)
        newest, histories = {}, {}
        for cell_id, revision, history in Cell.objects.filter(id__in=cells).values_list(
            "id", "revision", "history_ordinal"
        ):
            newest[cell_id], histories[cell_id] = revision, history
        jobs = [topic.job_id for topic in pages if isinstance(topic, TasksTopic)]
        marks = verdict_marks(jobs) if jobs else {}
        for cell_id, topics in cells.items():
            restored = self._histories.get(cell_id, histories.get(cell_id)) != histories.get(cell_id)
            self._follow(cell_id, topics, pages, newest.get(cell_id, 0), marks, restored=restored)
        self._histories = histories

    def _follow(
        self,
        cell_id: int,
        topics: list[Topic],
        pages: dict[Topic, tuple[int, Any]],
        until: int,
        marks: dict[int, Any],
        *,
        restored: bool,
    ) -> None:
        """`restored`: the cell was restored from a backup. Its revision may still have increased."""
        after, most = min(pages[topic][0] for topic in topics), max(pages[topic][0] for topic in topics)
        if restored or until < most:
            news = CellNews(until, None)
        else:
            news = news_of(cell_id, after=after, until=until) if until > after else CellNews(until, ())
        for topic in topics:
            revision, verdict = pages[topic]
            topic_news, mark = news, None
            if isinstance(topic, TasksTopic):
                mark = marks.get(topic.job_id)
                if mark != verdict and news.events is not None:
                    topic_news = CellNews(until, [*news.events, Happened("verdict", topic.job_id, None, None)])
            if until != revision or mark != verdict:
                self._send(topic, topic_news.revision, mark, topic.changes(topic_news))

    def _send(self, topic: Topic, revision: int, verdict: Any, changes: Announcement | None) -> None:
        with self._lock:
            page = self._pages.get(topic)
            if page is None or page.topic is not topic:  # the viewers left; there may be a new page
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
            except RuntimeError:  # the viewer's loop has ended
                self.leave(viewer)


hub = Hub()
