"""Reads the values of alarms for the first page of the console, from the tables and functions that Prometheus' metrics
use too. Of the archive it reads only events and usage. `docs/guides/alarms.md` names the alerts that it does not check.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence

from django.db.models import Sum

from portal.console.attention import Findings
from portal.console.home.figures import FleetFigures
from quota.models import Account, CapabilityRequest, Order, OrderState, Shortfall
from scheduling.autoscaling import turns as autoscaling_turns
from scheduling.cron import due_runs
from scheduling.history.archive import retention
from scheduling.history.statistics.reports import EVICTION_CAUSES, Statistics
from scheduling.maintenance.selectors import overdue_machines
from scheduling.master.queue_health import PendingQueue
from scheduling.models import Brake, Cell
from scheduling.policy.brake_rules import BrakeState
from scheduling.secrets.rekeying import key_uses
from scheduling.usage import metering
from scheduling.workflows import turns as workflow_turns


def read_findings(
    cells: Sequence[Cell],
    fleet: FleetFigures,
    queues: Sequence[PendingQueue],
    statistics: Mapping[int, Statistics],
    *,
    now: dt.datetime,
) -> Findings:
    """Return the values of alarms. `fleet`, `queues`: what was read of these cells. `statistics`: the evictions of the
    last hours, by cell id. Makes fourteen queries.
    """
    names = {cell.id: cell.name for cell in cells}

    def named(values: Mapping[int, float]) -> dict[str, float]:
        return {names[cell_id]: seconds for cell_id, seconds in values.items() if cell_id in names}

    archive: defaultdict[str, float] = defaultdict(float)
    for (cell_id, _), seconds in retention.lags_s(cells, now=now).items():
        archive[names[cell_id]] = max(archive[names[cell_id]], seconds)
    missing: defaultdict[str, int] = defaultdict(int)
    for one in fleet.schedulers:
        missing[one.cell] += not one.runs
    shortfalls = Shortfall.objects.filter(closed_at__isnull=True).values_list("cell", flat=True)[:1000]
    held = Brake.objects.filter(state=BrakeState.HELD.value, cell__in=names).order_by("cell", "kind")
    counts = {names[cell_id]: one for cell_id, one in fleet.counts.items()}
    metered = {name: seconds for name, seconds in metering.lag_s(now=now).items() if name in names.values()}
    return Findings(
        cell_ids={name: cell_id for cell_id, name in names.items()},
        brakes=[(names[one.cell_id], one.wanted, one.detail) for one in held],
        oversold=sorted(set(shortfalls)),
        orders=Order.objects.filter(state=OrderState.PENDING.value, approver="sre").count(),
        requests=CapabilityRequest.objects.filter(state="open").count(),
        down={name: one["machines_down"] for name, one in counts.items()},
        quarantined={name: one["quarantined"] for name, one in counts.items()},
        missing=missing,
        waits=_waits(names, queues),
        overdue={names[cell_id]: number for cell_id, number in overdue_machines().items() if cell_id in names},
        late={
            "cron": named(due_runs.lag_s()),
            "workflows": named(workflow_turns.lag_s()),
            "autoscaler": named(autoscaling_turns.lag_s()),
            "metering": metered,
            "archive": archive,
        },
        no_link=[
            names[cell_id]
            for cell_id, one in fleet.connections.items()
            if not one.shards and fleet.counts[cell_id]["machines_up"]
        ],
        evictions={names[cell_id]: prod_evictions(one) for cell_id, one in statistics.items()},
        unreadable=sum(use.rows for use in key_uses() if not use.held),
        imbalance=Account.objects.aggregate(total=Sum("balance", default=0))["total"],
        redis_away=fleet.redis_away,
    )


def prod_evictions(one: Statistics) -> tuple[float, int]:
    """Return the evictions of prod tasks per task-week by the causes of Figure 3, and their number."""
    number = sum(row.evictions for row in one.evictions() if row.prod and row.cause in EVICTION_CAUSES)
    return one.eviction_rate(prod=True) or 0.0, number


def _waits(names: Mapping[int, str], queues: Sequence[PendingQueue]) -> list[tuple[str, str, int, float]]:
    """Return (cell, band, pending tasks, seconds that the oldest one has waited) of each band with pending tasks."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for one in queues:
        key = names[one.cell_id], one.band
        tasks, oldest_s = found.get(key, (0, 0.0))
        found[key] = tasks + one.tasks, max(oldest_s, one.oldest_s)
    return [(*key, *pair) for key, pair in found.items()]
