"""Sending of notices through the channels of their tenants. Each channel sends its notices in order.

    Notice ─► spread ─► NoticeDelivery (waiting) ─► claim a channel ─► send its oldest ─► settle ─► sent | waiting
                                                                                             └─► failed, after a day

Only `spread`, `claim` and `settle` use the database, briefly. Threads send over the network. The number of threads is
limited, and so is the time that they run. If a sending process dies, another process can claim its channels when its
lease ends. Deliveries whose outcome that process did not store are sent again with the same id.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import structlog
from django.db import connection, transaction
from django.db.models import Q

from quota import clock, records
from quota.models import Notice, NoticeChannel, NoticeDelivery
from quota.notifications.notice_kinds import wanted
from quota.notifications.notices import notify
from quota.notifications.transports import send
from quota.notifications.webhook_client import DeliveryFailed
from quota.vocabulary.permissions import system

log = structlog.get_logger(__name__)

NOTICES_AT_ONCE = 500
CHANNELS_AT_ONCE = 16
DELIVERIES_AT_ONCE = 20
# The time that one channel gets per run, and the lease of its sender, which is longer by the time of two deliveries.
SHARE_S = 30.0
LEASE = dt.timedelta(seconds=90)
RUN_S = 50.0
FIRST_RETRY, LONGEST_RETRY = dt.timedelta(seconds=30), dt.timedelta(hours=1)
GIVEN_UP_AFTER = dt.timedelta(days=1)
# The maximum number of attempts for a notice that the receiver itself rejects. Then the next notice is sent.
REFUSED_AT_MOST = 5
_LOCK = 0x626F7267_6E6F7465  # "borgnote"


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt. `error`: empty if the attempt succeeded. `final`: true if the receiver rejected the
    notice.
    """

    delivery: int
    error: str = ""
    final: bool = False


@dataclass(slots=True)
class Sent:
    """The numbers of successful and failed deliveries in one run of `notices_send`."""

    sent: int = 0
    failed: int = 0


def notices_send(*, run_s: float = RUN_S) -> Sent:
    """Send all waiting notices, except those whose next attempt has a later time.

    The call takes at most about `run_s` seconds plus the time limit of one channel. Idempotent. Only one run is active
    at a time; a parallel call returns immediately and sends nothing.
    """
    done = Sent()
    with _alone() as mine:
        if mine:
            _run(done, until=time.monotonic() + run_s)
    return done


def retry_after(attempts: int) -> dt.timedelta:
    """Return the waiting time after `attempts` failed attempts: 30 s after the first, doubled per attempt, at most an
    hour.
    """
    return cast("dt.timedelta", min(FIRST_RETRY * 2 ** min(attempts - 1, 10), LONGEST_RETRY))


def spread() -> int:
    """Create the deliveries of up to `NOTICES_AT_ONCE` new notices. Returns the number of notices.

    Locks the notices, then their channels.
    """
    now = clock.now()
    with transaction.atomic():
        notices = list(
            Notice.objects.select_for_update(skip_locked=True, of=("self",))
            .filter(spread_at__isnull=True)
            .order_by("id")[:NOTICES_AT_ONCE]
        )
        if not notices:
            return 0
        tenants = {notice.tenant_id for notice in notices}
        channels: dict[int | None, list[NoticeChannel]] = defaultdict(list)
        of_tenants = Q(tenant_id__in=tenants - {None})
        if None in tenants:
            of_tenants |= Q(tenant__isnull=True)
        rows = NoticeChannel.objects.select_for_update(of=("self",), no_key=True).filter(
            of_tenants, enabled=True, paused_at__isnull=True
        )
        for channel in rows.order_by("id"):
            channels[channel.tenant_id].append(channel)
        NoticeDelivery.objects.bulk_create(
            (
                NoticeDelivery(notice=notice, channel=channel, next_at=now)
                for notice in notices
                for channel in channels[notice.tenant_id]
                if wanted(notice.kind, notice.level, kinds=tuple(channel.kinds), from_level=channel.level)
            ),
            ignore_conflicts=True,
        )
        Notice.objects.filter(id__in=[notice.id for notice in notices]).update(spread_at=now)
    return len(notices)


def claim(most: int) -> list[tuple[NoticeChannel, list[NoticeDelivery]]]:
    """Reserve up to `most` channels for a limited time (*lease*). Only channels are reserved whose oldest waiting
    delivery may be sent now.

    Returns each channel with its next deliveries.
    """
    if most <= 0:
        return []
    now = clock.now()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"now": now, "until": now + LEASE, "most": most})
        ids = [row[0] for row in cursor.fetchall()]
        if not ids:
            return []
        cursor.execute(_NEXT, {"channels": ids, "most": DELIVERIES_AT_ONCE})
        chosen = [row[0] for row in cursor.fetchall()]
    channels = NoticeChannel.objects.select_related("tenant").in_bulk(ids)
    waiting: dict[int, list[NoticeDelivery]] = defaultdict(list)
    for delivery in NoticeDelivery.objects.filter(id__in=chosen).select_related("notice__tenant").order_by("id"):
        waiting[delivery.channel_id].append(delivery)
    return [(channels[one], waiting[one]) for one in ids if one in channels]


