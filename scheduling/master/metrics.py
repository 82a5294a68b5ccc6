"""Metrics of cells for Prometheus.

`CellCollector` reads some values from the database when Prometheus requests the metrics. Other values, such as the
duration of a pass, are counted by the process that does the work. If `PROMETHEUS_MULTIPROC_DIR` is set, the processes
of a host share these counts, so that `/metrics` also contains the counts of the master.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Mapping

import redis
import structlog
from django.db.models import Count, Sum
from django.utils import timezone
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduling.autoscaling import turns as autoscaling_turns
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.cron import due_runs
from scheduling.maintenance.selectors import overdue_machines
from scheduling.master import queue_health, schedulers, standbys
from scheduling.models import Brake, Cell, Job, Machine, NoticeCount
from scheduling.policy.brake_rules import BrakeKind, BrakeState
from scheduling.secrets.rekeying import key_uses
from scheduling.usage import metering
from scheduling.usage.utilisation import figures_of
from scheduling.workflows import turns

log = structlog.get_logger(__name__)

_OF_SCHEDULER = ["cell", "scheduler"]
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)

passes = Histogram("borg_pass_seconds", "Duration of scheduling passes", _OF_SCHEDULER, buckets=_SECONDS)
commits = Histogram("borg_commit_seconds", "Duration of committing a pass' plan", _OF_SCHEDULER, buckets=_SECONDS)
placements = Counter("borg_placements_total", "Tasks placed", _OF_SCHEDULER)
conflicts = Counter("borg_conflicts_total", "Assignments rejected at commit", _OF_SCHEDULER)
preemptions = Counter("borg_preemptions_total", "Tasks preempted for those placed", _OF_SCHEDULER)
cache_hits = Counter("borg_score_cache_hits_total", "Scores that a pass took from its cache", _OF_SCHEDULER)
cache_misses = Counter("borg_score_cache_misses_total", "Scores that a pass had to compute", _OF_SCHEDULER)
pass_pending = Gauge(
    "borg_pass_pending_tasks", "Pending tasks that the last pass saw", _OF_SCHEDULER, multiprocess_mode="mostrecent"
)
pass_classes = Gauge(
    "borg_pass_classes", "Equivalence classes of the last pass", _OF_SCHEDULER, multiprocess_mode="mostrecent"
)
reservations = Counter(
    "borg_reservations_changed_total", "Reservations raised and lowered (§5.5)", ["cell", "direction"]
)
shortage_evictions = Counter(
    "borg_shortage_evictions_total", "Tasks evicted from machines short of RAM or disk", ["cell"]
)
machine_evictions = Counter(
    "borg_machine_evictions_total",
    "Tasks that machines ended because RAM or disk was short, or asked the master to move",
    ["cell", "reason"],
)


class CellCollector(Collector):
    """Collects the metrics of all cells except study cells. Makes seventeen queries and sends one Redis command, for
    any number of cells and jobs.
    """

    def collect(self) -> Iterator[Metric]:
        cells = {cell.id: cell for cell in Cell.operated.only("name", "revision")}
        revision = GaugeMetricFamily("borg_cell_revision", "Newest revision of the cell's journal", labels=["cell"])
        for cell in cells.values():
            revision.add_metric([cell.name], cell.revision)
        yield revision
        # The counters of jobs, because a scrape must not count the tasks of the whole cell.
        states = ("pending", "running", "dead", "up")
        live = (
            Job.objects.filter(cell__in=cells)
            .exclude(state=JobState.DEAD.value)
            .order_by()
            .values_list("cell_id")
            .annotate(*(Sum(f"tasks_{state}") for state in states))
        )
        counts = {cells[cell_id].name: dict(zip(states, sums, strict=True)) for cell_id, *sums in live}
        tasks = GaugeMetricFamily("borg_tasks", "Tasks of live jobs, by state", labels=["cell", "state"])
        for name, of in counts.items():
            for state in TaskState:
                tasks.add_metric([name, state.value], of[state.value])
        yield tasks
        up = GaugeMetricFamily(
            "borg_tasks_up", "Tasks that run, and are healthy where a check is declared", labels=["cell"]
        )
        for name, of in counts.items():
            up.add_metric([name], of["up"])
        yield up
        machines = GaugeMetricFamily("borg_machines", "Machines, by state", labels=["cell", "state"])
        for row in Machine.objects.filter(cell__in=cells).order_by().values("cell_id", "state").annotate(n=Count("id")):
            machines.add_metric([cells[row["cell_id"]].name, row["state"]], row["n"])
        yield machines
        yield _notices(cells)
        yield from _brakes(cells)
        yield _maintenance(cells)
        yield from self._utilisation(cells)
        yield from _queues(cells)
        missing = GaugeMetricFamily(
            "borg_schedulers_missing", "Schedulers that the cell should have and that do not run", labels=["cell"]
        )
        nobody = Counts(cell for cell, _ in schedulers.unheld())
        for cell in cells.values():
            missing.add_metric([cell.name], nobody[cell.name])
        yield missing
        yield _standbys()
        unmetered = GaugeMetricFamily(
            "borg_metering_lag_seconds", "Time since the end of the last hour whose usage was metered", labels=["cell"]
        )
        for name, seconds in metering.lag_s(now=timezone.now()).items():
            unmetered.add_metric([name], seconds)
        yield unmetered
        yield _cron(cells)
        yield _workflows(cells)
        yield from _autoscaler(cells)
        yield _unreadable_secrets()

    def _utilisation(self, cells: dict[int, Cell]) -> Iterator[GaugeMetricFamily]:
        """Yield the utilisation of cells, from the newest figures in Redis (`scheduling.usage.utilisation`). Yield
        nothing if Redis cannot be reached.
        """
        sums = GaugeMetricFamily(
            "borg_cell_resources",
            "Capacity of machines that are up; limits, reservations and usage of running tasks (§5.5)",
            labels=["cell", "resource", "what"],
        )
        measured = GaugeMetricFamily("borg_tasks_measured", "Running tasks with fresh usage", labels=["cell"])
        short = GaugeMetricFamily("borg_machines_short", "Machines short of RAM or disk", labels=["cell"])
        try:
            found = figures_of(cells)
        except redis.RedisError as error:
            log.warning("utilisation unknown", error=str(error))
            found = {}
        for cell_id, figures in found.items():
            cell = cells[cell_id].name
            for what in ("capacity", "limit", "reservation", "usage"):
                for resource, amount in getattr(figures, what).items():
                    sums.add_metric([cell, resource, what], amount)
            measured.add_metric([cell], figures.measured)
            short.add_metric([cell], figures.short)
        yield from (sums, measured, short)


def _notices(cells: Mapping[int, Cell]) -> CounterMetricFamily:
    given = CounterMetricFamily(
        "borg_notices",
        "Tasks that the system stopped, by how much of the time between SIGTERM and SIGKILL they got (§2.3)",
        labels=["cell", "cause", "delivered"],
    )
    rows = NoticeCount.objects.order_by().values("cell_id", "cause", "delivered").annotate(n=Sum("number"))
    for row in rows:
        given.add_metric([cells[row["cell_id"]].name, row["cause"], row["delivered"]], row["n"])
    return given


def _cron(cells: Mapping[int, Cell]) -> GaugeMetricFamily:
    lag = GaugeMetricFamily(
        "borg_cron_lag_seconds",
        "Delay of the oldest run of a cron job that is due, but not submitted yet; 0 if none is late",
        labels=["cell"],
    )
    overdue = due_runs.lag_s()
    for cell in cells.values():
        lag.add_metric([cell.name], overdue.get(cell.id, 0.0))
    return lag


def _workflows(cells: Mapping[int, Cell]) -> GaugeMetricFamily:
    lag = GaugeMetricFamily(
        "borg_workflow_lag_seconds",
        "Seconds since a process last advanced the live workflows of the cell; 0 if it has none",
        labels=["cell"],
    )
    overdue = turns.lag_s()
    for cell in cells.values():
        lag.add_metric([cell.name], overdue.get(cell.id, 0.0))
    return lag


def _autoscaler(cells: Mapping[int, Cell]) -> Iterator[GaugeMetricFamily]:
    lag = GaugeMetricFamily(
        "borg_autoscaler_lag_seconds",
        "Seconds since the last turn of the autoscaler that ended without an error; 0 if the cell has no job to scale",
        labels=["cell"],
    )
    limited = GaugeMetricFamily(
        "borg_autoscaler_limited_jobs", "Jobs of which a change by the autoscaler is rejected", labels=["cell"]
    )
    overdue, rejected = autoscaling_turns.lag_s(), autoscaling_turns.limited_jobs()
    for cell in cells.values():
        lag.add_metric([cell.name], overdue.get(cell.id, 0.0))
        limited.add_metric([cell.name], rejected.get(cell.id, 0))
    yield lag
    yield limited


def _unreadable_secrets() -> GaugeMetricFamily:
    numbers = GaugeMetricFamily(
        "borg_secret_values_unreadable", "Values of secrets whose key this process does not have"
    )
    numbers.add_metric([], sum(use.rows for use in key_uses() if not use.held))
    return numbers


def _standbys() -> GaugeMetricFamily:
    labels = ["cell", "scheduler"]
    numbers = GaugeMetricFamily("borg_master_standbys", "Standby masters that follow the cell (§3.1)", labels=labels)
    present = standbys.present()
    for cell_id, name, scheduler in schedulers.wanted_of_all():
        numbers.add_metric([name, scheduler.name], len(present.get((cell_id, scheduler.name), [])))
    return numbers


def _brakes(cells: Mapping[int, Cell]) -> Iterator[GaugeMetricFamily]:
    """Yield metrics of the brakes that wait for a decision of an SRE. A brake limits how many tasks a cell stops or
    moves by itself (`scheduling.policy.brake_rules`).
    """
    labels = ["cell", "brake"]
    held = GaugeMetricFamily(
        "borg_brake_held", "1 while a brake (lost, stops) holds tasks back until an SRE decides", labels=labels
    )
    waiting = GaugeMetricFamily("borg_brake_tasks", "Tasks that the brake holds back", labels=labels)
    known = {(brake.cell_id, brake.kind): brake for brake in Brake.objects.all()}
    for cell in cells.values():
        for kind in BrakeKind:
            brake = known.get((cell.id, kind.value))
            held.add_metric([cell.name, kind.value], int(brake is not None and brake.state == BrakeState.HELD.value))
            waiting.add_metric([cell.name, kind.value], brake.wanted if brake is not None else 0)
    yield from (held, waiting)


def _maintenance(cells: Mapping[int, Cell]) -> GaugeMetricFamily:
    """Return the number of machines that should be empty for maintenance and are not, per cell."""
    late = GaugeMetricFamily(
        "borg_maintenance_late_machines",
        "Machines that are not empty although their maintenance window has started",
        labels=["cell"],
    )
    found = overdue_machines()
    for cell in cells.values():
        late.add_metric([cell.name], found.get(cell.id, 0))
    return late


def _queues(cells: Mapping[int, Cell]) -> Iterator[GaugeMetricFamily]:
    labels = ["cell", "band", "priority"]
    tasks = GaugeMetricFamily("borg_pending_tasks", "Pending tasks, by priority", labels=labels)
    oldest = GaugeMetricFamily(
        "borg_oldest_pending_seconds", "How long the oldest pending task has waited", labels=labels
    )
    for queue in queue_health.queues():
        if queue.cell_id not in cells:
            continue
        of = [cells[queue.cell_id].name, queue.band, str(queue.priority)]
        tasks.add_metric(of, queue.tasks)
        oldest.add_metric(of, queue.oldest_s)
    yield tasks
    yield oldest
