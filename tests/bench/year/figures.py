"""Sizes of the simulated year at the end of each month, and whether these and the times of pages are flat."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Tables whose rows are kept for 400 days by their retention: they grow in a first year, and then no more.
KEPT_FOR_A_YEAR = (
    "quota_token",
    "scheduling_capacitysample",
    "scheduling_journaltally",
    "scheduling_archivefile",
    "scheduling_archivedjob",
)
_SIZES = """
SELECT coalesce(parent.relname, c.relname)::text AS name, sum(pg_total_relation_size(c.oid))::bigint,
    sum(coalesce(s.n_live_tup, 0))::bigint, sum(coalesce(s.n_dead_tup, 0))::bigint, count(*)
FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_class AS parent ON parent.oid = i.inhparent
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace IN ('public'::regnamespace, 'pg_catalog'::regnamespace)
GROUP BY 1 ORDER BY 2 DESC
"""
COUNTED = ("scheduling_event", "scheduling_job", "scheduling_task", "scheduling_jobspec", "scheduling_archivefile")


def sizes() -> dict[str, Any]:
    """Return the size of the database and of its tables in MiB, and numbers of rows. System tables are one entry."""
    from scheduling.journal.sql import query

    tables = query(_SIZES)
    mib: dict[str, float] = {}
    dead: dict[str, int] = {}
    for name, size, _, gone, _ in tables:
        entry = "catalog" if name.startswith("pg_") else name
        mib[entry] = mib.get(entry, 0.0) + size / 2**20
        dead[entry] = dead.get(entry, 0) + gone
    whole = query("SELECT pg_database_size(current_database())")[0][0] / 2**20
    for_a_year = sum(mib.get(name, 0.0) for name in KEPT_FOR_A_YEAR)
    return {
        "database_mib": round(whole, 1),
        "without_400_days_mib": round(whole - for_a_year, 1),
        "tables_mib": {
            name: round(size, 2) for name, size in sorted(mib.items(), key=lambda one: -one[1]) if size >= 0.2
        },
        "rows": {name: query(f"SELECT count(*) FROM {name}")[0][0] for name in COUNTED},
        "rows_about": {name: rows for name, _, rows, _, _ in tables if rows >= 100 and not name.startswith("pg_")},
        "dead_rows": {name: gone for name, gone in sorted(dead.items(), key=lambda one: -one[1])[:6] if gone},
    }


MOST_GROWTH = 0.10
# A page may be slower by this many ms although nothing grew: other processes use the machine too.
NOISE_MS = 10.0


def growth(values: Sequence[float]) -> float:
    """Return by which share a figure grows from the first to the last value, on the line that fits all values best."""
    places = np.arange(len(values))
    slope, start = np.polyfit(places, np.array(values, dtype=float), 1)
    return float(slope * places[-1] / start) if start > 0 else 0.0


def verdict(months: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return whether sizes and rows are flat from the fourth month on: on the line through the figures of these
    months, the last is at most a tenth above the first.
    """
    late = months[3:]
    figures = {
        "database_mib": [month["database_mib"] for month in late],
        "without_400_days_mib": [month["without_400_days_mib"] for month in late],
        **{name: [month["rows"][name] for month in late] for name in COUNTED[:3]},
    }
    grown = {name: round(growth(values), 3) for name, values in figures.items()}
    failed = [name for name, value in grown.items() if value > MOST_GROWTH]
    return {
        "case": "flat",
        "value": max(grown.values()),
        "unit": "growth",
        "better": "lower",
        "months": len(late),
        "grown": grown,
        **({"failed": failed} if failed else {}),
    }


def slower(found: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the pages that are slower on the last day than in the fourth month: by more than a tenth and by more than
    `NOISE_MS`. `found`: p50 and p99 in ms at both moments.
    """
    return {
        path: {"p50_ms": (before[0], after[0]), "p99_ms": (before[1], after[1])}
        for path, (before, after) in found.items()
        if after[1] > before[1] * (1 + MOST_GROWTH) and after[1] > before[1] + NOISE_MS
    }


def pages_verdict(found: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Return the line of the case `pages`. `found`: p50 and p99 in ms in the fourth month and on the last day."""
    wrong = slower(found)
    before, after = (statistics.median(both[moment][1] for both in found.values()) for moment in (0, 1))
    return {
        "case": "pages",
        "value": round(after / before - 1, 3),
        "unit": "growth",
        "better": "lower",
        "pages": len(found),
        "median_p99_ms": [round(before, 1), round(after, 1)],
        "worst_p99_ms": [max(both[moment][1] for both in found.values()) for moment in (0, 1)],
        **({"failed": wrong} if wrong else {}),
    }
