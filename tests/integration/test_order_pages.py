"""Tests of the pages of orders and approvals: who may act, what is shown before an action, and that it is done once."""

from __future__ import annotations

import datetime as dt
import re
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota import clock
from quota.market.order_sweep import orders_advance
from quota.models import Account, ApprovalRule, Membership, Order, Quota
from quota.pricing.capacity_for_sale import market_of
from quota.vocabulary.money import format_credits
from tests.integration import market_world
from tests.integration.market_world import CREDIT, cores
from tests.integration.portal_world import person, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def market():
    return market_world.make()


def by(approver: str) -> None:
    market_of("cc")
    ApprovalRule.objects.all().delete()
    ApprovalRule.objects.create(rank=1, approver=approver)


def available(market: market_world.Market) -> int:
    return int(Account.objects.get(tenant=market.tenant, kind="available").balance)


def test_a_list_tells_states_and_filters(market) -> None:
    active = market_world.ordered(market.tenant, cores(1), days=30)
    by("sre")
    pending = market_world.ordered(market.tenant, cores(2), days=30)
    client = signed_in("viewer")
    page = client.get("/orders/").text
    assert "waiting for approval" in page
    for state, shown, hidden in (("active", active, pending), ("waiting", pending, active)):
        some = client.get("/orders/", {"state": state, "tenant": "ubar", "cell": "cc"}).text
        assert f'href="/orders/{shown.pk}/"' in some
        assert f'href="/orders/{hidden.pk}/"' not in some
    assert "No order matches" in client.get("/orders/", {"cell": "nowhere"}).text
    assert "There are no orders yet" in signed_in("stranger").get("/orders/").text


def test_an_order_shows_everything_of_it(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30, note="for the sale")
    page = signed_in("buyer").get(f"/orders/{order.pk}/").text
    assert "2 cores, 8 GiB RAM" in page
    assert "for the sale" in page
    assert "rule 100 approved the order" in page
    assert format_credits(order.price) in page
    assert "In force" in page or "in force" in page
    assert f"order {order.pk} begins" in page, "the money"
    seen = signed_in("viewer").get(f"/orders/{order.pk}/").text
    assert "Cancel order" not in seen
    assert f"order {order.pk} begins" not in seen, "who may not see the money does not"


