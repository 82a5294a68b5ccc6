"""Tests of prices: price lists never change, and a quote holds for a time and only for what it quotes."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.admission import published_capacity
from quota.models import Market, Notice, Order, OrderState, PriceList, PriorityBand, Quota, Quote, Record
from quota.pricing.price_formula import part_of
from quota.pricing.price_lists import (
    DEFAULT_BASE,
    price_list_at,
    price_list_set,
    price_quoted,
    quote_make,
    quote_preview,
)
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.money import CREDIT as MICRO
from quota.vocabulary.permissions import Principal, Role, system
from quota.vocabulary.resources import RAM, ZERO, as_mapping
from tests.integration import rows

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)
MONTH = dt.timedelta(days=30)
ME = system("test")
CORE = (1000, 0, 0, 0, 0, 0)
ROOM = (100_000, 400 * 2**30, 2**42, 2**32, 8_000, 10_000)


@pytest.fixture(autouse=True)
def noon():
    with clock.at(NOON):
        yield


@pytest.fixture
def tenant():
    rows.a_cell()
    published_capacity.publish(cell="cc", capacity=ROOM, revision=1)
    return rows.a_tenant("ubar")


def buyer(role: Role = Role.BUYER, tenant: str = "ubar") -> Principal:
    return Principal(name="ann", roles={tenant: role})


def ask(tenant, **changed: object) -> dict:
    return {
        "principal": buyer(),
        "tenant": tenant,
        "cell": "cc",
        "band": "production",
        "amounts": CORE,
        "starts_at": NOON,
        "ends_at": NOON + MONTH,
        **changed,
    }


def bought(tenant, amounts, *, band: str = "production", starts_at=NOON, ends_at=None) -> Quota:
    return Quota.objects.create(
        tenant=tenant,
        cell="cc",
        band=PriorityBand.objects.get(name=band),
        amounts=list(amounts),
        starts_at=starts_at,
        ends_at=ends_at,
        grace_until=ends_at,
    )


def flat(**changed: object) -> PriceList:
    given: dict = {"principal": ME, "cell": "cc", "base": {"cpu": MICRO}, "curve": [], **changed}
    return price_list_set(**given)


def test_a_new_cell_sells_at_once_at_the_default_list(tenant) -> None:
    quote = quote_preview(**ask(tenant))
    prices = quote.prices
    assert (prices.version, prices.base, prices.usage) == (0, DEFAULT_BASE, {})
    assert quote.price == sum(part["amount"] for part in quote.parts) == 720 * DEFAULT_BASE["cpu"]
    assert PriceList.objects.get() == price_list_at("cc", NOON - 9 * MONTH) == prices


def test_a_new_list_is_in_force_from_its_moment_and_the_past_stays(tenant) -> None:
    tomorrow = NOON + dt.timedelta(days=1)
    row = flat(valid_from=tomorrow, note="spring")
    assert row.version == 1
    assert price_list_at("cc", tomorrow - dt.timedelta(microseconds=1)).version == 0
    assert price_list_at("cc", tomorrow) == row
    # A later version that begins with an earlier one takes its place.
    assert price_list_at("cc", flat(valid_from=tomorrow).valid_from).version == 2
    record = Record.objects.filter(kind="prices.set").latest("revision")
    assert (record.data["version"], record.data["base"]) == (2, {"cpu": MICRO})


def test_buyers_are_notified_of_new_prices(tenant) -> None:
    quote = quote_make(**ask(tenant))
    for name, state in (("ubar", OrderState.ACTIVE), ("ubar", OrderState.PENDING), ("over", OrderState.EXPIRED)):
        Order.objects.create(
            tenant=rows.a_tenant(name),
            cell="cc",
            band=quote.band,
            amounts=quote.amounts,
            starts_at=quote.starts_at,
            ends_at=quote.ends_at,
            state=state.value,
            price=1,
            prices=quote.prices,
            placed_by="ann",
            created_at=NOON,
        )
    flat()
    (notice,) = Notice.objects.filter(kind="price.changed")
    assert (notice.tenant, notice.data["version"]) == (tenant, 1)


@pytest.mark.parametrize(
    "changed, field",
    [
        ({"valid_from": NOON - dt.timedelta(seconds=1)}, "valid_from"),
        ({"base": {"gpu": 1}}, "base.gpu"),
        ({"usage": {"cpu": -1}}, "usage.cpu"),
        ({"curve": [[0, 5], [1, 4]]}, "curve.1"),
        ({"note": "x" * 201}, "note"),
        ({"valid_from": dt.datetime(2028, 1, 1)}, "valid_from"),
    ],
    ids=["past", "resource", "negative", "falling", "long", "naive"],
)
def test_a_list_that_is_none_is_refused_and_changes_nothing(tenant, changed, field) -> None:
    with pytest.raises(Rejected) as refused:
        flat(**changed)
    assert list(refused.value.fields) == [field]
    assert not PriceList.objects.exists()


def test_only_who_runs_the_platform_sets_prices_and_only_of_cells_there_are(tenant) -> None:
    with pytest.raises(Forbidden):
        flat(principal=buyer(Role.OWNER))
    with pytest.raises(NotFound, match="give one of cc"):
        flat(cell="dd")
    assert not PriceList.objects.exists()


def test_prices_rise_with_what_is_sold_and_only_of_the_resource_that_is(tenant) -> None:
    flat(curve=[[500, 1000], [1000, 3000]])
    assert quote_preview(**ask(tenant)).price == 720 * MICRO
    other = (0, *ROOM[1:])
    bought(tenant, other)
    assert quote_preview(**ask(tenant)).price == 720 * MICRO
    bought(tenant, (71_250, *ZERO[1:]))  # three quarters of what may be sold
    quote = quote_preview(**ask(tenant))
    (part,) = map(part_of, quote.parts)
    assert part.sold_milli == 750
    assert 2000 < part.scarcity_milli < 2050
    assert quote.price == part.amount > 720 * MICRO * 2


def test_bands_of_prod_are_scarce_together_and_others_by_themselves(tenant) -> None:
    bought(tenant, (95_000, *ZERO[1:]), band="monitoring")
    ((part,), (other,)) = (
        map(part_of, quote_preview(**ask(tenant, band=band)).parts) for band in ("production", "batch")
    )
    assert (part.sold_milli, other.sold_milli) == (1000, 0)


def test_a_quote_says_what_it_is_for_and_how_long_it_holds(tenant) -> None:
    Market.objects.create(cell="cc", quote_minutes=15)
    quote = quote_make(**ask(tenant, amounts={"cpu": 1, "ram": "2Gi"}))
    assert quote.valid_until == NOON + dt.timedelta(minutes=15)
    assert quote.amounts[RAM] == 2**31
    assert quote.price == sum(part["amount"] for part in quote.parts)
    record = Record.objects.get(kind="quote.made")
    assert (record.tenant, record.data["amounts"]) == ("ubar", as_mapping(quote.amounts))


def taken(made: Quote, **changed: object) -> Order:
    """Return an unsaved order for the same amounts and time as a quote, at its price. `changed`: fields with other
    values.
    """
    given = {
        "tenant": made.tenant,
        "quote": made.pk,
        "cell": made.cell,
        "band": made.band,
        "amounts": made.amounts,
        "starts_at": made.starts_at,
        "ends_at": made.ends_at,
        **changed,
    }
    number = given.pop("quote")
    if isinstance(given["band"], str):
        given["band"] = PriorityBand.objects.get(name=given["band"])
    order = Order(**given)
    price_quoted(order, number)
    return order


def test_a_quote_holds_though_prices_rise_until_it_ends(tenant) -> None:
    quote = quote_make(**ask(tenant))
    flat(base={"cpu": 9 * MICRO})
    assert quote_preview(**ask(tenant)).price > quote.price
    with clock.at(quote.valid_until - dt.timedelta(microseconds=1)):
        assert taken(quote).price == quote.price
    with clock.at(quote.valid_until), pytest.raises(Conflict, match="request a new quote") as refused:
        taken(quote)
    assert refused.value.code == "quote-expired"


@pytest.mark.parametrize(
    "changed",
    [
        {"amounts": [1001, 0, 0, 0, 0, 0]},
        {"band": "batch"},
        {"cell": "dd"},
        {"starts_at": NOON + dt.timedelta(seconds=1)},
        {"ends_at": NOON + 2 * MONTH},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_quote_is_used_only_for_exactly_what_it_quotes(tenant, changed) -> None:
    quote = quote_make(**ask(tenant))
    with pytest.raises(Rejected, match="request a new quote") as refused:
        taken(quote, **changed)
    assert (refused.value.code, list(refused.value.fields)) == ("quote-mismatch", list(changed))


def test_a_quote_is_its_tenants_and_for_one_order(tenant) -> None:
    quote = quote_make(**ask(tenant))
    with pytest.raises(NotFound):
        taken(quote, tenant=rows.a_tenant("other"))
    with pytest.raises(NotFound):
        taken(quote, quote=quote.pk + 1)
    order = Order.objects.create(
        tenant=tenant,
        cell="cc",
        band=quote.band,
        amounts=quote.amounts,
        starts_at=quote.starts_at,
        ends_at=quote.ends_at,
        state=OrderState.PENDING.value,
        price=quote.price,
        prices=quote.prices,
        quote=quote,
        placed_by="ann",
        created_at=NOON,
    )
    with pytest.raises(Conflict) as refused:
        taken(quote)
    assert (refused.value.code, refused.value.figures["order"]) == ("quote-used", order.pk)


@pytest.mark.parametrize(
    "changed, error, field",
    [
        ({"band": "golden"}, NotFound, "band"),
        ({"cell": "dd"}, NotFound, "cell"),
        ({"amounts": ZERO}, Rejected, "amounts"),
        ({"amounts": (1,)}, Rejected, "amounts"),
        ({"amounts": (-1, 0, 0, 0, 0, 0)}, Rejected, "amounts"),
        ({"amounts": {"cpu": "many"}}, Rejected, "amounts"),
        ({"amounts": (2**63, 0, 0, 0, 0, 0)}, Rejected, "amounts"),
        ({"amounts": (2**63 - 1, 0, 0, 0, 0, 0)}, Rejected, "amounts.cpu"),
        ({"ends_at": NOON}, Rejected, "ends_at"),
        ({"starts_at": NOON - 2 * MONTH, "ends_at": NOON}, Rejected, "ends_at"),
        ({"ends_at": dt.datetime(2028, 1, 1)}, Rejected, "ends_at"),
    ],
    ids=["band", "cell", "nothing", "short", "negative", "text", "wide", "dear", "backward", "over", "naive"],
)
def test_what_can_not_be_quoted_is_refused_by_its_field(tenant, changed, error, field) -> None:
    with pytest.raises(error) as refused:
        quote_make(**ask(tenant, **changed))
    assert list(refused.value.fields) == [field]
    assert not Quote.objects.exists()


def test_only_a_buyer_gets_a_quote(tenant) -> None:
    for principal in (buyer(Role.VIEWER), buyer(tenant="other")):
        with pytest.raises(Forbidden):
            quote_make(**ask(tenant, principal=principal))
