"""Tests of `borgctl` for orders of quota, against a real portal: they are placed, decided, changed and transferred."""

from __future__ import annotations

import datetime as dt

import pytest

from quota.models import Order, Tenant
from quota.vocabulary import money
from quota.vocabulary.permissions import Role
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


def test_buying_from_the_question_to_the_end_of_the_order(ann, ubar) -> None:
    asked = ann.run("quota", "buy", *SIZE, "--days", "10", given="n\n")
    assert (asked.returncode, "Order it for " in asked.stderr, "nothing was changed" in asked.stderr) == (1, True, True)
    assert ann.run("quota", "buy", *SIZE, "--days", "10", given="").returncode == 1  # no answer is given
    dear = ann.run("quota", "buy", *SIZE, "--days", "10", "--at-most", "1.5", "--yes")
    assert (dear.returncode, "more than the 1.50" in dear.stderr) == (1, True)
    assert "nothing was" in ann.out("quota", "buy", *SIZE, "--days", "10", "--dry-run")
    assert not Order.objects.exists()

    told = ann.run("quota", "buy", *SIZE, "--days", "10", "--note", "tests", "--key", "k1", given="y\n")
    assert told.returncode == 0, told.stderr
    order = Order.objects.get()
    assert (order.amounts[0], order.note, order.key) == (2000, "tests", "k1")
    assert f"Order {order.pk} is " in told.stdout
    assert str(order.pk) in ann.out("quota", "orders")
    assert "by ann" in ann.out("quota", "order", str(order.pk))
    assert ann.json("quota", "order", str(order.pk))["id"] == order.pk
    assert "is renewed at its end" in ann.out("quota", "renew", str(order.pk))
    assert "is not renewed at its end" in ann.out("quota", "renew", str(order.pk), "--off")
    changed = ann.json("quota", "change", str(order.pk), "--cpu", "1", "--yes")
    assert (changed["id"] != order.pk, changed["amounts"]["cpu"]) == (True, 1000)
    asked = ann.run("quota", "cancel", str(changed["id"]), given="n\n")
    assert "Its quota ends now, and " in asked.stderr
    told = ann.out("quota", "cancel", str(changed["id"]), "--yes")
    cancelled = Order.objects.get(pk=changed["id"])
    assert 0 < cancelled.refunded < cancelled.price
    assert (
        told.strip()
        == f"Order {cancelled.pk} is cancelled: {money.format_credits(cancelled.refunded)} credits are refunded."
    )
    assert ann.failing("quota", "order", "999999")[1]["code"] == "not-found"


def test_an_order_is_decided_about_and_handed_on(ann, sre, ubar) -> None:
    market_rows.a_rich_tenant("other")
    first = (TODAY + dt.timedelta(days=10)).isoformat()
    month = ("--band", "production", "--from", first, "--days", "30", "--yes")
    bought = [ann.json("quota", "buy", "--cpu", size, *month) for size in ("60", "30")]
    assert [order["state"] for order in bought] == ["pending", "pending"]
    one, two = (str(order["id"]) for order in bought)
    assert [str(row["id"]) for row in sre.json("quota", "orders", "--state", "pending")] == [one, two]
    assert sre.run("quota", "reject", two).returncode == 2  # it needs a reason
    assert "is rejected" in sre.out("quota", "reject", two, "--reason", "too much")
    assert "would be approved" in sre.out("quota", "approve", one, "--dry-run")
    assert "is approved" in sre.out("quota", "approve", one, "--reason", "fine")
    moved = sre.json("quota", "transfer", one, "--to", "other", "--yes")
    assert (moved["tenant"], moved["state"]) == ("other", "approved")
    assert "too much" in ann.out("quota", "order", two)


def test_what_is_left_day_by_day(ann) -> None:
    words = ("quota", "calendar", "--band", "production", "--from", TODAY.isoformat(), "--days", "3")
    assert [row["left"]["cpu"] for row in ann.json(*words)] == [100_000] * 3
    head, *days = ann.out(*words).splitlines()
    assert head.split()[:3] == ["DAY", "CPU", "RAM"]
    assert [line.split()[:2] for line in days] == [
        [(TODAY + dt.timedelta(days=number)).isoformat(), "100"] for number in range(3)
    ]


def test_a_viewer_may_look_and_not_buy(tmp_path, shared_portal, ubar) -> None:
    world.a_user("vera", tenant=ubar, role=Role.VIEWER)
    vera = cli_world.of(tmp_path, shared_portal, "vera")
    vera.out("quota", "orders")
    assert "may not" in vera.failing("quota", "buy", *SIZE, "--days", "1", "--yes")[0]
