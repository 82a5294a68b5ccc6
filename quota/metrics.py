"""Metrics of the market for Prometheus. Each scrape reads them from the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from django.db.models import Count, QuerySet, Sum
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quota import clock
from quota.admission.published_capacity import sold_at
from quota.models import Account, CellCapacity, NoticeDelivery, Order, OrderState, PromiseBreach, Shortfall
from quota.models.credits import EVICTIONS, PENDING
from quota.vocabulary.resources import NAMES


class MarketCollector(Collector):
    """The metrics of the market. Each scrape makes seven queries. Values of zero are reported too."""

    def collect(self) -> Iterator[Metric]:
        capacity = {row.cell: row.capacity for row in CellCapacity.objects.all()}
        yield _sold(capacity)
        yield _counts(
            GaugeMetricFamily(
                "borg_quota_shortfalls",
                "Open shortfalls: periods in which more prod quota is sold than the cell has",
                labels=["cell"],
            ),
            Shortfall.objects.filter(closed_at__isnull=True),
            by="cell",
            known=capacity,
        )
        yield _counts(
            GaugeMetricFamily("borg_orders_waiting", "Pending orders, which wait for a decision", labels=["approver"]),
            Order.objects.filter(state=OrderState.PENDING.value),
            by="approver",
            known=("owner", "sre"),
        )
        yield _counts(
            GaugeMetricFamily(
                "borg_notice_deliveries", "Deliveries of notices that are waiting or have failed", labels=["state"]
            ),
            NoticeDelivery.objects.exclude(state="sent"),
            by="state",
            known=("failed", "waiting"),
        )
        yield _breaches(capacity)
        yield GaugeMetricFamily(
            "borg_ledger_imbalance_microcredits",
            "Sum of all accounts, in micro-credits; anything but 0 is an error",
            value=Account.objects.aggregate(total=Sum("balance", default=0))["total"],
        )


def _sold(capacity: dict[str, list[int]]) -> GaugeMetricFamily:
    share = GaugeMetricFamily(
        "borg_quota_sold_share",
        "Quota sold at a band now, as a share of the cell's capacity of each resource",
        labels=["cell", "band", "resource"],
    )
    for one in sold_at(clock.now()):
        for name, sold, has in zip(NAMES, one.sold, capacity.get(one.cell, ()), strict=False):
            if has:
                share.add_metric([one.cell, one.band, name], sold / has)
    return share


def _breaches(cells: Iterable[str]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        "borg_promise_breaches",
        "Hours in which a cell broke its promise to a job, and for which no invoice has a credit yet",
        labels=["cell", "kind"],
    )
    rows = PromiseBreach.objects.filter(settled_at=None).order_by().values_list("cell", "kind")
    found = {(cell, kind): number for cell, kind, number in rows.annotate(n=Count("id"))}
    for cell, kind in sorted({*found, *product(cells, (PENDING, EVICTIONS))}):
        gauge.add_metric([cell, kind], found.get((cell, kind), 0))
    return gauge


def _counts(gauge: GaugeMetricFamily, rows: QuerySet[Any], *, by: str, known: Iterable[str]) -> GaugeMetricFamily:
    """Add to `gauge` the number of rows for each value of the column `by`. A value in `known` without rows gets 0."""
    found = dict(rows.order_by().values_list(by).annotate(n=Count("id")))
    for value in sorted({*known, *found}):
        gauge.add_metric([value], found.get(value, 0))
    return gauge
