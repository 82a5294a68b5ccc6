"""Figures for Prometheus. Counts come from the rows at scrape time, so that any web process can answer."""

from __future__ import annotations

from django.db.models import Count
from prometheus_client import Counter, Gauge, Histogram

from scheduling.models import Cell, Machine, Task

tasks = Gauge("borg_tasks", "Tasks of live jobs, by state", ["cell", "state"])
tasks_up = Gauge("borg_tasks_up", "Tasks that run, and are healthy where a check is declared", ["cell"])
machines = Gauge("borg_machines", "Machines, by state", ["cell", "state"])
revision = Gauge("borg_cell_revision", "Newest revision of the cell's journal", ["cell"])
passes = Histogram(
    "borg_pass_seconds", "Duration of scheduling passes", ["cell"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)  # fmt: skip
placements = Counter("borg_placements_total", "Tasks placed", ["cell"])
conflicts = Counter("borg_conflicts_total", "Assignments refused at commit", ["cell"])


def collect_cells() -> None:
    """Refresh the gauges of all cells: four queries, whatever the number of rows."""
    names = dict(Cell.objects.values_list("id", "name"))
    for gauge in (tasks, tasks_up, machines):
        gauge.clear()
    for cell_id, count in Cell.objects.values_list("id", "revision"):
        revision.labels(names[cell_id]).set(count)
    live = Task.objects.exclude(job__state="dead").values("cell_id")
    for row in live.values("cell_id", "state").annotate(n=Count("id")).order_by():
        tasks.labels(names[row["cell_id"]], row["state"]).set(row["n"])
    for row in live.filter(up=True).values("cell_id").annotate(n=Count("id")).order_by():
        tasks_up.labels(names[row["cell_id"]]).set(row["n"])
    for row in Machine.objects.values("cell_id", "state").annotate(n=Count("id")).order_by():
        machines.labels(names[row["cell_id"]], row["state"]).set(row["n"])