def test_cancelling_says_first_what_comes_back(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    client = signed_in("buyer")
    with clock.at(clock.now() + dt.timedelta(days=10)):
        said = re.search(
            r"<strong>.*?([\d,.]+)(?:</span>)? credits will be returned to the budget",
            client.get(f"/orders/{order.pk}/").text,
        )
        assert said is not None
        before = available(market)
        done = client.post(f"/orders/{order.pk}/cancel/", {"reason": "over"}, follow=True)
    back = available(market) - before
    assert 0 < back < order.price
    assert format_credits(back, places=2) == said[1]
    assert f"{said[1]} credits were returned to the budget" in done.text
    order.refresh_from_db()
    assert (order.state, order.reason, order.refunded) == ("cancelled", "over", back)
    again = client.post(f"/orders/{order.pk}/cancel/", {"reason": "over"})
    assert again.status_code == 409


def test_a_change_is_shown_before_it_is_done_and_done_once(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    client = signed_in("buyer")
    with clock.at(clock.now() + dt.timedelta(days=1)):
        form = client.get(f"/orders/{order.pk}/change/").text
        key = re.search(r'name="key" value="(\w+)"', form)
        until = re.search(r'name="until" value="([\d-]+)"', form)
        assert key is not None
        assert until is not None
        wanted = {"cpu": "4", "ram": "16Gi", "disk": "0", "until": until[1], "key": key[1]}
        before = available(market)
        shown = client.post(f"/orders/{order.pk}/change/", wanted | {"do": "plan"})
        assert "The change needs no approval" in shown.text
        assert (Order.objects.count(), available(market)) == (1, before), "nothing was done yet"
        took = re.search(r"Charged to the budget now</dt><dd>([\d.,]+)<", shown.text)
        done = client.post(f"/orders/{order.pk}/change/", wanted | {"do": "change"})
        again = client.post(f"/orders/{order.pk}/change/", wanted | {"do": "change"})
    new = Order.objects.get(replaces=order)
    assert (done.status_code, done.url) == (302, f"/orders/{new.pk}/")
    assert again.url == done.url
    assert took is not None
    assert format_credits(before - available(market)) == took[1]
    assert tuple(new.amounts)[:2] == (4_000, 2**34)
    page = client.get(f"/orders/{order.pk}/").text
    assert "Newer order (change)" in page
    assert f'href="/orders/{new.pk}/"' in page


@pytest.mark.parametrize(
    "given, field",
    [
        ({"cpu": "-1"}, "cpu"),
        ({"until": "2020-01-01"}, "ends_at"),
        ({"until": "soon"}, "until"),
        ({"cpu": "0", "ram": "0"}, "cpu"),
        ({"price": "1"}, "price"),
        ({}, "amounts"),
    ],
)
def test_a_change_that_can_not_be_is_reported(market, given, field) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    same = {"cpu": "2", "ram": "8Gi", "disk": "0", "until": _last(order), "do": "change", "key": "k"}
    answer = signed_in("buyer").post(f"/orders/{order.pk}/change/", same | given)
    assert answer.status_code in (409, 422)
    assert f"<code>{field}</code>" in answer.text
    assert Order.objects.count() == 1


def test_renewal_is_switched(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    client = signed_in("buyer")
    assert "will be renewed" in client.post(f"/orders/{order.pk}/renew/", {"renew": "1"}, follow=True).text
    order.refresh_from_db()
    assert order.renew
    assert "The order will be renewed before that time" in client.get(f"/orders/{order.pk}/").text
    assert "not be renewed" in client.post(f"/orders/{order.pk}/renew/", {"renew": "0"}, follow=True).text


def test_an_order_is_handed_to_a_team_that_one_buys_for_too(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    client = signed_in("buyer")
    refused = client.post(f"/orders/{order.pk}/transfer/", {"tenant": "other"})
    assert refused.status_code == 404
    both = person("both")
    for tenant in (market.tenant, market.other):
        Membership.objects.create(tenant=tenant, user=both, role="buyer")
    market_world.budget_grant(principal=market_world.ME, tenant=market.other, amount=100 * CREDIT)
    done = signed_in("both").post(f"/orders/{order.pk}/transfer/", {"tenant": "other"})
    new = Order.objects.get(tenant=market.other)
    assert (done.status_code, done.url) == (302, f"/orders/{new.pk}/")
    assert new.replaced_as == "transfer"


def test_an_owner_decides_what_a_rule_leaves_to_owners_but_not_on_their_own_orders(market) -> None:
    by("owner")
    asked = market_world.ordered(market.tenant, cores(2), days=30, note="for the sale")
    own = market_world.ordered(market.tenant, cores(1), days=30, by="owner")
    page = signed_in("owner").get("/approvals/").text
    assert f"Approve order {asked.pk}" in page
    assert f"Approve order {own.pk}" not in page
    assert "for the sale" in page
    for name in ("buyer", "viewer"):
        client = signed_in(name)
        assert "No order waits for your decision" in client.get("/approvals/").text
        assert client.post(f"/orders/{asked.pk}/approve/").status_code == 403
    assert signed_in("owner").post(f"/orders/{own.pk}/approve/").status_code == 403
    done = signed_in("owner").post(f"/orders/{asked.pk}/approve/", {"back": "approvals"})
    assert (done.status_code, done.url) == (302, "/approvals/")
    asked.refresh_from_db()
    assert (asked.state, asked.decided_by) == ("active", "owner")
    assert Quota.objects.filter(order=asked).exists()


def test_an_sre_decides_what_no_rule_leaves_to_others(market) -> None:
    by("sre")
    order = market_world.ordered(market.tenant, cores(2), days=30)
    assert "No order waits for your decision" in signed_in("owner").get("/approvals/").text
    assert signed_in("owner").post(f"/orders/{order.pk}/approve/").status_code == 403
    sre = signed_in("sre")
    shown = sre.get(f"/orders/{order.pk}/").text
    assert "buyer waits for your decision" in shown
    assert "188 cores" in shown, "what is left of the cell then"
    silent = sre.post(f"/orders/{order.pk}/reject/", {"reason": " "})
    assert silent.status_code == 422
    assert "give a reason" in silent.text
    before = available(market)
    assert sre.post(f"/orders/{order.pk}/reject/", {"reason": "too much"}).status_code == 302
    assert available(market) == before + order.price
    assert "too much" in signed_in("buyer").get(f"/orders/{order.pk}/").text
    late = sre.post(f"/orders/{order.pk}/approve/")
    assert late.status_code == 409


def test_actions_need_a_post(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    for action in ("approve", "reject", "cancel", "renew", "transfer"):
        assert signed_in("buyer").get(f"/orders/{order.pk}/{action}/").status_code == 405
    for number in ("0", "99999999999999999999"):
        assert signed_in("buyer").get(f"/orders/{number}/").status_code == 404


def test_grants_say_when_they_end_and_how_long_they_count(market) -> None:
    order = market_world.ordered(market.tenant, cores(2), days=30)
    client = signed_in("viewer")
    assert "in force" in client.get("/quota/").text
    for days, told in ((26, "ends soon"), (31, "running jobs may use the quota until"), (34, "are rejected")):
        with clock.at(order.ends_at + dt.timedelta(days=days - 30)):
            orders_advance(clock.now())
            assert told in client.get("/quota/").text, days
            if days == 31:
                assert "Running jobs may use its quota until" in client.get(f"/orders/{order.pk}/").text


def test_the_calendar_shows_each_band_and_resource(market) -> None:
    market_world.sold(market.other, cores(95), clock.now() - dt.timedelta(days=1), clock.now() + dt.timedelta(days=3))
    page = signed_in("viewer").get("/quota/", {"cell": "cc", "resource": "cpu"}).text
    row = re.search(r'<th scope="row">production</th>(.*?)</tr>', page, re.S)
    assert row is not None
    percents = [int(value) for value in re.findall(r">(\d+)</td>", row[1])]
    assert percents[:2] == [50, 50]
    assert (len(percents), percents[-1]) == (28, 100)
    assert signed_in("viewer").get("/quota/", {"cell": "x", "resource": "y"}).status_code == 200


def test_home_tells_what_waits_what_ends_and_what_is_left(market) -> None:
    before = signed_in("owner").get("/").text
    assert "ordered by" not in before
    assert "is not renewed" not in before
    assert "2,000.00" in before
    order = market_world.ordered(market.tenant, cores(3), days=5)
    by("owner")
    market_world.ordered(market.tenant, cores(1), days=40)
    page = signed_in("owner").get("/").text
    assert "1 core, 4 GiB RAM for 28.80 credits, ordered by buyer for tenant ubar" in page
    assert f'<a href="/orders/{order.pk}/">Quota of 3 cores, 12 GiB RAM</a> for tenant ubar in band production' in page
    assert "Renew the order" in page
    seen = signed_in("viewer").get("/").text
    assert "ordered by" not in seen
    assert "Renew the order" not in seen
    assert "Budget left" not in seen


@pytest.mark.parametrize("path", ["/", "/orders/", "/approvals/", "/quota/"])
def test_pages_ask_as_often_whatever_they_show(market, path) -> None:
    by("owner")
    client = signed_in("owner")
    market_world.ordered(market.tenant, cores(1), days=30)

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(path).status_code == 200
        return len(queries)

    asked()
    few = asked()
    for number in range(8):
        market_world.ordered(market.tenant, cores(1), days=30 + number)
    assert asked() == few


def _last(order: Order) -> str:
    return (order.ends_at - dt.timedelta(microseconds=1)).astimezone(ZoneInfo("Europe/Berlin")).date().isoformat()
