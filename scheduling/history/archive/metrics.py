"""Metrics of the archive for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Sum
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduling.history.archive import ended_jobs, metered
from scheduling.history.archive.retention import TABLES, lag_s
from scheduling.history.archive.store import METERED
from scheduling.models import ArchiveFile, ArchiveState, Cell


class ArchiveCollector(Collector):
    """Collects the metrics of the archive. Makes two queries, and seven for each cell."""

    def collect(self) -> Iterator[Metric]:
        labels = ["cell", "table"]
        lag = GaugeMetricFamily(
            "borg_archive_lag_seconds", "How long the oldest rows that are not archived have been due", labels=labels
        )
        unsettled = GaugeMetricFamily(
            "borg_archive_unsettled_age_seconds",
            "Age of the oldest metered hour that is due, but is not charged or not on a closed invoice",
            labels=["cell"],
        )
        rows = GaugeMetricFamily("borg_archive_rows", "Rows in the archive", labels=labels)
        size = GaugeMetricFamily("borg_archive_bytes", "Bytes of the files of the archive", labels=labels)
        cells = {cell.id: cell for cell in Cell.with_history.order_by("id")}
        now = timezone.now()
        for cell in cells.values():
            for table in TABLES:
                lag.add_metric([cell.name, table], lag_s(cell, table, now=now))
            lag.add_metric([cell.name, ended_jobs.ENDED], ended_jobs.lag_s(cell, now=now))
            lag.add_metric([cell.name, METERED], metered.lag_s(cell, now=now))
            unsettled.add_metric([cell.name], metered.unsettled_age_s(cell, now=now))
        files = ArchiveFile.objects.exclude(state=ArchiveState.DELETED).order_by()
        for row in files.values("cell_id", "table").annotate(rows=Sum("rows"), bytes=Sum("bytes")):
            of = [cells[row["cell_id"]].name, row["table"]]
            rows.add_metric(of, row["rows"])
            size.add_metric(of, row["bytes"])
        yield from (lag, unsettled, rows, size)
