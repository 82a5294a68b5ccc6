"""Keeps the statistics of a cell small: old hours become days, and old days are deleted. The totals of all hours stay.

    62 days by the hour ─► until 400 days by the day (UTC) ─► deleted

Pages and REST add up the tallies of a period, so a period of whole days gives the same figures before and after.
"""

from __future__ import annotations

import datetime as dt

from scheduling.journal.sql import execute

# Two months and the current one can be compared hour by hour.
HOURLY = dt.timedelta(days=62)
KEPT = dt.timedelta(days=400)

# The tallies of old hours, by the index on cell and hour. The tally of a day has the hour 00:00.
_OLD = "cell_id = ANY(ARRAY(SELECT id FROM scheduling_cell)) AND hour > to_timestamp(0) AND hour < %(until)s"
_KEY = "cell_id, day, figure, prod, label"
_FOLD = f"""
WITH hours AS (
    DELETE FROM scheduling_journaltally WHERE {_OLD} AND hour <> date_trunc('day', hour, 'UTC')
    RETURNING cell_id, date_trunc('day', hour, 'UTC') AS day, figure, prod, label, number, total, buckets
), places AS (
    SELECT {_KEY}, place, sum(value)::bigint AS value
    FROM hours, unnest(buckets) WITH ORDINALITY AS b(value, place) GROUP BY {_KEY}, place
), histograms AS (
    SELECT {_KEY}, array_agg(value ORDER BY place) AS buckets FROM places GROUP BY {_KEY}
), days AS (
    SELECT {_KEY}, sum(number)::bigint AS number, sum(total) AS total FROM hours GROUP BY {_KEY}
)
INSERT INTO scheduling_journaltally AS t (cell_id, hour, figure, prod, label, number, total, buckets)
SELECT {_KEY}, number, total, coalesce(buckets, '{{}}') FROM days LEFT JOIN histograms USING ({_KEY})
ORDER BY {_KEY}
ON CONFLICT (cell_id, hour, figure, prod, label) DO UPDATE SET number = t.number + excluded.number,
    total = t.total + excluded.total, buckets = ARRAY(
        SELECT coalesce(b.old, 0) + coalesce(b.new, 0)
        FROM unnest(t.buckets, excluded.buckets) WITH ORDINALITY AS b(old, new, place) ORDER BY b.place)
"""


def statistics_fold_old(*, now: dt.datetime) -> int:
    """Replace the tallies of the hours of each day that is older than `HOURLY` by tallies of the day. Return the number
    of tallies of days that were written.
    """
    until = (now - HOURLY).astimezone(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return execute(_FOLD, {"until": until})


def statistics_drop_old(*, now: dt.datetime) -> int:
    """Delete tallies that are older than `KEPT`. Totals stay. Return the number of deleted rows."""
    return execute(f"DELETE FROM scheduling_journaltally WHERE {_OLD}", {"until": now - KEPT})
