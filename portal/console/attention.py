"""Messages on the first page of the SRE console: what needs an SRE, and where to act. The limits are those of the alert
rules in `deploy/prometheus`. `docs/guides/alarms.md` explains each message. Pure, except that texts are translated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from quota.vocabulary.money import format_credits

# Limits as in the alert rules, in seconds. Below them, a part of the system only has a short delay.
LATE_S = {"cron": 30.0, "workflows": 30.0, "autoscaler": 120.0, "metering": 3 * 3600.0, "archive": 6 * 3600.0}
WAIT_S = 900.0
# The bands whose waiting tasks raise an alarm.
URGENT_BANDS = ("production", "monitoring")
# Evictions of prod tasks per task-week. Few evictions in a small cell say nothing.
EVICTIONS, LEAST_EVICTIONS = 1.0, 20


@dataclass(slots=True, kw_only=True)
class Findings:
    """The values that the first page compares with the limits of alarms. Keys are names of cells.

    `cell_ids`: the ids of the cells. `brakes`: (cell, number of tasks, detail) of each held brake. `oversold`: cells
    with an open shortfall. `orders`, `requests`: how many orders and requests for capabilities wait for an SRE. `down`,
    `quarantined`: numbers of machines. `missing`: numbers of schedulers that do not run. `waits`: (cell, band, tasks,
    seconds that the oldest one has waited). `overdue`: machines that are not empty in their maintenance. `late`:
    seconds by which a part of the system is late, by part and cell. `no_link`: cells with machines and without a link
    shard. `evictions`: prod evictions per task-week of the last hours, and their number. `unreadable`: values of
    secrets without a key. `imbalance`: the sum of all accounts, in micro-credits. `redis_away`: whether Redis cannot be
    reached.
    """

    cell_ids: Mapping[str, int] = field(default_factory=dict)
    brakes: Sequence[tuple[str, int, str]] = ()
    oversold: Sequence[str] = ()
    orders: int = 0
    requests: int = 0
    down: Mapping[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    waits: Sequence[tuple[str, str, int, float]] = ()
    overdue: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    no_link: Sequence[str] = ()
    evictions: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    unreadable: int = 0
    imbalance: int = 0
    redis_away: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """A message. `urgent`: whether it is an alarm, and not only work that waits. `entry`: the entry of the guide
    `docs/guides/alarms.md`, or "". `page`, `query`: the name of the console page on which to act, and its URL
    parameters. `action`: the title of the link to this page.
    """

    text: str
    urgent: bool = True
    entry: str = ""
    page: str = ""
    query: str = ""
    action: str = ""

    @property
    def guide(self) -> str:
        """Return the address of the entry in the documentation, or ""."""
        return f"/docs/guides/alarms/#{self.entry.lower()}" if self.entry else ""


def attention(found: Findings) -> list[Attention]:
    """Return the messages, alarms first."""
    messages = [*_cells(found), *_late(found), *_market(found), *_installation(found)]
    return sorted(messages, key=lambda one: not one.urgent)


def _cells(found: Findings) -> Iterator[Attention]:
    for cell, wanted, detail in found.brakes:
        text = ngettext(
            "Cell %(cell)s does not stop or move %(number)d task until an SRE decides: %(detail)s.",
            "Cell %(cell)s does not stop or move %(number)d tasks until an SRE decides: %(detail)s.",
            wanted,
        )
        yield Attention(
            text % {"cell": cell, "number": wanted, "detail": detail},
            entry="BorgBrakeHeld",
            page="scheduling_brake_changelist",
            action=_("Decide about the brake"),
        )
    for cell, number in found.missing.items():
        if number:
            text = ngettext(
                "%(number)d scheduler of cell %(cell)s does not run.",
                "%(number)d schedulers of cell %(cell)s do not run.",
                number,
            )
            yield Attention(
                text % {"cell": cell, "number": number},
                entry="BorgSchedulerMissing",
                page="scheduling_lease_changelist",
                action=_("Show the leases"),
            )
    for cell in found.no_link:
        yield Attention(_("No link shard serves cell %(cell)s.") % {"cell": cell}, entry="BorgLinkAway")
    for cell, band, number, seconds in found.waits:
        if seconds > WAIT_S and band in URGENT_BANDS:
            text = ngettext(
                "%(number)d task of band %(band)s is pending in cell %(cell)s. It has waited for %(time)s.",
                "%(number)d tasks of band %(band)s are pending in cell %(cell)s. The oldest has waited for %(time)s.",
                number,
            )
            yield Attention(
                text % {"cell": cell, "band": band, "number": number, "time": duration(seconds)},
                entry="BorgTasksWait",
                page="scheduling_pendingverdict_changelist",
                action=_("Show why tasks are pending"),
            )
    for cell, (rate, number) in found.evictions.items():
        if rate > EVICTIONS and number >= LEAST_EVICTIONS:
            text = _("In the last hours, prod tasks of cell %(cell)s were evicted %(rate)s times per task-week.")
            yield Attention(
                text % {"cell": cell, "rate": f"{rate:.1f}"},
                entry="BorgProdEvictionsHigh",
                page="statistics",
                query=f"?cell={cell}",
                action=_("Show statistics"),
            )
    for cell, number in found.overdue.items():
        text = ngettext(
            "%(number)d machine of cell %(cell)s still has tasks, although its maintenance has started.",
            "%(number)d machines of cell %(cell)s still have tasks, although their maintenance has started.",
            number,
        )
        yield Attention(
            text % {"cell": cell, "number": number},
            entry="BorgMaintenanceLate",
            page="scheduling_maintenancewindow_changelist",
            action=_("Show the maintenance calendar"),
        )
    for cell, number in found.down.items():
        if number:
            text = ngettext(
                "%(number)d machine of cell %(cell)s is down.", "%(number)d machines of cell %(cell)s are down.", number
            )
            yield Attention(
                text % {"cell": cell, "number": number},
                urgent=False,
                page="scheduling_machine_changelist",
                query=f"?state__exact=down&cell__id__exact={found.cell_ids[cell]}",
                action=_("Show the machines"),
            )
    for cell, number in found.quarantined.items():
        if number:
            text = ngettext(
                "%(number)d machine of cell %(cell)s runs tasks that this cell's history does not contain.",
                "%(number)d machines of cell %(cell)s run tasks that this cell's history does not contain.",
                number,
            )
            yield Attention(
                text % {"cell": cell, "number": number},
                urgent=False,
                page="scheduling_machine_changelist",
                query=f"?quarantine=yes&cell__id__exact={found.cell_ids[cell]}",
                action=_("Show the machines"),
            )


def _late(found: Findings) -> Iterator[Attention]:
    texts = {
        "cron": (_("The oldest due run of a cron job in cell %(cell)s is %(time)s late."), "BorgCronLate"),
        "workflows": (_("The workflows of cell %(cell)s have not advanced for %(time)s."), "BorgWorkflowsLate"),
        "autoscaler": (_("The autoscaler of cell %(cell)s is %(time)s late."), "BorgAutoscalerLate"),
        "metering": (_("The usage of cell %(cell)s was last metered %(time)s ago."), "BorgMeteringBehind"),
        "archive": (_("The archive of cell %(cell)s is %(time)s behind."), "BorgArchiveBehind"),
    }
    for part, (text, entry) in texts.items():
        for cell, seconds in found.late.get(part, {}).items():
            if seconds > LATE_S[part]:
                yield Attention(text % {"cell": cell, "time": duration(seconds)}, entry=entry)


def _market(found: Findings) -> Iterator[Attention]:
    if cells := found.oversold:
        text = ngettext(
            "The prod quota that was sold exceeds the capacity of cell %(cells)s.",
            "The prod quota that was sold exceeds the capacity of cells %(cells)s.",
            len(cells),
        )
        yield Attention(
            text % {"cells": ", ".join(cells)},
            entry="BorgQuotaShortfall",
            page="quota_shortfall_changelist",
            query="?open=yes",
            action=_("Show the shortfalls"),
        )
    if number := found.orders:
        text = ngettext("%d order waits for an SRE's decision.", "%d orders wait for an SRE's decision.", number)
        yield Attention(
            text % number,
            urgent=False,
            page="quota_order_changelist",
            query="?state__exact=pending&approver__exact=sre",
            action=_("Show the orders"),
        )
    if number := found.requests:
        text = ngettext(
            "%d request for a capability waits for an SRE's decision.",
            "%d requests for capabilities wait for an SRE's decision.",
            number,
        )
        yield Attention(
            text % number,
            urgent=False,
            page="quota_capabilityrequest_changelist",
            query="?state__exact=open",
            action=_("Show the requests"),
        )


def _installation(found: Findings) -> Iterator[Attention]:
    if number := found.unreadable:
        text = ngettext(
            "%d value of a secret cannot be decrypted.", "%d values of secrets cannot be decrypted.", number
        )
        yield Attention(text % number, entry="BorgSecretsUnreadable")
    if found.imbalance:
        text = _("The accounts of the ledger do not add up to 0, but to %(amount)s credits.")
        yield Attention(text % {"amount": format_credits(found.imbalance)}, entry="BorgLedgerUnbalanced")
    if found.redis_away:
        text = _("Redis cannot be reached, so this page shows no usage, no scheduling passes and no connections.")
        yield Attention(text, entry="BorgPortalAway")


def duration(seconds: float) -> str:
    """Return a time span as text with one unit, such as `25 min`."""
    if seconds < 120:
        return _("%d s") % round(seconds)
    if seconds < 7200:
        return _("%d min") % round(seconds / 60)
    if seconds < 172_800:
        return _("%d h") % round(seconds / 3600)
    return _("%d days") % round(seconds / 86_400)
