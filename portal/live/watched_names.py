"""Names of jobs, tasks and services whose changes the portal sends to clients (§2.6). The names hub reads each name
once for all clients that watch it. After that, it reads only changed rows.

    journal ─► NamesHub ─► WatchedName.changes ─► changed rows ─► NamesMessages ─► outbox of each watcher
    Redis ───► NamesHub ─► WatchedName.take_loads ──────────────────┘   (the journal contains no loads)

Each watcher has received all changes up to some revision N. `WatchedName.changed_since(N)` returns True if an event
after N may concern the name, even if this event did not change the state of the name.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.conf import settings
from msgspec.structs import replace

from naming.api.changes import WEIGHED, changed_after, members_changed_after
from naming.api.selectors import job_visible, jobs_of_service, live_job, service_visible, weights_of_service
from naming.api.task_endpoints import PlacedRow, busy_of, endpoints_of, job_answer, rows_of, service_answer, tracks_of
from naming.api.task_loads import Busy, loads_of
from naming.table.endpoints import JobEndpoints, ServiceEndpoints, TaskEndpoint, weighed_by_track
from naming.table.names import SERVICE, JobName, ServiceName, TaskName
from naming.table.table import NAMING_KINDS
from portal.live.hub import Hub, Page
from portal.live.page_changes import CellNews, Happened
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary.requirement import task_id
from scheduling.models import Cell, Job, Task

LOADS_S = 5.0  # time between two reads of loads
LOAD_STEP = 0.05  # the hub sends only changes of a load that are at least as large
MOST_TASKS = 2_000  # if more tasks have changed, the hub reads the whole name again
_KINDS = frozenset(NAMING_KINDS)
_JOINS = ("job.submitted", "job.changed")
_OF_TASKS = frozenset(kind for kind in NAMING_KINDS if kind.startswith("task."))

Watchable = JobName | TaskName | ServiceName
State = JobEndpoints | ServiceEndpoints | TaskEndpoint


@dataclass(frozen=True, slots=True)
class NamesMessages:
    """An update that is sent to all watchers of a name.

    `version`: the number of the update. `facts`: the state without endpoints; None if the name no longer exists.
    `visible`: whether WebSockets get the update too; if False, nothing but the revision has changed, and only long
    polls get it. `body`: the complete answer for long polls; None if no long poll is waiting.
    """

    version: int
    revision: int
    changed_at: int
    history: int
    facts: Mapping[str, Any] | None
    changed: Sequence[TaskEndpoint] = ()
    gone: Sequence[str] = ()
    visible: bool = True
    body: bytes | None = None

    def message(self) -> dict[str, Any]:
        """Return this update as a message for the outbox of a viewer. `text` in the message is the JSON for WebSockets.

        `text` is empty if WebSockets do not need this update.
        """
        text: dict[str, Any] = {"type": "gone", "revision": self.revision}
        if self.facts is not None:
            text |= {"type": "change", "facts": self.facts, "changed": self.changed, "gone": self.gone}
        return {"names": self, "text": msgspec.json.encode(text).decode() if self.visible else "", "resync": False}


@dataclass(unsafe_hash=True)
class WatchedName:
    """The name of a job, task or service that clients watch, with its present endpoints. Two objects are equal if their
    names are equal.

    `since`: the revision of the first read; 0 if the name was not read yet. `changed_at`: the revision of the newest
    event after `since` that may have changed the name. `revision`: the revision of the last read. `pollers`: how many
    long polls wait for a complete answer; only the event loop changes this number.
    """

    name: Watchable
    cell_id: int
    tenant_id: int
    since: int = field(default=0, compare=False)
    changed_at: int = field(default=0, compare=False)
    version: int = field(default=0, compare=False)
    revision: int = field(default=0, compare=False)
    history: int = field(default=0, compare=False)
    pollers: int = field(default=0, compare=False)
    _cell: Cell | None = field(default=None, compare=False, repr=False)
    _jobs: dict[int, Job] = field(default_factory=dict, compare=False, repr=False)
    _rows: dict[int, PlacedRow] = field(default_factory=dict, compare=False, repr=False)
    _endpoints: dict[int, TaskEndpoint] = field(default_factory=dict, compare=False, repr=False)
    _weights: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    _body: tuple[int, int, bytes | None] = field(default=(-1, -1, None), compare=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    # -- reads

    def begin(self) -> None:
        """Read the state of the name from the database, if it was not read before."""
        with self._lock:
            if not self.since:
                self._read(None)
                self.since = self.revision

    def body(self, revision: int) -> tuple[int, int, bytes | None]:
        """Return three values: the version of the name's state, the journal revision that the answer shows, and the
        answer to `GET /bns/…` as JSON.

        The answer is None if the name does not exist. The returned revision is `revision` or newer. All callers share
        the same answer object.
        """
        with self._lock:
            revision = max(revision, self.revision)
            if self._body[:2] != (self.version, revision):
                state = self._state()
                answer = None if state is None else msgspec.json.encode(replace(state, revision=revision))
                self._body = (self.version, revision, answer)
            return self._body

    def changed_since(self, after: int) -> bool:
        """Return whether the name may have changed after revision `after`.

        The method queries the database only if `after` is older than `since`.
        """
        with self._lock:
            if after >= self.since or self.changed_at > after:
                return self.changed_at > after
            jobs, machines = list(self._jobs), self._machines()
        if changed_after(self.cell_id, jobs, machines, after=after):
            return True
        return isinstance(self.name, ServiceName) and members_changed_after(
            self.name, self.cell_id, self.tenant_id, after=after, until=self.since
        )

    # -- changes

    def changes(self, news: CellNews) -> NamesMessages | None:
        """Return the update that results from new events. Return None if no event affects the name. Makes at most four
        queries.
        """
        with self._lock:
            if not self.since:
                return None
            if news.events is None:
                self.since = self.changed_at = news.revision
                return self._read_again(None)
            events = self._concerning(news.events)
            if not events:
                return None
            self.changed_at = max(event.revision for event in events)
            only_tasks = all(event.kind in _OF_TASKS for event in events) and len(events) <= MOST_TASKS
            return self._read_again({_task(event) for event in events} if only_tasks else None)

    def busy(self) -> list[Busy]:
        """Return the placed tasks behind this name, with the facts from which the load of each task is computed."""
        with self._lock:
            return busy_of(self._rows.values())

    def take_loads(self, loads: Mapping[int, float]) -> NamesMessages | None:
        """Return the update that results from new loads. Return None if each load has changed by less than `LOAD_STEP`.

        `loads`: the load of each task, by task id. This update does not end a long poll (an HTTP request that waits for
        a change of the name).
        """
        with self._lock:
            moved = {
                task: replace(one, load=loads.get(task))
                for task, one in self._endpoints.items()
                if one.address and _moved(one.load, loads.get(task))
            }
            if not moved:
                return None
            self._endpoints |= moved
            self.version += 1
            shown = self._shown()
            return self._update(self._facts(), [shown[task] for task in moved])

    def _concerning(self, events: Sequence[Happened]) -> list[Happened]:
        """Return those of `events` that may change the answer for this name."""
        moved = any(event.kind == "machine.set" for event in events)
        machines = set(self._machines()) if moved else set()
        only = self.name.index if isinstance(self.name, TaskName) else None
        concerned = [
            event
            for event in events
            if event.kind in _KINDS
            and (event.job_id in self._jobs or (event.kind == "machine.set" and event.machine_id in machines))
            and (only is None or event.kind not in _OF_TASKS or event.task_index == only)
        ]
        return concerned + self._joining(events) + self._weighed(events)

    def _weighed(self, events: Sequence[Happened]) -> list[Happened]:
        """Return the events that have changed the weights of this service."""
        if not isinstance(self.name, ServiceName):
            return []
        name = f"{self.name.tenant}/{self.name.service}"
        return [one for one in events if one.kind == WEIGHED and one.service == name]

    def _joining(self, events: Sequence[Happened]) -> list[Happened]:
        """Return those of `events` whose job now belongs to this name and did not before."""
        if self._jobs and not isinstance(self.name, ServiceName):
            return []
        unknown = [event for event in events if event.kind in _JOINS and event.job_id not in self._jobs]
        if not unknown:
            return []
        jobs = Job.objects.filter(id__in={event.job_id for event in unknown}, tenant_id=self.tenant_id)
        if isinstance(self.name, ServiceName):
            jobs = jobs.filter(kind="job", **{f"labels__{SERVICE}": self.name.service})
        else:
            jobs = jobs.filter(name=self.name.job)
        joined = set(jobs.values_list("id", flat=True))
        return [event for event in unknown if event.job_id in joined]

    def _read_again(self, tasks: Collection[int] | None) -> NamesMessages:
        """Read the state of the name again, and return the update. `tasks`: ids of the only tasks that can have
        changed; None means that all tasks can have changed.
        """
        before, facts, history = self._shown(), self._facts(), self.history
        self._read(tasks)
        after = self._shown()
        changed = [
            one
            for task, one in after.items()
            if (old := before.get(task)) is not one and (old is None or _differs(old, one))
        ]
        gone = [one.name for task, one in before.items() if task not in after]
        self.version += 1
        now = self._facts()
        visible = bool(changed or gone) or history != self.history or _without(facts) != _without(now)
        return self._update(now, changed, gone, visible)

    def _update(
        self,
        facts: Mapping[str, Any] | None,
        changed: Sequence[TaskEndpoint],
        gone: Sequence[str] = (),
        visible: bool = True,
    ) -> NamesMessages:
        body = self.body(self.revision)[2] if self.pollers else None
        return NamesMessages(
            self.version, self.revision, self.changed_at, self.history, facts, changed, gone, visible, body
        )

    # -- rows

    def _read(self, tasks: Collection[int] | None) -> None:
        """Read the state of the name. `tasks`: ids of the only tasks that can have changed; None means all tasks.

        The revision is read before the rows, so the rows may be newer. Events after that revision are then handled
        again.
        """
        cell, jobs = self._find()
        if tasks is None or set(jobs) != set(self._jobs):
            rows, endpoints, tasks = {}, {}, None
        else:
            rows, endpoints = dict(self._rows), dict(self._endpoints)
            for task in tasks:
                rows.pop(task, None)
                endpoints.pop(task, None)
        if isinstance(self.name, TaskName):
            tasks = [task_id(job_id, self.name.index) for job_id in jobs]
        found = rows_of(jobs, tasks=tasks, pending=isinstance(self.name, TaskName))
        made = endpoints_of(jobs, found, zone=settings.BORG_ZONE)
        rows |= {row.task_id: row for row in found}
        endpoints |= {row.task_id: one for row, one in zip(found, made, strict=True)}
        self._cell, self._jobs, self._rows, self._endpoints = cell, jobs, rows, endpoints
        self._weights = weights_of_service(self.name) if isinstance(self.name, ServiceName) else {}
        if cell is not None:
            self.revision, self.history = cell.revision, cell.history_ordinal

    def _find(self) -> tuple[Cell | None, dict[int, Job]]:
        if not isinstance(self.name, ServiceName):
            job = live_job(self.name if isinstance(self.name, JobName) else self.name.of_job)
            if job is not None:
                return job.cell, {job.id: job}
        cell = Cell.objects.filter(pk=self.cell_id).first()
        found = jobs_of_service(self.name) if isinstance(self.name, ServiceName) else []
        return cell, {job.id: job for job in found}

    def _machines(self) -> list[int]:
        return [row.machine_id for row in self._rows.values() if row.machine_id is not None]

    def _state(self) -> State | None:
        if not self._jobs or self._cell is None:
            return None
        endpoints = [self._endpoints[task] for task in sorted(self._endpoints)]
        if isinstance(self.name, TaskName):
            return endpoints[0] if endpoints else None
        if isinstance(self.name, JobName):
            return job_answer(next(iter(self._jobs.values())), endpoints, zone=settings.BORG_ZONE)
        jobs = self._jobs.values()
        return service_answer(self.name, self._cell, jobs, endpoints, self._weights, zone=settings.BORG_ZONE)

    def _shown(self) -> dict[int, TaskEndpoint]:
        """Return the endpoints as clients get them, by task id."""
        if not self._weights:
            return self._endpoints
        weighed = weighed_by_track(list(self._endpoints.values()), tracks_of(self._jobs.values()), self._weights)
        return dict(zip(self._endpoints, weighed, strict=True))

    def _facts(self) -> dict[str, Any] | None:
        state = self._state()
        if state is None:
            return None
        if isinstance(state, TaskEndpoint):
            return {"name": state.name, "revision": self.revision, "history": self.history}
        return {name: getattr(state, name) for name in state.__struct_fields__ if name != "endpoints"}


class NamesHub(Hub):
    """The hub for watched names. It has its own thread, so that slow live pages do not delay updates of names."""

    _loads_at = 0.0

    def _tick(self) -> None:
        super()._tick()
        if (now := time.monotonic()) >= self._loads_at:
            self._loads_at = now + LOADS_S
            self._send_loads()

    def _send_loads(self) -> None:
        """Read the loads of the tasks behind all watched names, and send what has changed. Makes one request to Redis
        for each cell.
        """
        by_cell: dict[int, list[tuple[Page, WatchedName]]] = defaultdict(list)
        for page in self.pages():
            if isinstance(page.topic, WatchedName):
                by_cell[page.topic.cell_id].append((page, page.topic))
        for cell_id, watched_names in by_cell.items():
            loads = loads_of(cell_id, {one for _, names in watched_names for one in names.busy()})
            for page, names in watched_names:
                self.send(page, page.revision, None, names.take_loads(loads))


names_hub = NamesHub("names-hub")


def watched(principal: Principal, name: Watchable) -> WatchedName:
    """Return a `WatchedName` for `name`. Its state is not read yet. Raises `NotFound` if the name does not exist or
    `principal` may not see it.
    """
    if isinstance(name, ServiceName):
        service_visible(principal, name)
        jobs = jobs_of_service(name)
        if not jobs:
            raise NotFound("service", name.path)
        return WatchedName(name, jobs[0].cell_id, jobs[0].tenant_id)
    job = job_visible(principal, name if isinstance(name, JobName) else name.of_job)
    if isinstance(name, TaskName) and not Task.objects.filter(pk=task_id(job.id, name.index)).exists():
        raise NotFound("task", name.path)
    return WatchedName(name, job.cell_id, job.tenant_id)


def _task(event: Happened) -> int:
    assert event.job_id is not None
    assert event.task_index is not None
    return task_id(event.job_id, event.task_index)


def _moved(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(old - new) >= LOAD_STEP


def _differs(old: TaskEndpoint, new: TaskEndpoint) -> bool:
    return replace(old, revision=new.revision, load=new.load) != new or _moved(old.load, new.load)


def _without(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if facts is None else {name: value for name, value in facts.items() if name != "revision"}