def settle(channel: NoticeChannel, outcomes: Sequence[DeliveryOutcome]) -> None:
    """Store the outcomes of deliveries and release their channel. If the channel has failed for a day, pause it and
    write a notice.

    Locks the channel's row, then the platform's journal (the row of `Stream`).
    """
    now = clock.now()
    with records.write(system("notices")) as entry:
        row = (
            NoticeChannel.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=channel.pk).first()
        )
        if row is None:  # the channel and its deliveries were removed meanwhile
            return
        row.busy_until = None
        tried = NoticeDelivery.objects.in_bulk([outcome.delivery for outcome in outcomes])
        for outcome in outcomes:
            if (delivery := tried.get(outcome.delivery)) is None:
                continue
            delivery.attempts += 1
            delivery.begun_at = delivery.begun_at or now
            delivery.error = outcome.error[:300]
            if not outcome.error:
                delivery.state, delivery.sent_at = "sent", now
                row.failing_since, row.error = None, ""
                continue
            row.failing_since, row.error = row.failing_since or now, delivery.error
            delivery.next_at = now + retry_after(delivery.attempts)
            if (outcome.final and delivery.attempts >= REFUSED_AT_MOST) or now - delivery.begun_at >= GIVEN_UP_AFTER:
                delivery.state = "failed"
        NoticeDelivery.objects.bulk_update(
            tried.values(), ["attempts", "begun_at", "error", "state", "sent_at", "next_at"]
        )
        if row.failing_since is not None and now - row.failing_since >= GIVEN_UP_AFTER and not row.paused_at:
            row.paused_at = now
            drop_waiting(row, f"not sent, because the channel was paused: {row.error}")
            entry.append("notices.channel-paused", tenant=row.tenant.name if row.tenant else "", channel=row.pk)
            notify(
                entry,
                row.tenant,
                "notices.paused",
                f"Notices to {row.target} are paused",
                f"All deliveries have failed for a day ({row.error}). The notices are in the inbox. When the receiver"
                " works again, send a test through the channel, which ends the pause.",
                url="/notices/channels/",
                level="warning",
                channel=row.pk,
            )
        row.save(update_fields=["busy_until", "failing_since", "error", "paused_at"])


def drop_waiting(channel: NoticeChannel, reason: str) -> int:
    """Mark the waiting deliveries of a channel as failed, with a reason. Return the number of these deliveries."""
    return NoticeDelivery.objects.filter(channel=channel, state="waiting").update(state="failed", error=reason[:300])


def _run(done: Sent, *, until: float) -> None:
    """Send deliveries in threads and count them in `done`. Claim no channel after `until` (monotonic seconds)."""
    with ThreadPoolExecutor(CHANNELS_AT_ONCE, thread_name_prefix="notices") as pool:
        busy: dict[Future[list[DeliveryOutcome]], NoticeChannel] = {}
        while True:
            while spread() == NOTICES_AT_ONCE:
                continue
            if time.monotonic() < until:
                for channel, waiting in claim(CHANNELS_AT_ONCE - len(busy)):
                    busy[pool.submit(_serve, channel, waiting, clock.now(), send)] = channel
            if not busy:
                return
            for future in wait(busy, timeout=1.0, return_when=FIRST_COMPLETED).done:
                outcomes = future.result()
                settle(busy.pop(future), outcomes)
                failed = sum(bool(outcome.error) for outcome in outcomes)
                done.failed += failed
                done.sent += len(outcomes) - failed


def _serve(
    channel: NoticeChannel,
    waiting: Sequence[NoticeDelivery],
    now: dt.datetime,
    transport: Callable[[NoticeChannel, NoticeDelivery, dt.datetime], None],
) -> list[DeliveryOutcome]:
    """Send deliveries in order until one fails or the channel's time limit is reached.

    Runs in a thread and uses no database. `transport`: the function that sends one delivery.
    """
    outcomes: list[DeliveryOutcome] = []
    until = time.monotonic() + SHARE_S
    for delivery in waiting:
        try:
            transport(channel, delivery, now)
        except DeliveryFailed as failure:
            outcomes.append(DeliveryOutcome(delivery.pk, str(failure) or "no reason given", failure.final))
            break
        except Exception:  # an error in one notice must not stop the other notices
            log.exception("notice not sent", delivery=delivery.pk)
            error = "an internal error of the portal; its log has the details"
            outcomes.append(DeliveryOutcome(delivery.pk, error, final=True))
            break
        outcomes.append(DeliveryOutcome(delivery.pk))
        if time.monotonic() > until:
            break
    return outcomes


@contextmanager
def _alone() -> Iterator[bool]:
    """Try to take a lock, so that only one process sends notices. Yield whether this process has the lock.

    PostgreSQL releases the lock if the process dies.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


_CLAIM = """
WITH due AS (
    SELECT c.id, head.next_at
    FROM quota_noticechannel c
    CROSS JOIN LATERAL (
        SELECT d.next_at FROM quota_noticedelivery d
        WHERE d.channel_id = c.id AND d.state = 'waiting' ORDER BY d.id LIMIT 1
    ) head
    WHERE c.enabled AND c.paused_at IS NULL AND (c.busy_until IS NULL OR c.busy_until <= %(now)s)
      AND c.id IN (SELECT channel_id FROM quota_noticedelivery WHERE state = 'waiting' AND next_at <= %(now)s)
      AND head.next_at <= %(now)s
    ORDER BY head.next_at, c.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF c SKIP LOCKED
)
UPDATE quota_noticechannel c SET busy_until = %(until)s FROM due WHERE c.id = due.id RETURNING c.id
"""

_NEXT = """
SELECT d.id FROM unnest(%(channels)s::bigint[]) AS c(id)
CROSS JOIN LATERAL (
    SELECT id FROM quota_noticedelivery WHERE channel_id = c.id AND state = 'waiting' ORDER BY id LIMIT %(most)s
) d
"""
