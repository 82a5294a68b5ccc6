"""Admission by quota on real PostgreSQL: never more than granted, refused with the shortfall."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.db import connection, transaction
from django.utils import timezone

from quota.models import Quota, QuotaUse
from quota.resources import ZERO, scale
from quota.services import admission
from quota.services.admission import Ask
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)
ONE = (1000, 2**30, 0, 0, 0, 5)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant():
    return rows.a_tenant()


def ask(tenant, priority=200, change=ONE) -> Ask:
    return Ask(tenant.id, tenant.name, priority, change)


def admit(cell, *asks):
    with transaction.atomic():
        return admission.admit(cell=cell.name, asks=asks)


def used(tenant) -> tuple[int, ...]:
    return tuple(QuotaUse.objects.get(tenant=tenant).used)


def test_within_quota_is_charged(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", scale(ONE, 2))
    assert admit(cell, ask(tenant), ask(tenant)) == [None, None]
    assert used(tenant) == scale(ONE, 2)


def test_the_refusal_says_what_is_short_and_by_how_much(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", (1500, 2**31, 0, 0, 0, 0))
    first, second = admit(cell, ask(tenant), ask(tenant))
    assert first is None
    assert second is not None
    assert second.code == "quota-exceeded"
    assert second.figures["short"] == {"cpu": {"asked": 1000, "granted": 1500, "in_use": 1000, "short": 500}}
    assert "short by 0.5 cores" in second.detail
    assert used(tenant) == ONE


def test_priority_zero_needs_no_quota_and_one_does(cell, tenant) -> None:
    free, one = admit(cell, ask(tenant, priority=0), ask(tenant, priority=1))
    assert free is None
    assert one is not None
    assert not QuotaUse.objects.exclude(used=list(ZERO)).exists()


def test_quota_of_another_band_or_cell_or_time_does_not_count(cell, tenant) -> None:
    rows.grant(tenant, cell, "batch")
    rows.grant(tenant, rows.a_cell("dd"), "production")
    past = rows.grant(tenant, cell, "production")
    Quota.objects.filter(pk=past.pk).update(ends_at=timezone.now() - dt.timedelta(seconds=1))
    (verdict,) = admit(cell, ask(tenant))
    assert verdict is not None
    assert verdict.figures["short"]["cpu"]["granted"] == 0


def test_what_is_given_back_can_be_asked_for_again(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", ONE)
    assert admit(cell, ask(tenant)) == [None]
    with transaction.atomic():
        admission.release(cell=cell.name, asks=[ask(tenant)])
    assert admit(cell, ask(tenant)) == [None]


def test_giving_back_is_never_refused_even_over_quota(cell, tenant) -> None:
    grant = rows.grant(tenant, cell, "production", scale(ONE, 3))
    admit(cell, ask(tenant, change=scale(ONE, 3)))
    Quota.objects.filter(pk=grant.pk).update(amounts=list(ZERO))
    with transaction.atomic():
        admission.release(cell=cell.name, asks=[ask(tenant)])
    assert used(tenant) == scale(ONE, 2)


def test_queries_do_not_grow_with_asks(cell, tenant, django_assert_max_num_queries) -> None:
    rows.grant(tenant, cell, "production")
    with django_assert_max_num_queries(7):  # five, and the transaction's own two
        admit(cell, *[ask(tenant, change=(1, 1, 0, 0, 0, 0)) for _ in range(200)])


def test_racing_submissions_never_exceed_the_grant(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", scale(ONE, 5))
    admitted: list[bool] = []

    def submit() -> None:
        try:
            admitted.extend(verdict is None for verdict in admit(cell, ask(tenant)))
        finally:
            connection.close()

    threads = [threading.Thread(target=submit) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 5
    assert used(tenant) == scale(ONE, 5)
