"""Metrics of the statistics for Prometheus. They are read from the totals in the database, not from the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduling.history.statistics.tallies import BOUNDS_S, Figure
from scheduling.journal.sql import query

_BANDS = {True: "prod", False: "non-prod"}
# The package figures have a label per package, so only their number and sum are metrics.
_FIGURES = [figure.value for figure in Figure if figure not in (Figure.PACKAGE_INSTALL, Figure.PACKAGE_TOTAL)]


class StatisticsCollector(Collector):
    """Collects the statistics of all cells except study cells. Makes two queries, which read a few rows per cell."""

    def collect(self) -> Iterator[Metric]:
        evictions = CounterMetricFamily(
            "borg_task_evictions", "Evictions of tasks, by cause (Figure 3)", labels=["cell", "priority", "cause"]
        )
        running = CounterMetricFamily(
            "borg_task_running_seconds", "Time that tasks were running, summed over tasks", labels=["cell", "priority"]
        )
        pending = CounterMetricFamily(
            "borg_task_pending_seconds",
            "Time that tasks were pending, summed over tasks, by the main reason",
            labels=["cell", "priority", "reason"],
        )
        starts = HistogramMetricFamily(
            "borg_task_start_seconds",
            "Time from submission to running, by part: queue, install, start, total",
            labels=["cell", "priority", "part"],
        )
        delays = HistogramMetricFamily(
            "borg_scheduler_delay_seconds",
            "Time that tasks waited for their first placement, or for a later one (again)",
            labels=["cell", "priority", "placement"],
        )
        for cell, figure, prod, label, number, total, buckets in query(
            "SELECT c.name, t.figure, t.prod, t.label, t.number, t.total, t.buckets"
            " FROM scheduling_journaltally AS t JOIN scheduling_cell AS c ON c.id = t.cell_id"
            " WHERE t.hour = to_timestamp(0) AND t.figure = ANY(%s) AND c.study_of IS NULL AND c.deleted_at IS NULL"
            " ORDER BY 1, 2, 3, 4",
            [_FIGURES],
        ):
            labels = [cell, _BANDS[prod]]
            match figure:
                case Figure.EVICTIONS:
                    evictions.add_metric([*labels, label], number)
                case Figure.RUNNING:
                    running.add_metric(labels, total)
                case Figure.PENDING:
                    pending.add_metric([*labels, label], total)
                case Figure.START:
                    starts.add_metric([*labels, label], _cumulative(buckets), total)
                case Figure.DELAY:
                    delays.add_metric([*labels, label], _cumulative(buckets), total)
        yield from (evictions, running, pending, starts, delays)
        behind = GaugeMetricFamily(
            "borg_statistics_behind_revisions", "Revisions that the statistics have not read yet", labels=["cell"]
        )
        for cell, revisions in query(
            "SELECT c.name, c.revision - coalesce(r.revision, 0) FROM scheduling_cell AS c"
            " LEFT JOIN scheduling_statisticsreader AS r ON r.cell_id = c.id WHERE c.study_of IS NULL"
            " AND c.deleted_at IS NULL ORDER BY 1"
        ):
            behind.add_metric([cell], revisions)
        yield behind


def _cumulative(buckets: Sequence[int]) -> list[tuple[str, float]]:
    """Return (upper bound, number of values up to it) for each bucket, as Prometheus needs them."""
    result, number = [], 0
    for bound, found in zip([*map(str, BOUNDS_S), "+Inf"], buckets, strict=True):
        number += found
        result.append((bound, float(number)))
    return result
