"""The data for the page about a cell's schedulers: their processes, their last passes, and the pending tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import redis
from django.utils.translation import gettext as _

from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import format_number
from scheduling.master import lease, pass_log, queue_health, schedulers, standbys
from scheduling.master.pass_log import Pass
from scheduling.models import Cell
from scheduling.policy import cell_settings

SHOWN = 10  # passes in the table; the bars show all that are kept
_HEIGHT = 32
_BAR = 4


def of_cell(cell: Cell) -> dict[str, Any]:
    """Return the data for the page about a cell's schedulers, as the context of the template
    `console/cell_passes.html`. Makes three queries, and one request to Redis per scheduler.
    """
    try:
        wanted = schedulers.wanted(cell_settings.load(cell.settings))
    except Rejected:
        wanted = ()  # the settings are invalid, and this page is where an SRE corrects them
    held, waiting = lease.in_force(cell.pk), standbys.present()
    try:
        kept = {one.name: pass_log.recent(cell.pk, one.name) for one in wanted}
    except redis.RedisError:
        kept = None
    return {
        "redis_away": kept is None,
        "schedulers": [
            {
                "name": one.name,
                "process": schedulers.process_of(cell.name, one),
                **dict(zip(("holder", "epoch"), held.get(one.name, ("", 0)), strict=True)),
                "standbys": waiting.get((cell.pk, one.name), []),
                **_passes((kept or {}).get(one.name, [])),
            }
            for one in wanted
        ],
        "queues": _queues(cell),
    }


def _passes(kept: Sequence[Pass]) -> dict[str, Any]:
    return {
        "figures": _figures(kept),
        "bars": _bars(kept),
        "width": _BAR * len(kept),
        "table": {
            "headers": [
                _("began (UTC)"),
                _("revision"),
                _("pending"),
                _("groups of equal tasks"),
                _("placed"),
                _("conflicts"),
                _("preempted"),
                _("not placed"),
                _("scores from cache"),
                _("pass + commit, ms"),
            ],
            "rows": [_row(one) for one in kept[:SHOWN]],
        },
    }


def _figures(kept: Sequence[Pass]) -> list[tuple[str, str]]:
    detail = pass_log.summary(kept)
    if detail is None:
        return []
    conflicts = f" ({format_number(detail.conflict_percent, 2)} %)" if detail.conflict_percent is not None else ""
    return [
        (
            _("scheduling passes"),
            _("%(number)d passes since %(at)s UTC") % {"number": detail.passes, "at": f"{_at(kept[-1]):%F %T}"},
        ),
        (_("duration of a pass, p50 and p99"), f"{detail.pass_p50:,.1f} · {detail.pass_p99:,.1f} ms"),
        (_("duration of a commit, p50 and p99"), f"{detail.commit_p50:,.1f} · {detail.commit_p99:,.1f} ms"),
        (_("placed"), f"{detail.placed:,}"),
        (_("preempted"), f"{detail.preempted:,}"),
        (_("conflicts"), f"{detail.conflicts:,}{conflicts}"),
        (_("scores from cache"), f"{detail.cache_percent:.1f} %" if detail.cache_percent is not None else "–"),
    ]


def _row(one: Pass) -> list[str]:
    looked = one.cache_hits + one.cache_misses
    return [
        f"{_at(one):%T}",
        str(one.revision),
        f"{one.pending:,}",
        f"{one.classes:,}",
        f"{one.placed:,}",
        f"{one.conflicts:,}",
        f"{one.preempted:,}",
        f"{one.unplaced:,}",
        f"{one.cache_hits / looked:.0%}" if looked else "–",
        f"{one.pass_ms:,.1f} + {one.commit_ms:,.1f}",
    ]


def _bars(kept: Sequence[Pass]) -> list[dict[str, Any]]:
    """Return one bar per scheduling pass for a chart, oldest first. The height of a bar shows how long the pass took,
    relative to the longest pass.
    """
    longest = max((one.pass_ms + one.commit_ms for one in kept), default=0.0) or 1.0
    bars = []
    for number, one in enumerate(reversed(kept)):
        height = max(1.0, _HEIGHT * (one.pass_ms + one.commit_ms) / longest)
        title = _("%(at)s: %(ms)s ms, %(placed)s tasks placed, %(conflicts)s conflicts") % {
            "at": f"{_at(one):%T}",
            "ms": f"{one.pass_ms + one.commit_ms:,.1f}",
            "placed": one.placed,
            "conflicts": one.conflicts,
        }
        y, height = round(_HEIGHT - height, 1), round(height, 1)
        bars.append({"x": _BAR * number, "y": y, "height": height, "conflicts": one.conflicts, "title": title})
    return bars


def _queues(cell: Cell) -> dict[str, Any]:
    return {
        "headers": [_("band"), _("priority"), _("jobs"), _("tasks"), _("longest wait of a task")],
        "rows": [
            [
                queue.band,
                str(queue.priority),
                f"{queue.jobs:,}",
                f"{queue.tasks:,}",
                str(dt.timedelta(seconds=round(queue.oldest_s))),
            ]
            for queue in queue_health.queues(cell.pk)
        ],
    }


def _at(one: Pass) -> dt.datetime:
    return dt.datetime.fromtimestamp(one.at, dt.UTC)
