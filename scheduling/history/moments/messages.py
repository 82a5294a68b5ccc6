"""The messages between a web process and the process that rebuilds past states. Pure, and without heavy libraries.

web process ── length, `MomentRequest` as JSON ──► process of moments
web process ◄── length, `MomentAnswer` as JSON ─── process of moments
"""

from __future__ import annotations

import datetime as dt
import struct

import msgspec

from scheduling.core.vocabulary.reasons import Why

LENGTH = struct.Struct("<I")
# Rows per page of each list.
PAGE_SIZE = 50


class ListFilter(msgspec.Struct, frozen=True):
    """A filter for the rows of a list. `state`, `search`: empty for all rows. `page`: the number of the page, from 1;
    if it does not exist, the nearest page is returned.
    """

    state: str = ""
    search: str = ""
    page: int = 1


class MomentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a cell as it was at a revision, or after the last change before a time. Without both: at present.

    `tenants`: the tenants whose jobs the caller may see; None for all. Other jobs are counted, but not listed.
    """

    cell_id: int
    revision: int | None = None
    time: dt.datetime | None = None
    tenants: tuple[str, ...] | None = ()
    machines: ListFilter = ListFilter()
    tasks: ListFilter = ListFilter()


class ResourceSum(msgspec.Struct, frozen=True):
    """One resource, summed over the machines that are up. `limits`, `reserved`: the sums of the limits and the
    reservations of the tasks on these machines. `free`: capacity that no task has reserved. All in the unit of the
    resource.
    """

    name: str
    capacity: int
    limits: int
    reserved: int
    free: int


class BandTasks(msgspec.Struct, frozen=True):
    """The numbers of live jobs and of their tasks in one priority band. `pending`, `running`, `dead`: how many of these
    tasks have this state.
    """

    band: str
    jobs: int
    pending: int
    running: int
    dead: int


class PastQueue(msgspec.Struct, frozen=True):
    """The pending tasks of one priority. `since`: since when the oldest one is pending, in seconds since the epoch."""

    band: str
    priority: int
    jobs: int
    tasks: int
    since: float


class PendingJob(msgspec.Struct, frozen=True):
    """A job with pending tasks at a past moment. `tasks`: how many are pending. `placeable`: how many of these tasks a
    pass over this state would place. `whys`: why the others stay pending.
    """

    tenant: str
    name: str
    uid: str
    job_id: int
    priority: int
    band: str
    tasks: int
    since: float
    placeable: int = 0
    whys: tuple[Why, ...] = ()


class PastMachine(msgspec.Struct, frozen=True):
    """A machine at a past moment. `tasks`: the number of its tasks. `limits`: the sum of their limits for each
    resource. `capacity`: the amount of each resource.
    """

    hostname: str
    state: str
    rack: str
    tasks: int
    limits: tuple[int, ...]
    capacity: tuple[int, ...]


class PastTask(msgspec.Struct, frozen=True):
    """A task at a past moment. `since`: when it was last placed, evicted or submitted, in seconds since the epoch.
    `machine`: "" if it had none.
    """

    tenant: str
    job: str
    uid: str
    index: int
    state: str
    band: str
    machine: str
    incarnation: int
    since: float


class ListPage(msgspec.Struct, frozen=True):
    """A page of a list. `page`: its number, from 1. `pages`, `rows`: the number of pages and rows of the whole list."""

    page: int
    pages: int
    rows: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A cell at one revision, without the data that the caller may not see.

    `machine_counts`: the number of machines per state. `hidden_pending`: the number of pending jobs that were left
    out, because the caller may not see them. `unexplained`: whether there were too many pending tasks to compute why
    each one is pending. `nearest_hosts`: the hostnames of the machines that these reasons mention, by machine id.
    """

    revision: int
    machine_counts: dict[str, int]
    resources: tuple[ResourceSum, ...]
    bands: tuple[BandTasks, ...]
    queues: tuple[PastQueue, ...]
    pending: tuple[PendingJob, ...]
    pending_jobs: int
    hidden_pending: int
    unexplained: bool
    nearest_hosts: dict[int, str]
    machines: tuple[PastMachine, ...]
    machines_page: ListPage
    tasks: tuple[PastTask, ...]
    tasks_page: ListPage


class PastMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A cell at a revision, and its neighbours in time. `time`: the time of the revision; None if the cell had no event
    yet. `before`, `after`: the times of the revisions before and after, or None. `replayed_s`: how many seconds it took
    to rebuild the state.
    """

    picture: Picture
    time: dt.datetime | None
    before: dt.datetime | None
    after: dt.datetime | None
    replayed_s: float = 0.0


class MomentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request: a moment, or the code, the text, the field and the HTTP status of a rejection."""

    moment: PastMoment | None = None
    code: str = ""
    detail: str = ""
    fields: dict[str, str] = {}
    status: int = 422
