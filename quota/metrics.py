"""Figures of the market for Prometheus, read from rows at scrape time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Count, Sum
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quota import clock
from quota.admission.sold import sold_at
from quota.models import Account, CellCapacity, NoticeDelivery, Order, OrderState, Shortfall
from quota.vocabulary.resources import NAMES


class MarketCollector(Collector):
    """Six queries, whatever the number of rows. What should be 0 is shown as 0, so that alerts can be tried out."""

    def collect(self) -> Iterator[Metric]:
        capacity = {row.cell: row.capacity for row in CellCapacity.objects.all()}
        yield _sold(capacity)
        short = GaugeMetricFamily(
            "borg_quota_shortfalls",
            "Shortfalls that are open: times at which more prod quota is sold than the cell has",
            labels=["cell"],
        )
        found = dict(_counted(Shortfall.objects.filter(closed_at__isnull=True), "cell"))
        for cell in sorted({*capacity, *found}):
            short.add_metric([cell], found.get(cell, 0))
        yield short
        waiting = GaugeMetricFamily(
            "borg_orders_waiting", "Orders that somebody has to decide about", labels=["approver"]
        )
        orders = dict(_counted(Order.objects.filter(state=OrderState.PENDING.value), "approver"))
        for approver in sorted({"owner", "sre", *orders}):
            waiting.add_metric([approver], orders.get(approver, 0))
        yield waiting
        deliveries = GaugeMetricFamily(
            "borg_notice_deliveries", "Deliveries of notices that wait, and that were given up", labels=["state"]
        )
        states = dict(_counted(NoticeDelivery.objects.exclude(state="sent"), "state"))
        for state in ("failed", "waiting"):
            deliveries.add_metric([state], states.get(state, 0))
        yield deliveries
        yield GaugeMetricFamily(
            "borg_ledger_imbalance_microcredits",
            "Sum of all accounts, in micro-credits; anything but 0 is an error",
            value=Account.objects.aggregate(total=Sum("balance", default=0))["total"],
        )


def _sold(capacity: dict[str, list[int]]) -> GaugeMetricFamily:
    share = GaugeMetricFamily(
        "borg_quota_sold_share",
        "What is sold at a band now, as a share of the cell's capacity, by each resource that the cell has",
        labels=["cell", "band", "resource"],
    )
    for one in sold_at(clock.now()):
        for name, sold, has in zip(NAMES, one.sold, capacity.get(one.cell, ()), strict=False):
            if has:
                share.add_metric([one.cell, one.band, name], sold / has)
    return share


def _counted(rows: Any, by: str) -> Iterator[tuple[str, int]]:
    for row in rows.order_by().values(by).annotate(n=Count("id")):
        yield row[by], row["n"]
