"""Deletion of old rows. Postings, entries, invoices, orders, grants, price lists and records are never deleted. The
archiver moves metered hours to the archive (`quota.models.metered_hours`).

Each statement deletes at most `AT_ONCE` rows in its own transaction, so that other transactions do not wait for long.
In tables whose ids grow with time, only the oldest rows are read.
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from django.db import connection

from quota import clock

NOTICES_KEPT = dt.timedelta(days=180)
ANSWERS_KEPT = dt.timedelta(days=400)
QUOTES_KEPT = dt.timedelta(days=7)  # after the end of their validity
SESSIONS_KEPT = dt.timedelta(days=1)  # after their end
BREACHES_KEPT = dt.timedelta(days=110)

AT_ONCE = 5_000


class _Rule(NamedTuple):
    """A rule that says how long rows of a table are kept.

    `statement`: SQL that deletes rows that ended before the parameter `until`, at most `most` rows at a time.
    """

    table: str
    kept: dt.timedelta
    statement: str


def _any(table: str, over: str) -> str:
    return f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} AS t WHERE {over} LIMIT %(most)s)"


_RULES = (
    _Rule(
        "notices",
        NOTICES_KEPT,
        "WITH old AS (SELECT id FROM (SELECT id, created_at FROM quota_notice ORDER BY id LIMIT %(most)s) AS oldest"
        " WHERE created_at < %(until)s), sent AS (DELETE FROM quota_noticedelivery AS d USING old"
        " WHERE d.notice_id = old.id) DELETE FROM quota_notice AS n USING old WHERE n.id = old.id",
    ),
    _Rule(
        "quotes",
        QUOTES_KEPT,
        _any(
            "quota_quote",
            "valid_until < %(until)s AND NOT EXISTS (SELECT FROM quota_order AS o WHERE o.quote_id = t.id)",
        ),
    ),
    _Rule(
        "invitations",
        ANSWERS_KEPT,
        _any("quota_invitation", "least(accepted_at, withdrawn_at, expires_at) < %(until)s"),
    ),
    _Rule("requests for capabilities", ANSWERS_KEPT, _any("quota_capabilityrequest", "answered_at < %(until)s")),
    # A token ends no later than its parent, so whole families are deleted, children first.
    _Rule(
        "tokens",
        ANSWERS_KEPT,
        _any(
            "quota_token",
            "least(expires_at, revoked_at) < %(until)s"
            " AND NOT EXISTS (SELECT FROM quota_token AS c WHERE c.parent_id = t.id)",
        ),
    ),
    _Rule(
        "sessions",
        SESSIONS_KEPT,
        _any(
            "usersessions_usersession",
            "last_seen_at < %(until)s AND NOT EXISTS"
            " (SELECT FROM django_session AS s WHERE s.session_key = t.session_key AND s.expire_date > now())",
        ),
    ),
    # Until then, they lower the credits of hours of the same month that are metered late.
    _Rule(
        "breaches of promises that are credited", BREACHES_KEPT, _any("quota_promisebreach", "settled_at < %(until)s")
    ),
    _Rule("shortfalls", ANSWERS_KEPT, _any("quota_shortfall", "closed_at < %(until)s")),
)


def forget_old(*, at_once: int = AT_ONCE) -> dict[str, int]:
    """Delete rows that are older than their retention time. Returns the number of deleted rows by kind of row.
    Idempotent.
    """
    now = clock.now()
    done = {rule.table: _forget(rule, until=now - rule.kept, most=at_once) for rule in _RULES}
    return {table: rows for table, rows in done.items() if rows}


def _forget(rule: _Rule, *, until: dt.datetime, most: int) -> int:
    gone = 0
    with connection.cursor() as cursor:
        while True:
            cursor.execute(rule.statement, {"until": until, "most": most})
            if not cursor.rowcount:
                return gone
            gone += cursor.rowcount
