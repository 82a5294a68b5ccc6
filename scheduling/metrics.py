"""Figures for Prometheus.

What rows can tell is read from them at scrape time, by whichever web process answers (`CellCollector`). What only
a process knows – how long a pass took – it counts itself; with `PROMETHEUS_MULTIPROC_DIR` the processes of a
host share these figures, so that `/metrics` shows the master's too.
"""

from __future__ import annotations

from collections.abc import Iterator

import redis
import structlog
from django.db.models import Count
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduling.models import Cell, Machine, Task
from scheduling.utilisation import figures_of

log = structlog.get_logger(__name__)

passes = Histogram(
    "borg_pass_seconds", "Duration of scheduling passes", ["cell"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)  # fmt: skip
commits = Histogram(
    "borg_commit_seconds", "Duration of committing a pass' plan", ["cell"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)  # fmt: skip
placements = Counter("borg_placements_total", "Tasks placed", ["cell"])
conflicts = Counter("borg_conflicts_total", "Assignments refused at commit", ["cell"])
reservations = Counter(
    "borg_reservations_changed_total", "Reservations raised and lowered (§5.5)", ["cell", "direction"]
)
shortage_evictions = Counter(
    "borg_shortage_evictions_total", "Tasks evicted from machines short of RAM or disk", ["cell"]
)


class CellCollector(Collector):
    """Gauges of all cells: four queries and one reply of Redis, whatever the number of rows."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        cells = {cell.id: cell for cell in Cell.objects.only("name", "revision")}
        revision = GaugeMetricFamily(
            "borg_cell_revision", "Newest revision of the cell's journal", labels=["cell"]
        )
        for cell in cells.values():
            revision.add_metric([cell.name], cell.revision)
        yield revision
        live = Task.objects.exclude(job__state="dead").order_by()
        tasks = GaugeMetricFamily("borg_tasks", "Tasks of live jobs, by state", labels=["cell", "state"])
        for row in live.values("cell_id", "state").annotate(n=Count("id")):
            tasks.add_metric([cells[row["cell_id"]].name, row["state"]], row["n"])
        yield tasks
        up = GaugeMetricFamily(
            "borg_tasks_up", "Tasks that run, and are healthy where a check is declared", labels=["cell"]
        )
        for row in live.filter(up=True).values("cell_id").annotate(n=Count("id")):
            up.add_metric([cells[row["cell_id"]].name], row["n"])
        yield up
        machines = GaugeMetricFamily("borg_machines", "Machines, by state", labels=["cell", "state"])
        for row in Machine.objects.order_by().values("cell_id", "state").annotate(n=Count("id")):
            machines.add_metric([cells[row["cell_id"]].name, row["state"]], row["n"])
        yield machines
        yield from self._utilisation(cells)

    def _utilisation(self, cells: dict[int, Cell]) -> Iterator[GaugeMetricFamily]:
        """Of the newest looks of reclamation; without Redis there are none."""
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
