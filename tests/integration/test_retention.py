"""Tests of retention on real PostgreSQL: which rows are deleted after some time, and which are never deleted."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.models import (
    CapabilityRequest,
    Invitation,
    Notice,
    NoticeChannel,
    NoticeDelivery,
    Order,
    PriorityBand,
    Quote,
    Shortfall,
    Token,
)
from quota.retention import ANSWERS_KEPT, NOTICES_KEPT, QUOTES_KEPT, forget_old
from tests.integration import money_rows as market
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 3, 31, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def _now():
    rows.a_cell()
    with clock.at(NOW):
        yield


def around(kept: dt.timedelta) -> list[dt.datetime]:
    """Return three times that are older than the retention period `kept`, and two that are not."""
    return [NOW - kept - days * DAY for days in (30, 2, 1)] + [NOW - kept + DAY, NOW]


def names(model, field: str) -> list[str]:
    return list(model.objects.order_by("id").values_list(field, flat=True))


def test_notices_go_with_their_deliveries_a_few_at_a_time() -> None:
    tenant = market.funded()
    channel = NoticeChannel.objects.create(
        tenant=tenant, kind="email", target="a@example.org", created_by="test", created_at=NOW
    )
    Notice.objects.all().delete()
    for number, moment in enumerate(around(NOTICES_KEPT)):
        notice = Notice.objects.create(
            tenant=tenant if number % 2 else None, kind="order.placed", subject=str(number), text="", created_at=moment
        )
        NoticeDelivery.objects.create(notice=notice, channel=channel, state="sent", next_at=moment)
    assert forget_old(at_once=2) == {"notices": 3}
    assert (names(Notice, "subject"), names(NoticeDelivery, "notice__subject")) == (["3", "4"], ["3", "4"])
    assert forget_old() == {}


def test_quotes_without_an_order_and_what_was_answered_long_ago_go() -> None:
    tenant = market.funded()
    ann = world.principal("ann", tenant=tenant)
    band, prices = PriorityBand.objects.get(name="production"), market.a_price_list()
    for moment in around(QUOTES_KEPT):
        last = Quote.objects.create(
            tenant=tenant,
            cell="cc",
            band=band,
            amounts=[0] * 6,
            starts_at=moment,
            ends_at=moment + DAY,
            price=1,
            prices=prices,
            made_by="ann",
            created_at=moment,
            valid_until=moment,
        )
    ordered = Quote.objects.earliest("id")
    Order.objects.filter(pk=market.held(tenant, 1).pk).update(quote=ordered)
    for number, moment in enumerate(around(ANSWERS_KEPT)):
        Invitation.objects.create(
            tenant=tenant,
            email="b@example.org",
            role="viewer",
            key=f"k{number}",
            digest="",
            invited_by="ann",
            created_at=moment,
            expires_at=moment if number else NOW + DAY,
            accepted_at=None if number else moment,
        )
        Token.objects.create(
            user_id=ann.user_id,
            name=str(number),
            key=f"k{number}",
            digest="",
            scopes=["read"],
            expires_at=moment if number else None,
            revoked_at=None if number else moment,
        )
        CapabilityRequest.objects.create(
            tenant=tenant,
            user_id=ann.user_id,
            kind="shell",
            reason=str(number),
            until=moment,
            asked_by="ann",
            asked_at=moment,
            state="refused",
            answered_at=moment,
        )
        Shortfall.objects.create(cell="cc", begins_at=moment, short=[0] * 6, found_at=moment, closed_at=moment)
    open_ones = {"user_id": ann.user_id, "tenant": tenant, "reason": "open", "asked_by": "ann"}
    CapabilityRequest.objects.create(
        **open_ones, kind="any-job", until=NOW, asked_at=NOW - 2 * ANSWERS_KEPT, state="open"
    )
    Token.objects.create(user_id=ann.user_id, name="for ever", key="k9", digest="", scopes=["read"])
    assert forget_old(at_once=2) == {
        "quotes": 2,
        "invitations": 3,
        "requests for capabilities": 3,
        "tokens": 3,
        "shortfalls": 3,
    }
    assert Quote.objects.filter(pk__in=[ordered.pk, last.pk]).count() == 2
    assert names(Token, "name")[-3:] == ["3", "4", "for ever"]
    assert names(CapabilityRequest, "reason") == ["3", "4", "open"]
