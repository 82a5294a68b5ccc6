"""Tests of the shop: who may look and who may buy, a forged form, and two tabs that order only once."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota import clock
from quota.billing.budgets import budget_set
from quota.models import Account, Order, Quote
from quota.pricing.capacity_for_sale import market_set
from tests.integration import market_world
from tests.integration.market_world import CREDIT
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
WISH = {"tenant": "ubar", "cell": "cc", "band": "production", "cpu": "2", "ram": "8Gi", "disk": "20Gi"}


@pytest.fixture
def market():
    return market_world.make()


def day(number: int) -> str:
    return (timezone.now() + dt.timedelta(days=number)).date().isoformat()


def wish(**changes: str) -> dict[str, str]:
    return WISH | {"from": day(2), "until": day(31)} | changes


def quoted(name: str = "buyer", **changes: str) -> Quote:
    answer = signed_in(name).post("/shop/", wish(**changes))
    assert answer.status_code == 302, re.sub(r"\s+", " ", answer.text)[:3000]
    return Quote.objects.order_by("-id").first()


def test_the_first_look_shows_a_price(market) -> None:
    page = signed_in("buyer").get("/shop/").text
    assert re.search(r'<p class="price"><strong>.*?[1-9]', page)
    assert "1 core, 4 GiB RAM, 10 GiB disk" in page
    assert "available" in page
    assert "2,000.00" in page, "the budget"
    assert "in band best-effort" in page, "a cheaper way"


def test_an_order_is_priced_quoted_and_placed(market) -> None:
    row = quoted()
    client = signed_in("buyer")
    page = client.get(f"/shop/quotes/{row.pk}/")
    assert "2 cores, 8 GiB RAM, 20 GiB disk" in page.text
    assert "This price is valid until" in page.text
    done = client.post(f"/shop/quotes/{row.pk}/", {"price": row.price, "note": "for the sale"}, follow=True)
    order = Order.objects.get()
    assert done.redirect_chain[-1][0] == f"/orders/{order.pk}/"
    assert (order.price, order.quote_id, order.note, order.placed_by) == (row.price, row.pk, "for the sale", "buyer")
    assert order.state == "approved", "small orders need nobody"
    held = Account.objects.get(tenant=market.tenant, kind="held")
    assert held.balance == row.price


def test_a_viewer_looks_but_does_not_buy(market) -> None:
    client = signed_in("viewer")
    page = client.get("/shop/").text
    assert '<p class="price">' in page
    assert "You may not buy quota for ubar" in page
    assert "Continue to the order" not in page
    assert "2,000.00" not in page, "budgets are not everybody's business"
    assert client.post("/shop/", wish()).status_code == 403
    row = quoted()
    assert client.get(f"/shop/quotes/{row.pk}/").status_code == 404
    assert client.post(f"/shop/quotes/{row.pk}/", {"price": row.price}).status_code == 404
    assert not Order.objects.exists()


def test_strangers_see_nothing_of_it(market) -> None:
    row = quoted()
    client = signed_in("stranger")
    assert client.get(f"/shop/quotes/{row.pk}/").status_code == 404
    answer = client.post("/shop/", wish())
    assert answer.status_code == 422
    assert "not one of your tenants" in answer.text
    order = market_world.ordered(market.tenant, market_world.cores(1), days=30)
    for path in ("", "change/"):
        assert client.get(f"/orders/{order.pk}/{path}").status_code == 404
    for path in ("approve", "reject", "cancel", "renew", "transfer"):
        assert client.post(f"/orders/{order.pk}/{path}/", {"reason": "x"}).status_code == 404
    assert f"/orders/{order.pk}/" not in client.get("/orders/").text
    assert not Quote.objects.exclude(pk=row.pk).exists()


@pytest.mark.parametrize(
    "field, value, what",
    [
        ("cpu", "-4", "is not an amount"),
        ("cpu", "9223372036854775808", "this is more than any cell has"),
        ("ram", "9007199254740993", "this is more than any cell has"),
        ("cpu", "1e3", "is not an amount"),
        ("cpu", "٣", "is not an amount"),
        ("from", "2020-01-01", "is in the past"),
        ("from", "9999-12-31", "give a day from 2000-01-01 to 9998-12-31"),
        ("from", "2026-02-30", "is not a day"),
        ("until", "2020-01-01", "before the first day"),
        ("until", "2999-01-01", "at most 366"),
        ("cell", "elsewhere", "no such cell"),
        ("band", "gold", "no such band"),
        ("tenant", "other", "not one of your tenants"),
    ],
)
def test_what_is_wrong_stands_by_its_field_and_nothing_is_quoted(market, field, value, what) -> None:
    client = signed_in("buyer")
    for answer, status in (
        (client.get("/shop/", wish(**{field: value})), 200),
        (client.post("/shop/", wish(**{field: value})), 422),
    ):
        assert answer.status_code == status
        found = re.search(rf'id="error-{field}">([^<]*)<', answer.text)
        assert found is not None, field
        assert what in found[1]
    assert not Quote.objects.exists()


@pytest.mark.parametrize("more", [{"price": "1"}, {"amounts": "9"}, {"tenant": "other"}, {"quote": "7"}])
def test_a_form_that_was_tampered_with_orders_nothing(market, more) -> None:
    row = quoted()
    answer = signed_in("buyer").post(f"/shop/quotes/{row.pk}/", {"price": row.price} | more)
    assert answer.status_code in (409, 422)
    assert f"<code>{next(iter(more))}</code>" in answer.text
    assert not Order.objects.exists()
    assert Account.objects.get(tenant=market.tenant, kind="available").balance == 2_000 * CREDIT


def test_a_quote_of_another_tenant_is_not_found(market) -> None:
    row = quoted()
    Quote.objects.filter(pk=row.pk).update(tenant=market.other)
    client = signed_in("buyer")
    assert client.post(f"/shop/quotes/{row.pk}/", {"price": row.price}).status_code == 404
    assert client.post("/shop/quotes/99999999999999999999/", {"price": 1}).status_code == 404
    assert not Order.objects.exists()


def test_two_tabs_and_a_double_click_order_once(market) -> None:
    row = quoted()
    first, second = signed_in("buyer"), signed_in("buyer")
    form = {"price": row.price, "note": "for the sale"}
    one = first.post(f"/shop/quotes/{row.pk}/", form)
    two = second.post(f"/shop/quotes/{row.pk}/", form)
    assert (one.status_code, one.url) == (two.status_code, two.url)
    order = Order.objects.get()
    assert one.url == f"/orders/{order.pk}/"
    assert second.get(f"/shop/quotes/{row.pk}/").url == one.url, "and going back leads to it"


def test_the_same_once_more_has_to_be_meant(market) -> None:
    client = signed_in("buyer")
    for _tab in range(2):
        row = quoted()
        answer = client.post(f"/shop/quotes/{row.pk}/", {"price": row.price})
    assert answer.status_code == 409
    assert "has already ordered the same quota" in answer.text
    assert Order.objects.count() == 1
    assert client.post(f"/shop/quotes/{row.pk}/", {"price": row.price, "again": "1"}).status_code == 302
    assert Order.objects.count() == 2


def test_a_price_holds_as_long_as_it_says(market) -> None:
    row = quoted()
    later = row.valid_until + dt.timedelta(seconds=1)
    client = signed_in("buyer")
    with clock.at(later):
        assert "This price expired " in client.get(f"/shop/quotes/{row.pk}/").text
        answer = client.post(f"/shop/quotes/{row.pk}/", {"price": row.price})
    assert answer.status_code == 409
    assert "request a new quote" in answer.text
    assert not Order.objects.exists()


def test_over_budget_is_reported_with_what_is_missing_and_whom_to_ask(market) -> None:
    page = signed_in("buyer").get("/shop/", wish(cpu="100", ram="400Gi", until=day(180))).text
    assert "credits more than are left in the budget of ubar" in page
    assert "The budget is enough for" in page
    assert "owner" in page
    assert re.search(r'type="submit" disabled>Continue to the order', page)
    row = quoted(cpu="100", ram="400Gi", until=day(180))
    answer = signed_in("buyer").post(f"/shop/quotes/{row.pk}/", {"price": row.price})
    assert answer.status_code == 422
    assert "are missing" in answer.text
    assert not Order.objects.exists()


def test_a_month_that_has_no_room_is_reported_before_anything_is_ordered(market) -> None:
    client = signed_in("buyer")
    assert "The budget of ubar for" not in client.get("/shop/", wish()).text
    budget_set(principal=market_world.ME, tenant=market.tenant, monthly=CREDIT, alerts=(), action="stop-buying")
    page = client.get("/shop/", wish()).text
    assert "is 1.00 credits, of which 1.00 are left" in page
    assert re.search(r'type="submit" disabled>Continue to the order', page)
    row = quoted()
    assert client.post(f"/shop/quotes/{row.pk}/", {"price": row.price}).status_code == 422
    assert not Order.objects.exists()


def test_what_is_not_left_is_reported_with_the_first_day_it_is(market) -> None:
    now = timezone.now()
    market_world.sold(market.other, market_world.cores(150), now, now + dt.timedelta(days=9, hours=12))
    page = signed_in("buyer").get("/shop/", wish(cpu="80", ram="8Gi")).text
    assert "The cell does not have enough free quota: 80 cores requested, but only 40 cores free." in page
    assert re.search(r'id="error-cpu">the cell has only 40 cores free', page)
    begin = re.search(r'href="([^"]*)">choose this first day', page)
    assert begin is not None
    after = signed_in("buyer").get(begin[1].replace("&amp;", "&")).text
    assert "enough free quota" not in after
    assert '<span class="tag tag-good">available</span>' in after
    less = re.search(r'href="([^"]*)">Choose these amounts', page)
    assert less is not None
    assert "40 cores, 8 GiB RAM" in signed_in("buyer").get(less[1].replace("&amp;", "&")).text


def test_what_was_not_asked_for_is_not_called_short(market) -> None:
    now = timezone.now()
    market_world.sold(market.other, (1000, 900 * 2**30, 0, 0, 0, 0), now, now + dt.timedelta(days=9))
    page = signed_in("buyer").get("/shop/", wish(cpu="500", ram="", disk="")).text
    shortage = re.search(r"enough free quota: [^<]*", page)
    assert shortage is not None
    assert "cores" in shortage[0]
    assert "memory" not in shortage[0]


def test_an_alternative_is_taken_over_with_one_click(market) -> None:
    page = signed_in("buyer").get("/shop/", wish()).text
    link = re.search(r'href="([^"]*)" aria-label="Choose this offer: in band batch"', page)
    assert link is not None
    taken = signed_in("buyer").get(link[1].replace("&amp;", "&")).text
    assert re.search(r'<option value="batch" selected>', taken)
    assert "2 cores, 8 GiB RAM, 20 GiB disk · batch" in taken


def test_a_cell_that_sells_nothing_says_so(market) -> None:
    market_set(principal=market_world.ME, cell="cc", selling=False)
    page = signed_in("buyer").get("/shop/", wish()).text
    assert "Cell cc sells no quota now" in page
    assert "in cell dd" in page


def test_like_this_job_takes_what_the_job_asks_for(market) -> None:
    job = market.world.job
    answer = signed_in("buyer").get("/shop/", wish(like=str(job.pk), fill="1"))
    assert answer.status_code == 302
    assert "cpu=300m&ram=192Mi&disk=192Mi" in answer.url
    for like in ("x", "999999", "9" * 40):
        assert signed_in("buyer").get("/shop/", wish(like=like, fill="1")).status_code == 404


def test_the_shop_asks_as_often_whatever_was_sold(market) -> None:
    client = signed_in("buyer")

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get("/shop/", wish()).status_code == 200
        return len(queries)

    asked()
    few = asked()
    now = timezone.now()
    for number in range(12):
        begin = now + dt.timedelta(days=number)
        market_world.sold(market.other, market_world.cores(1), begin, begin + dt.timedelta(days=5))
    assert asked() == few
