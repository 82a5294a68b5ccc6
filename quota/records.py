"""Writing of records in the platform's journal, for changes that belong to no cell.

with records.write(principal) as entry:
    ... change rows ...
    entry.append("tenant.created", tenant="demo", title="…")
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from django.db import connection, transaction

from quota.models import Notice, Record
from quota.vocabulary.permissions import Principal

_STREAM = "platform"


class RecordEntry:
    """The records and notices of one change, which are written together at the end of the change."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self._news: list[tuple[str, str, dict[str, Any]]] = []
        self._notices: list[Notice] = []

    def append(self, kind: str, *, tenant: str = "", **data: Any) -> None:
        """Add one record. `data`: values for JSON."""
        self._news.append((kind, tenant, data))

    def add_notice(self, notice: Notice) -> None:
        """Add a notification, which is written together with the records."""
        self._notices.append(notice)

    def _flush(self) -> None:
        if self._notices:
            Notice.objects.bulk_create(self._notices)
        if not self._news:
            return
        last, time = _take(len(self._news))
        first = last - len(self._news) + 1
        Record.objects.bulk_create(
            Record(
                revision=first + offset,
                time=time,
                kind=kind,
                tenant=tenant,
                actor=self.principal.name,
                request_id=self.principal.request_id,
                data=data,
            )
            for offset, (kind, tenant, data) in enumerate(self._news)
        )


@contextmanager
def write(principal: Principal) -> Iterator[RecordEntry]:
    """Context manager: run the block in one transaction, and write the block's records at its end. If there are
    records, this locks the row of `Stream`.
    """
    with transaction.atomic():
        entry = RecordEntry(principal)
        yield entry
        entry._flush()


def _take(count: int) -> tuple[int, dt.datetime]:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO quota_stream (name, revision) VALUES (%s, %s)"
            " ON CONFLICT (name) DO UPDATE SET revision = quota_stream.revision + excluded.revision"
            " RETURNING revision, clock_timestamp()",
            [_STREAM, count],
        )
        return cast("tuple[int, dt.datetime]", cursor.fetchone())
