"""The desired state of many machines, read from rows with a constant number of queries in one snapshot.

    tasks running there ─┐                              ┌─► Desired ─► the Borglet
    departures ──────────┼─ load(cell, machine ids) ─► Loaded
    quarantine released ─┘                              └─► View ─► compare with reports (`link.diff`)

All of it is read in one snapshot: a task must not be seen leaving `run` and missed in `stop`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db import transaction

from borglet.messages import Desired, Health, PackageRef, Phase, RunAlloc, RunTask, StopTask, TaskKey
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import as_mapping
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.journal.sql import execute, query
from scheduling.link.views import kept as kept_allocs
from scheduling.link.views.diff import ExpectedTask, View, exit_mark
from scheduling.link.views.kept import KeptAllocs, task_key
from scheduling.models import JobSpec, KeptAlloc, Machine
from scheduling.models.machines import REMOVED
from scheduling.spec import job_spec, package_names, parser

log = structlog.get_logger(__name__)

_MAX_SPECS = 2_000
_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class Loaded:
    """A machine as stored. `removed`: it no longer belongs to the cell. `down`: marked down although it is
    connected.
    """

    machine_id: int
    session: int
    removed: bool
    down: bool
    desired: Desired
    view: View
    rotation_asked: bool = False


class Specs:
    """A cache of parsed specs by (job, version). A version never changes.

    `packages`: of the versions that name any, by the text that names them.
    """

    def __init__(self, most: int = _MAX_SPECS) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, int], job_spec.JobSpecification | None] = OrderedDict()
        self.packages: dict[tuple[int, int], dict[str, PackageRef]] = {}

    def get(
        self, wanted: Iterable[tuple[int, int]], *, extra: Sequence[str]
    ) -> dict[Any, job_spec.JobSpecification | None]:
        """Return a spec; None if it is missing or unreadable, which is logged. One query at most."""
        wanted = set(wanted)
        found: dict[tuple[int, int], job_spec.JobSpecification | None] = {}
        for pair in wanted & self._known.keys():
            found[pair] = self._known[pair]
            self._known.move_to_end(pair)
        missing = wanted - found.keys()
        if missing:
            for job_id, version, stored, packages in _stored_specs(missing):
                read = found[job_id, version] = self._known[job_id, version] = _parse(job_id, version, stored, extra)
                if packages and read is not None:
                    self.packages[job_id, version] = _packages(read, packages)
            while len(self._known) > self._most:
                self.packages.pop(self._known.popitem(last=False)[0], None)
        return found


def load(cell_id: int, machine_ids: Iterable[int], specs: Specs) -> dict[int, Loaded]:
    """Return the desired state of each machine. Nine queries for any number of machines."""
    ids = sorted(machine_ids)
    with transaction.atomic():
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        fence = _fence(cell_id)
        machines = list(
            Machine.objects.filter(pk__in=ids).only("id", "session", "state", "quarantined", "rotation_asked")
        )
        prod = _prod_bands()
        running = _running(ids)
        departures = _departures(ids)
        kept_rows = list(KeptAlloc.objects.filter(machine_id__in=ids).order_by("id"))
        wanted = {(row.job_id, row.spec_version) for row in running} | kept_allocs.specs_of(kept_rows)
        wanted |= {(row.job_id, row.newest_version) for row in running}
        known = specs.get(wanted, extra=fence.extra)
    waits: dict[tuple[int, int], list[TaskKey]] = defaultdict(list)
    stops: dict[int, list[StopTask]] = defaultdict(list)
    departing: dict[int, dict[TaskKey, int]] = defaultdict(dict)
    for machine_id, identity, key, cause, notice_s, preemptor in departures:
        stops[machine_id].append(StopTask(key, cause, notice_s))
        departing[machine_id][key] = identity
        if preemptor is not None:
            waits[machine_id, preemptor].append(key)
    kept = kept_allocs.kept_on(kept_rows, known, cell=fence.cell, extra=fence.extra)
    runs: dict[int, list[RunTask]] = defaultdict(list)
    allocs: dict[int, list[RunAlloc]] = defaultdict(list)
    expected: dict[int, dict[TaskKey, ExpectedTask]] = defaultdict(dict)
    for row in running:
        job = known.get((row.job_id, row.spec_version))
        if job is None or row.index >= job.tasks:
            log.error("task without a usable spec is not sent", job_id=row.job_id, version=row.spec_version)
            continue
        expected[row.machine_id][row.key] = _expected(row, job)
        if job.kind != "job":
            allocs[row.machine_id].append(_run_alloc(row, fence, prod=row.band in prod))
        else:
            waits_for = sorted(waits.get((row.machine_id, row.task_id), []))
            runs[row.machine_id].append(
                _run_task(
                    row,
                    job,
                    fence,
                    newest=known.get((row.job_id, row.newest_version)) or job,
                    prod=row.band in prod,
                    waits_for=waits_for,
                    packages=specs.packages.get((row.job_id, row.spec_version), {}),
                )
            )
    return {
        machine.id: _loaded(
            machine,
            fence,
            _Wanted(runs[machine.id], stops[machine.id], allocs[machine.id], kept.get(machine.id, KeptAllocs())),
            expected[machine.id],
            departing[machine.id],
        )
        for machine in machines
    }


@dataclass(slots=True)
class _Wanted:
    run: list[RunTask]
    stop: list[StopTask]
    allocs: list[RunAlloc]
    kept: KeptAllocs

    def __post_init__(self) -> None:
        """Add kept allocs, which are desired like tasks."""
        self.run = sorted([*self.run, *self.kept.run], key=lambda task: task.key)
        self.stop += [stop for stop in self.kept.stop if stop.key not in {known.key for known in self.stop}]
        self.allocs = sorted([*self.allocs, *self.kept.allocs], key=lambda alloc: alloc.key)


@dataclass(frozen=True, slots=True)
class _Fence:
    cell: str
    revision: int
    history_id: str
    history_ordinal: int
    epoch: int
    extra: tuple[str, ...]


@dataclass(slots=True)
class _Row:
    machine_id: int
    job_id: int
    index: int
    incarnation: int
    spec_version: int
    limit: list[int]
    ports: list[int]
    phase: str
    health: str
    up: bool
    restarts: int
    address: str
    newest_version: int
    exit: dict[str, Any] | None
    uid: str
    job: str
    tenant: str
    priority: int
    band: str
    latency_sensitive: bool
    devices: list[int]
    alloc: TaskKey | None

    @property
    def key(self) -> TaskKey:
        return TaskKey(self.uid, self.index, self.incarnation)

    @property
    def task_id(self) -> int:
        return task_id(self.job_id, self.index)


def _loaded(
    machine: Machine,
    fence: _Fence,
    wanted: _Wanted,
    expected: dict[TaskKey, ExpectedTask],
    departing: dict[TaskKey, int],
) -> Loaded:
    run, stop, allocs = wanted.run, wanted.stop, wanted.allocs
    for item in machine.quarantined:
        if item.get("release") == "stop" and (key := task_key(item["key"])) not in departing:
            stop.append(StopTask(key, item.get("cause", "quarantine")))
    stop.sort(key=lambda task: task.key)
    generation = hashlib.blake2b(_encoder.encode((run, stop, allocs)), digest_size=12).hexdigest()
    return Loaded(
        machine.id,
        machine.session,
        machine.state == REMOVED,
        machine.state == MachineStatus.DOWN.value,
        Desired(
            history_id=fence.history_id,
            history_ordinal=fence.history_ordinal,
            revision=fence.revision,
            epoch=fence.epoch,
            generation=generation,
            run=run,
            stop=stop,
            allocs=allocs,
        ),
        View(
            fence.history_id,
            generation,
            expected,
            departing,
            frozenset(item["key"] for item in machine.quarantined),
            savers=dict(wanted.kept.savers),
            dropping=dict(wanted.kept.dropping),
            allocs_kept=frozenset(alloc.key for alloc in wanted.kept.allocs),
        ),
        rotation_asked=machine.rotation_asked,
    )


def _expected(row: _Row, job: job_spec.JobSpecification) -> ExpectedTask:
    task = job.task(row.index)
    return ExpectedTask(
        task_id=row.task_id,
        checked=task.health is not None,
        restart_on=task.restart.on,
        max_moves=task.restart.max_moves,
        alloc=job.kind != "job",
        phase=row.phase or Phase.ASSIGNED.value,
        health=row.health or Health.UNKNOWN.value,
        up=row.up,
        restarts=row.restarts,
        exit=exit_mark(row.exit),
        address=row.address,
    )


def _run_task(
    row: _Row,
    job: job_spec.JobSpecification,
    fence: _Fence,
    *,
    newest: job_spec.JobSpecification,
    prod: bool,
    waits_for: list[TaskKey],
    packages: Mapping[str, PackageRef],
) -> RunTask:
    """The `BORG_…` variables are the Borglet's to add: it knows all of them from this.

    `newest`: the job's spec in force, which the task may not follow yet; how names are published is in force at once.
    """
    task = job.task(row.index)
    return RunTask(
        key=row.key,
        name=f"{fence.cell}/{row.tenant}/{row.job}/{row.index}",
        command=task.argv,
        env=task.env,
        limit=as_mapping(row.limit, extra=fence.extra),
        ports=dict(zip(task.ports, row.ports, strict=False)),
        priority=row.priority,
        latency_sensitive=row.latency_sensitive,
        prod=prod,
        spec_version=row.spec_version,
        notice_s=task.notice_s,
        max_processes=task.max_processes,
        health=task.health,
        restart=task.restart.policy(),
        waits_for=waits_for,
        working_dir=task.working_dir,
        user=task.user,
        packages=[packages[text] for text in task.packages if text in packages],
        root=task.root,
        network=task.network,
        slack=task.slack,
        whole_cores=task.whole_cores,
        devices=row.devices,
        alloc=row.alloc,
        leave_s=newest.leave_s(task, ttl_s=settings.BORG_DNS_TTL),
    )


def _run_alloc(row: _Row, fence: _Fence, *, prod: bool) -> RunAlloc:
    return RunAlloc(
        row.key,
        f"{fence.cell}/{row.tenant}/{row.job}/{row.index}",
        as_mapping(row.limit, extra=fence.extra),
        row.priority,
        row.latency_sensitive,
        prod,
    )


def _fence(cell_id: int) -> _Fence:
    name, revision, history_id, ordinal, extra, epoch = query(
        "SELECT c.name, c.revision, c.history_id, c.history_ordinal, c.extra_resources,"
        " coalesce((SELECT max(l.epoch) FROM scheduling_lease AS l WHERE l.cell_id = c.id), 0)"
        " FROM scheduling_cell AS c WHERE c.id = %s",
        [cell_id],
    )[0]
    return _Fence(name, revision, history_id.hex, ordinal, epoch, tuple(extra))


def _prod_bands() -> set[str]:
    return {name for (name,) in query("SELECT name FROM quota_priorityband WHERE prod")}


def _running(ids: list[int]) -> list[_Row]:
    rows = query(
        "SELECT t.machine_id, t.job_id, t.index, t.incarnation, t.spec_version, t.limit, t.ports, t.phase,"
        " t.health, t.up, t.restarts, t.exit::text, j.uid, j.name, o.name, j.priority, j.band,"
        " j.latency_sensitive, t.devices, aj.uid, a.index, a.incarnation, t.address, j.spec_version"
        " FROM scheduling_task AS t"
        " JOIN scheduling_job AS j ON j.id = t.job_id JOIN quota_tenant AS o ON o.id = j.tenant_id"
        " LEFT JOIN (scheduling_task AS a JOIN scheduling_job AS aj ON aj.id = a.job_id) ON a.id = t.alloc_id"
        " WHERE t.machine_id = ANY(%s) AND t.state = 'running'",
        [ids],
    )
    return [
        _Row(
            *row[:11],
            exit=msgspec.json.decode(row[11]) if row[11] else None,
            uid=row[12].hex,  # type: ignore[misc]
            job=row[13],
            tenant=row[14],
            priority=row[15],
            band=row[16],
            latency_sensitive=row[17],
            devices=row[18],
            alloc=TaskKey(row[19].hex, *row[20:22]) if row[19] else None,
            address=row[22],
            newest_version=row[23],
        )
        for row in rows
    ]


def _departures(ids: list[int]) -> list[tuple[int, int, TaskKey, str, float | None, int | None]]:
    rows = query(
        "SELECT d.machine_id, d.task_id, j.uid, t.index, d.incarnation, d.cause, d.notice_s, d.preemptor"
        " FROM scheduling_departure AS d JOIN scheduling_task AS t ON t.id = d.task_id"
        " JOIN scheduling_job AS j ON j.id = t.job_id WHERE d.machine_id = ANY(%s)",
        [ids],
    )
    return [
        (machine_id, identity, TaskKey(uid.hex, index, incarnation), cause, notice_s, preemptor)
        for machine_id, identity, uid, index, incarnation, cause, notice_s, preemptor in rows
    ]


def _stored_specs(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int, Any, dict[str, Any]]]:
    wanted = sorted(pairs)
    rows = JobSpec.objects.filter(
        job_id__in={job_id for job_id, _ in wanted}, version__in={version for _, version in wanted}
    ).values_list("job_id", "version", "spec", "packages")
    return [row for row in rows if (row[0], row[1]) in set(wanted)]


def _packages(job: job_spec.JobSpecification, known: Mapping[str, Any]) -> dict[str, PackageRef]:
    """Return the packages that the tasks of a version name, as pinned when the version was accepted. Without its tag:
    the instructions of a running task may not change while its content is the same."""
    texts = {text for _, _, task in job.segments() for text in task.packages}
    references = {text: package_names.parse(text) for text in texts}
    return {
        text: PackageRef(f"{reference.name}@{reference.digest}", reference.digest, **known[reference.digest])
        for text, reference in references.items()
        if reference.digest in known
    }


def _parse(job_id: int, version: int, stored: Any, extra: Sequence[str]) -> job_spec.JobSpecification | None:
    try:
        return parser.load(stored, extra=extra)
    except Rejected as error:
        log.error("stored spec can't be read", job_id=job_id, version=version, error=error.detail)
        return None
