"""Tests of admission by quota on real PostgreSQL: admitted jobs fit into it, and rejections name what is missing."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.db import connection, transaction
from django.utils import timezone

from quota import clock
from quota.admission import admission
from quota.admission.admission import AdmissionRequest
from quota.market.grants import quota_end
from quota.models import Budget, Quota, QuotaUse
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import ZERO, scale
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = dt.timedelta(seconds=1)
ONE = (1000, 2**30, 0, 0, 0, 5)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant():
    return rows.a_tenant()


def ask(tenant, priority=200, change=ONE) -> AdmissionRequest:
    return AdmissionRequest(tenant.id, tenant.name, priority, change)


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
    with django_assert_max_num_queries(7):  # five queries, and two for the transaction
        admit(cell, *[ask(tenant, change=(1, 1, 0, 0, 0, 0)) for _ in range(200)])
    with django_assert_max_num_queries(6):
        admit(cell, *[ask(tenant, change=(1, 1, 0, 0, 0, 0)) for _ in range(200)])


def test_a_grant_counts_until_its_grace_is_over(cell, tenant) -> None:
    row = rows.grant(tenant, cell, "production", scale(ONE, 3))
    ends = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    grace = ends + dt.timedelta(hours=72)
    Quota.objects.filter(pk=row.pk).update(ends_at=ends, grace_until=grace)
    for moment, admitted in (
        (ends - SECOND, True),
        (ends, True),
        (grace - dt.timedelta(microseconds=1), True),
        (grace, False),
    ):
        with clock.at(moment):
            (verdict,) = admit(cell, ask(tenant))
        assert (verdict is None) is admitted


def test_a_grant_counts_from_its_beginning(cell, tenant) -> None:
    row = rows.grant(tenant, cell, "production", ONE)
    begins = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    Quota.objects.filter(pk=row.pk).update(starts_at=begins)
    for moment, admitted in ((begins - SECOND, False), (begins, True)):
        with clock.at(moment):
            (verdict,) = admit(cell, ask(tenant))
        assert (verdict is None) is admitted


@pytest.mark.parametrize("action", ["stop-submitting", "drop"])
def test_a_spent_budget_refuses_growth_and_nothing_else(cell, tenant, action) -> None:
    rows.grant(tenant, cell, "production", scale(ONE, 5))
    assert admit(cell, ask(tenant, change=scale(ONE, 2))) == [None]
    Budget.objects.create(tenant=tenant, action=action, exhausted_at=timezone.now())
    back = tuple(-value for value in ONE)
    grown, free, shrunk, same = admit(
        cell, ask(tenant), ask(tenant, priority=0), ask(tenant, change=back), ask(tenant, change=ZERO)
    )
    assert grown is not None
    assert (grown.code, grown.figures["action"]) == ("budget-exhausted", action)
    assert (free, shrunk, same) == (None, None, None)
    assert used(tenant) == ONE
    Budget.objects.update(exhausted_at=None)
    assert admit(cell, ask(tenant)) == [None]


@pytest.mark.parametrize("action", ["none", "stop-buying"])
def test_other_spent_budgets_let_submit(cell, tenant, action) -> None:
    rows.grant(tenant, cell, "production", ONE)
    Budget.objects.create(tenant=tenant, action=action, exhausted_at=timezone.now())
    assert admit(cell, ask(tenant)) == [None]


def test_a_spent_budget_is_known_at_the_first_submission_of_all(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", ONE)
    Budget.objects.create(tenant=tenant, action="stop-submitting", exhausted_at=timezone.now())
    (verdict,) = admit(cell, ask(tenant))
    assert verdict is not None
    assert verdict.code == "budget-exhausted"


def test_sums_beyond_64_bits_are_refused_by_name_and_change_nothing(cell, tenant) -> None:
    most = 2**63 - 1
    for _ in range(3):
        rows.grant(tenant, cell, "production", (most, most, most, 0, 0, 0))
    first, second = admit(cell, ask(tenant, change=(most, 1, 0, 0, 0, 0)), ask(tenant, change=(1, 1, 0, 0, 0, 0)))
    assert first is None
    assert second is not None
    assert (second.code, list(second.fields)) == ("too-large", ["limit.cpu"])
    assert used(tenant) == (most, 1, 0, 0, 0, 0)
    (last,) = admit(cell, ask(tenant, change=(0, most - 1, 0, 0, 0, 0)))
    assert last is None
    with transaction.atomic():
        admission.release(cell=cell.name, asks=[ask(tenant, change=(most, most, 0, 0, 0, 0))])
    assert used(tenant) == ZERO


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


def test_nothing_is_admitted_once_a_grant_has_ended_however_many_ask(cell, tenant) -> None:
    grant = rows.grant(tenant, cell, "production", scale(ONE, 1000))
    admitted: list[bool] = []
    after: list[bool] = []
    ended = threading.Event()

    def submit() -> None:
        try:
            for _ in range(2000):
                late = ended.is_set()  # read before the request is made
                (verdict,) = admit(cell, ask(tenant))
                admitted.append(verdict is None)
                if late:
                    after.append(verdict is None)
                if verdict is not None:
                    return
        finally:
            connection.close()

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    while len(admitted) < 30 and any(thread.is_alive() for thread in threads):
        threads[0].join(0.01)
    quota_end(principal=system("test"), quota=grant)
    ended.set()
    for thread in threads:
        thread.join()
    assert 30 <= sum(admitted) < 1000
    assert not any(after)
    assert used(tenant) == scale(ONE, sum(admitted))


def test_racing_growth_and_shrinking_add_up(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", scale(ONE, 4))
    held: list[int] = []

    def work() -> None:
        mine = 0
        try:
            for number in range(30):
                if mine and number % 3 == 2:
                    with transaction.atomic():
                        admission.release(cell=cell.name, asks=[ask(tenant)])
                    mine -= 1
                else:
                    (verdict,) = admit(cell, ask(tenant))
                    mine += verdict is None
        finally:
            held.append(mine)
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used(tenant) == scale(ONE, sum(held))
    assert sum(held) <= 4


def test_bands_that_are_asked_together_are_charged_apart(cell, tenant) -> None:
    rows.grant(tenant, cell, "production", ONE)
    rows.grant(tenant, cell, "batch", ONE)
    other = rows.a_tenant("other")
    rows.grant(other, cell, "batch", ONE)
    verdicts = admit(cell, ask(tenant), ask(tenant, priority=100), ask(other), ask(other, priority=100), ask(tenant))
    assert [verdict is None for verdict in verdicts] == [True, True, False, True, False]
