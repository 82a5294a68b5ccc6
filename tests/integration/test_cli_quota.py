"""Tests of `borgctl` for the shop, money and notices, against a real portal."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import records
from quota.market.orders import order_place
from quota.models import NoticeChannel, Order, Quote, Tenant
from quota.notifications.notices import notify
from quota.vocabulary.permissions import system
from tests.integration import cli_world, market_rows, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)
TODAY = dt.datetime.now(dt.UTC).date()
SIZE = ("--band", "production", "--cpu", "2")


@pytest.fixture
def ubar() -> Tenant:
    rows.a_cell()
    market_rows.a_selling_cell()
    return market_rows.a_rich_tenant()


@pytest.fixture
def ann(tmp_path, shared_portal, ubar) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=ubar)


@pytest.fixture
def sre(tmp_path, shared_portal, ubar) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "root", sre=True)


def test_bands_and_prices_are_reported(ann) -> None:
    assert "production" in ann.out("quota", "bands")
    head, row = ann.out("quota", "prices").splitlines()
    assert head.split()[:3] == ["CELL", "VERSION", "RESOURCE"]
    assert row.split()[:5] == ["cc", "1", "cpu", "core", "1.00"]
    assert {one["name"] for one in ann.json("quota", "bands")} >= {"production", "batch"}
    assert ann.json("quota", "prices")[0]["base"] == {"cpu": 1_000_000}


def test_a_price_is_reported_with_its_parts_and_keeps_nothing(ann) -> None:
    first = (TODAY + dt.timedelta(days=10)).isoformat()
    told = ann.out("quota", "price", *SIZE, "--from", first, "--days", "10")
    assert f"cpu 2 at production in cc for ubar, {first} 00:00:00 UTC to " in told
    assert "480.00" in told
    assert told.splitlines()[-1].startswith("Price: 480.00 credits, held until ")
    answer = ann.json("quota", "price", *SIZE, "--from", first, "--until", first)
    assert (answer["price"], answer["amounts"]["cpu"]) == (48_000_000, 2000)
    assert not Quote.objects.exists()


def test_days_are_those_of_the_tenant(ann, ubar) -> None:
    Tenant.objects.filter(pk=ubar.pk).update(time_zone="Asia/Tokyo")
    first = (TODAY + dt.timedelta(days=10)).isoformat()
    answer = ann.json("quota", "price", *SIZE, "--from", first, "--days", "1")
    begin = dt.datetime.fromisoformat(answer["starts_at"])
    assert begin.astimezone(dt.UTC).hour == 15
    assert answer["price"] == 48_000_000


def test_as_much_as_a_job_asks_for(ann, ubar) -> None:
    rows.grant(ubar, rows.Cell.objects.get(), "production")
    ann.out("submit", ann.file(world.a_file()))
    answer = ann.json("quota", "price", "--like", "web", "--days", "1")
    assert {name: value for name, value in answer["amounts"].items() if value} == {
        "cpu": 300,
        "ram": 3 * 64 * 2**20,
        "disk": 3 * 64 * 2**20,
    }
    assert (answer["band"], answer["cell"]) == ("production", "cc")
    assert ann.json("quota", "price", "--like", "web", "--cpu", "1", "--days", "1")["amounts"]["cpu"] == 1000


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--band", "production", "--days", "1"), 2, "no quantity is given: use an option such as --cpu"),
        (("--cpu", "1", "--days", "1"), 2, "no band is given: use --band"),
        (SIZE, 2, "use --until or --days"),
        ((*SIZE, "--days", "0"), 2, "greater than or equal to 1"),
        ((*SIZE, "--until", "soon"), 2, "write a day like 2027-01-31"),
        ((*SIZE, "--until", "2020-01-01"), 2, "before it begins"),
        (("--band", "production", "--cpu", "much", "--days", "1"), 1, "is not a quantity of cpu"),
        (("--band", "loud", "--cpu", "1", "--days", "1"), 1, "loud"),
        ((*SIZE, "--days", "1", "--cell", "nowhere"), 1, "nowhere"),
        ((*SIZE, "--days", "1", "--tenant", "other"), 1, "other"),
        (("--like", "nobody", "--days", "1"), 1, "nobody"),
    ],
    ids=[
        "no-size",
        "no-band",
        "no-end",
        "no-day",
        "no-date",
        "past",
        "no-number",
        "no-such-band",
        "no-cell",
        "not-mine",
        "no-job",
    ],
)
def test_what_cant_be_priced_is_reported(ann, words, status, told) -> None:
    assert told in ann.failing("quota", "price", *words, status=status)[0]


def test_what_jobs_used(ann) -> None:
    assert "Your tenant had no jobs in this cell and band" in ann.out("quota", "usage", "--band", "production")
    assert ann.json("quota", "usage", "--band", "production", "--days", "3")["hours"] == 0


def bought(tenant: Tenant) -> Order:
    ends_at = dt.datetime.combine(TODAY + dt.timedelta(days=3), dt.time(), dt.UTC)
    return order_place(
        principal=system("test"), tenant=tenant, cell="cc", band="production", amounts={"cpu": 1}, ends_at=ends_at
    )


def test_money(ann, sre, ubar) -> None:
    bought(ubar)
    assert "ubar" in ann.out("quota", "balance")
    assert ann.json("quota", "balance")[0]["tenant"] == "ubar"
    assert "monthly         no limit" in ann.out("quota", "budget")
    set_ = ("--monthly", "5,000", "--alert", "80", "--alert", "100", "--action", "stop-buying")
    assert "monthly         5,000.00 credits" in ann.out("quota", "budget", *set_)
    assert ann.json("quota", "budget", "--monthly", "none")["alerts"] == [80, 100]  # alerts are not changed
    before = ann.json("quota", "budget")["available"]
    sre.out("quota", "budget", "--tenant", "ubar", "--grant", "12.5", "--text", "more")
    assert ann.json("quota", "budget")["available"] - before == 12_500_000
    assert "may not" in ann.failing("quota", "budget", "--grant", "1")[0]
    ann.failing("quota", "budget", "--monthly", "much", status=2)
    ann.failing("quota", "budget", "--hand-down", "1", status=2)
    ledger = ann.out("quota", "ledger")
    assert "charge" in ledger
    assert "12.50" in ledger
    assert all(sum(one["amount"] for one in row["entries"]) == 0 for row in ann.json("quota", "ledger"))
    assert len(ann.json("quota", "ledger", "--limit", "1")) == 1


def test_invoices_and_costs(ann, ubar) -> None:
    bought(ubar)
    assert "No invoices yet" in ann.out("quota", "invoices")
    draft = ann.out("quota", "invoice")
    assert draft.startswith("Preview of the invoice of ubar for ")
    assert draft.splitlines()[-1].startswith("Total: ")
    ann.failing("quota", "invoice", "--csv", status=2)
    ann.failing("quota", "invoice", "--month", "soon", status=2)
    assert ann.failing("quota", "invoice", "none-such")[1]["code"] == "not-found"
    assert ann.out("quota", "costs", "--csv").startswith("job,quota,unused,usage,total")
    assert "BAND" in ann.out("quota", "costs", "--by", "band").splitlines()[0] or "Nothing" in ann.out("quota", "costs")
    assert ann.failing("quota", "costs", "--by", "colour")[1]["code"] == "invalid"


def test_notices_are_read(ann, sre, ubar) -> None:
    with records.write(system("test")) as entry:
        notify(entry, ubar, "order.approved", "Order 7 was approved", "It was.")
        notify(entry, ubar, "budget.alert", "Four fifths are spent", "So it is.", level="warning")
        notify(entry, None, "shortfall.found", "Too little", "Alas.")
    told = ann.out("notices", "list")
    assert [line.split()[-1] for line in told.splitlines()[1:3]] == ["spent", "approved"]
    assert "Too little" in sre.out("notices", "list")
    assert [row["kind"] for row in ann.json("notices", "list", "--level", "warning")] == ["budget.alert"]
    assert ann.json("notices", "list", "--unread", "--read")[0]["subject"] == "Four fifths are spent"
    assert ann.out("notices", "list", "--unread") == "No notifications.\n"
    assert "order.approved" in ann.out("notices", "kinds")
    assert ann.failing("notices", "list", "--tenant", "other")[1]["code"] == "not-found"


def test_channels_are_looked_after(ann, sre, ubar) -> None:
    assert "no channel was added" in ann.out("notices", "add", "team@ubar.example", "--dry-run")
    assert "Test it with" in ann.out("notices", "add", "team@ubar.example", "--kind", "order")
    hook = ann.json("notices", "add", "https://hooks.example/in", "--level", "warning")
    assert (hook["kind"], hook["level"]) == ("webhook", "warning")
    number = str(hook["id"])
    shown = ann.out("notices", "channels")
    assert "team@ubar.example" in shown
    assert "https://hooks.example/in" in shown
    (secret,) = ann.out("notices", "secret", number).split()
    assert ann.out("notices", "secret", number, "--rotate").split()[1] == secret
    ann.out("notices", "test", number)
    assert "notices.test" in ann.out("notices", "deliveries", number)
    ann.out("notices", "remove", number)
    assert NoticeChannel.objects.count() == 1
    assert ann.failing("notices", "add", "nobody")[1]["fields"].keys() == {"target"}
    ann.failing("notices", "add", "x@sre.example", "--sre")
    assert sre.json("notices", "add", "x@sre.example", "--sre")["tenant"] is None
