"""Read from the database what many machines should run and stop. One snapshot is read with at most twelve queries.

    tasks running there ─┐                              ┌─► Desired ─► the Borglet
    tasks to stop there ─┼─ load(cell, machine ids) ─► Loaded
    quarantine released ─┘                              └─► View ─► compared with reports (`views.report_changes`)

Without a snapshot, a task that is just being stopped could be missing in both lists, `run` and `stop`.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Max

from borglet.messages import CONFIG, Desired, Health, PackageRef, Phase, RunAlloc, RunTask, SecretRef, StopTask, TaskKey
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import as_mapping
from scheduling.config_files import known_files, spec_uses
from scheduling.config_files.known_files import FileName, KnownFile
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.journal.sql import execute, query
from scheduling.link.views import kept_allocs
from scheduling.link.views.kept_allocs import MachineTasks, task_key
from scheduling.link.views.machine_cpu import PLAIN, MachineCpu, machine_cpu
from scheduling.link.views.report_changes import ExpectedTask, View, exit_mark
from scheduling.models import Cell, JobSpec, KeptAlloc, Machine
from scheduling.models.machines import REMOVED
from scheduling.secrets import known_secrets, spec_rules
from scheduling.secrets.known_secrets import KnownSecret, SecretName
from scheduling.spec import job_spec, package_names, parser
from scheduling.spec.task_spec import TaskSpec

log = structlog.get_logger(__name__)

_MAX_SPECS = 2_000
_MAX_INSTRUCTIONS = 4 * _MAX_SPECS
_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class Loaded:
    """The state of one machine, read from the database. `removed`: the machine is no longer in the cell. `down`: the
    machine is marked as down.
    """

    machine_id: int
    session: int
    removed: bool
    down: bool
    desired: Desired
    view: View
    rotation_asked: bool = False
    cpu: MachineCpu = PLAIN


class Specs:
    """A cache of parsed specs by (job id, version).

    `packages`: for each spec with packages, the packages by their reference in the spec (such as `web@v2`).
    `instructions`: a cache of instructions for tasks; equal tasks of a job share one instruction.
    """

    def __init__(self, most: int = _MAX_SPECS) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, int], job_spec.JobSpecification | None] = OrderedDict()
        self.packages: dict[tuple[int, int], dict[str, PackageRef]] = {}
        self.instructions: dict[tuple[Any, ...], tuple[TaskSpec, RunTask]] = {}

    def get(
        self, wanted: Iterable[tuple[int, int]], *, extra: Sequence[str]
    ) -> dict[Any, job_spec.JobSpecification | None]:
        """Return specs by (job id, version). A spec that cannot be read is None. Makes at most one query."""
        wanted = set(wanted)
        found: dict[tuple[int, int], job_spec.JobSpecification | None] = {}
        for pair in wanted & self._known.keys():
            found[pair] = self._known[pair]
            self._known.move_to_end(pair)
        missing = wanted - found.keys()
        if missing:
            rows = JobSpec.objects.filter(job_id__in={job for job, _ in missing}, version__in={v for _, v in missing})
            for job_id, version, stored, packages in rows.values_list("job_id", "version", "spec", "packages"):
                if (job_id, version) not in missing:
                    continue
                read = found[job_id, version] = self._known[job_id, version] = _parse(job_id, version, stored, extra)
                if packages and read is not None:
                    self.packages[job_id, version] = _packages(read, packages)
            while len(self._known) > self._most:
                self.packages.pop(self._known.popitem(last=False)[0], None)
        return found


def load(cell_id: int, machine_ids: Iterable[int], specs: Specs) -> dict[int, Loaded]:
    """Return the stored state of each machine, by machine id. Makes at most twelve queries for any number of
    machines.
    """
    ids = sorted(machine_ids)
    with transaction.atomic():
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cell = Cell.objects.annotate(epoch=Max("leases__epoch")).get(pk=cell_id)
        columns = ("id", "session", "state", "quarantined", "rotation_asked", "cpu_factor")
        machines = list(Machine.objects.filter(pk__in=ids).only(*columns))
        prod = {name for (name,) in query("SELECT name FROM quota_priorityband WHERE prod")}
        running = _running(ids)
        departures = _departures(ids)
        kept_rows = list(KeptAlloc.objects.filter(machine_id__in=ids).order_by("id"))
        wanted = {(row.job_id, row.spec_version) for row in running} | kept_allocs.specs_of(kept_rows)
        wanted |= {(row.job_id, row.job.newest_version) for row in running}
        known = specs.get(wanted, extra=cell.extra_resources)
        secrets = known_secrets.read_known(_names(running, known, "secrets"))
        configs = known_files.read_known(_names(running, known, "configs"))
    found = {machine.id: MachineTasks(View(cell.history_id.hex, "")) for machine in machines}
    waits: dict[tuple[int, int], list[TaskKey]] = defaultdict(list)
    for machine_id, task, uid, index, incarnation, cause, notice_s, preemptor in departures:
        key = TaskKey(uid.hex, index, incarnation)
        found[machine_id].stop.append(StopTask(key, cause, notice_s))
        found[machine_id].view.stop[key] = task
        if preemptor is not None:
            waits[machine_id, preemptor].append(key)
    kept_allocs.add_kept(found, kept_rows, known, cell=cell.name, extra=cell.extra_resources)
    for row in running:
        job = known.get((row.job_id, row.spec_version))
        if job is None or row.index >= job.tasks:
            log.error("a task without a usable spec is not started", job_id=row.job_id, version=row.spec_version)
            continue
        here = found[row.machine_id]
        here.view.run[row.key] = _expected(row, job)
        if job.kind != "job":
            here.allocs.append(_run_alloc(row, cell, prod=row.job.band in prod))
            continue
        here.run.append(
            _run_task(
                row,
                job,
                cell,
                newest=known.get((row.job_id, row.job.newest_version)) or job,
                prod=row.job.band in prod,
                waits_for=sorted(waits.get((row.machine_id, row.task_id), [])),
                specs=specs,
                secrets=secrets,
                configs=configs,
            )
        )
    return {machine.id: _loaded(machine, cell, cell.epoch or 0, found[machine.id]) for machine in machines}


class _Job(NamedTuple):
    """The columns of a job from which the instructions for its tasks are made."""

    uid: str  # 32 hex digits
    name: str
    tenant: str
    priority: int
    band: str
    latency_sensitive: bool
    newest_version: int


@dataclass(slots=True)
class _Row:
    """A running task and its job, as one row of a database query."""

    key: TaskKey
    job: _Job
    alloc: TaskKey | None
    machine_id: int
    job_id: int
    index: int
    incarnation: int
    spec_version: int
    limit: str  # numbers with commas
    ports: str
    phase: str
    health: str
    up: bool
    restarts: int
    exit: str | None  # JSON
    address: str
    devices: str

    @property
    def task_id(self) -> int:
        return task_id(self.job_id, self.index)


def _loaded(machine: Machine, cell: Cell, epoch: int, here: MachineTasks) -> Loaded:
    run, stop, allocs, view = here.run, here.stop, here.allocs, here.view
    cpu = machine_cpu(machine.cpu_factor, [*run, *allocs], lambda key: view.run[key].task_id)
    if cpu is not PLAIN:
        run, allocs = [cpu.limited(task) for task in run], [cpu.limited(alloc) for alloc in allocs]
    for item in machine.quarantined:
        if item.get("release") == "stop" and (key := task_key(item["key"])) not in view.stop:
            stop.append(StopTask(key, item.get("cause", "quarantine")))
    run.sort(key=lambda task: task.key)
    stop.sort(key=lambda task: task.key)
    allocs.sort(key=lambda alloc: alloc.key)
    view.generation = hashlib.blake2b(_encoder.encode((run, stop, allocs)), digest_size=12).hexdigest()
    view.quarantine = frozenset(item["key"] for item in machine.quarantined)
    desired = Desired(
        history_id=cell.history_id.hex,
        history_ordinal=cell.history_ordinal,
        revision=cell.revision,
        epoch=epoch,
        generation=view.generation,
        run=run,
        stop=stop,
        allocs=allocs,
    )
    return Loaded(
        machine.id,
        machine.session,
        removed=machine.state == REMOVED,
        down=machine.state == MachineStatus.DOWN.value,
        desired=desired,
        view=view,
        rotation_asked=machine.rotation_asked,
        cpu=cpu,
    )


def _expected(row: _Row, job: job_spec.JobSpecification) -> ExpectedTask:
    task = job.task(row.index)
    return ExpectedTask(
        task_id=row.task_id,
        checked=task.health is not None,
        restart_on=task.restart.on,
        max_moves=task.restart.max_moves,
        alloc=job.kind != "job",
        phase=sys.intern(row.phase) or Phase.ASSIGNED.value,
        health=sys.intern(row.health) or Health.UNKNOWN.value,
        up=row.up,
        restarts=row.restarts,
        exit=exit_mark(msgspec.json.decode(row.exit) if row.exit else None),
        address=row.address,
    )


def _run_task(
    row: _Row,
    job: job_spec.JobSpecification,
    cell: Cell,
    *,
    newest: job_spec.JobSpecification,
    prod: bool,
    waits_for: list[TaskKey],
    specs: Specs,
    secrets: Mapping[SecretName, KnownSecret],
    configs: Mapping[FileName, KnownFile],
) -> RunTask:
    """Return the instruction with which a Borglet runs a task.

    `job`: the version of the spec that the task runs. `newest`: the newest version of the spec. Its rules for
    publishing names apply to all tasks of the job.
    """
    task = job.task(row.index)
    # The entry contains the spec of the task, so that no other spec gets its id.
    alike = (row.job, row.spec_version, id(task), row.limit, prod, cell.name, *cell.extra_resources)
    found = specs.instructions.get(alike)
    if found is None:
        if len(specs.instructions) >= _MAX_INSTRUCTIONS:
            specs.instructions.clear()
        packages = specs.packages.get((row.job_id, row.spec_version), {})
        made = _instruction(row, task, cell, newest=newest, prod=prod, packages=packages)
        found = specs.instructions[alike] = task, made
    return msgspec.structs.replace(
        found[1],
        key=row.key,
        name=f"{cell.name}/{row.job.tenant}/{row.job.name}/{row.index}",
        ports=dict(zip(task.ports, _numbers(row.ports), strict=False)),
        waits_for=waits_for,
        devices=_numbers(row.devices),
        alloc=row.alloc,
        secrets=_secret_refs(row, task, cell, secrets, configs) if task.secrets or task.configs else [],
    )


def _names(
    running: Iterable[_Row], known: Mapping[Any, job_spec.JobSpecification | None], field: str
) -> set[tuple[str, str]]:
    """Return the secrets that running tasks use, or the config files, as (tenant, name). `field`: secrets or
    configs.
    """
    uses_any = spec_rules.uses_any if field == "secrets" else spec_uses.uses_any
    used: set[tuple[str, str]] = set()
    for row in running:
        job = known.get((row.job_id, row.spec_version))
        if job is not None and uses_any(job) and row.index < job.tasks:
            used |= {(row.job.tenant, use.name) for use in getattr(job.task(row.index), field)}
    return used


def _secret_refs(
    row: _Row,
    task: TaskSpec,
    cell: Cell,
    secrets: Mapping[SecretName, KnownSecret],
    configs: Mapping[FileName, KnownFile],
) -> list[SecretRef]:
    """Return the secrets and config files of a task with the versions that it should have now, without values."""
    refs = []
    for use in task.secrets:
        secret = secrets.get((row.job.tenant, use.name))
        version = secret.version_for(use, row.job.name, cell.name) if secret is not None else 0
        refs.append(SecretRef(use.name, version, use.file, use.env))
    for config in task.configs:
        known = configs.get((row.job.tenant, config.name))
        version = known.version_for(config) if known is not None else 0
        refs.append(SecretRef(config.name, version, config.path, kind=CONFIG, on_change=config.on_change))
    return refs


def _instruction(
    row: _Row,
    task: TaskSpec,
    cell: Cell,
    *,
    newest: job_spec.JobSpecification,
    prod: bool,
    packages: Mapping[str, PackageRef],
) -> RunTask:
    """Return an instruction to run a task. It contains only the values that equal tasks of a job have in common."""
    return RunTask(
        key=row.key,
        name="",
        command=task.argv,
        env=task.env,
        limit=as_mapping(_numbers(row.limit), extra=cell.extra_resources),
        ports={},
        priority=row.job.priority,
        latency_sensitive=row.job.latency_sensitive,
        prod=prod,
        spec_version=row.spec_version,
        notice_s=task.notice_s,
        max_processes=task.max_processes,
        health=task.health,
        restart=task.restart.policy(),
        working_dir=task.working_dir,
        user=task.user,
        packages=[packages[text] for text in task.packages if text in packages],
        root=task.root,
        network=task.network,
        slack=task.slack,
        whole_cores=task.whole_cores,
        leave_s=newest.leave_s(task, ttl_s=settings.BORG_DNS_TTL),
        max_run_s=task.max_run_s,
        locks=list(task.locks),
    )


def _run_alloc(row: _Row, cell: Cell, *, prod: bool) -> RunAlloc:
    return RunAlloc(
        row.key,
        f"{cell.name}/{row.job.tenant}/{row.job.name}/{row.index}",
        as_mapping(_numbers(row.limit), extra=cell.extra_resources),
        row.job.priority,
        row.job.latency_sensitive,
        prod,
    )


def _running(ids: list[int]) -> list[_Row]:
    """Return the tasks that should run on these machines."""
    rows = query(
        "SELECT t.alloc_id, t.machine_id, t.job_id, t.index, t.incarnation, t.spec_version,"
        " array_to_string(t.limit, ','), array_to_string(t.ports, ','), t.phase, t.health, t.up, t.restarts,"
        " t.exit::text, t.address, array_to_string(t.devices, ',') FROM scheduling_task AS t"
        " WHERE t.machine_id = ANY(%s) AND t.state = 'running'",
        [ids],
    )
    jobs = _jobs({row[2] for row in rows})
    allocs = _alloc_keys({row[0] for row in rows} - {None})
    return [_Row(TaskKey((job := jobs[row[2]]).uid, row[3], row[4]), job, allocs.get(row[0]), *row[1:]) for row in rows]


def _jobs(ids: Collection[int]) -> dict[int, _Job]:
    rows = query(
        "SELECT j.id, j.uid, j.name, o.name, j.priority, j.band, j.latency_sensitive, j.spec_version"
        " FROM scheduling_job AS j JOIN quota_tenant AS o ON o.id = j.tenant_id WHERE j.id = ANY(%s)",
        [list(ids)],
    )
    return {job_id: _Job(sys.intern(uid.hex), *rest) for job_id, uid, *rest in rows}


def _alloc_keys(ids: Collection[int]) -> dict[int, TaskKey]:
    """Return the keys of allocs, by the ids in `ids`. Makes no query if `ids` is empty."""
    if not ids:
        return {}
    rows = query(
        "SELECT a.id, j.uid, a.index, a.incarnation FROM scheduling_task AS a"
        " JOIN scheduling_job AS j ON j.id = a.job_id WHERE a.id = ANY(%s)",
        [list(ids)],
    )
    return {alloc_id: TaskKey(uid.hex, index, incarnation) for alloc_id, uid, index, incarnation in rows}


def _numbers(text: str) -> list[int]:
    """Return the numbers in a text such as `5,7`."""
    return [int(number) for number in text.split(",")] if text else []


def _departures(ids: list[int]) -> list[tuple[Any, ...]]:
    return query(
        "SELECT d.machine_id, d.task_id, j.uid, t.index, d.incarnation, d.cause, d.notice_s, d.preemptor"
        " FROM scheduling_departure AS d JOIN scheduling_task AS t ON t.id = d.task_id"
        " JOIN scheduling_job AS j ON j.id = t.job_id WHERE d.machine_id = ANY(%s)",
        [ids],
    )


def _packages(job: job_spec.JobSpecification, known: Mapping[str, Any]) -> dict[str, PackageRef]:
    """Return the packages in a spec, by the text with which the spec lists them. `known`: by digest, the size and
    format of each package.

    The returned names contain no tags, so a moved tag does not change the instructions of a running task.
    """
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
        log.error("cannot read a stored spec", job_id=job_id, version=version, error=error.detail)
        return None
