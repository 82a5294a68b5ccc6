"""Tests of the ledger on real PostgreSQL: it adds up, is never changed, and no credit is spent twice."""

from __future__ import annotations

import threading

import pytest
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, transaction

from quota import records
from quota.billing import ledger
from quota.billing.ledger_check import ledger_check
from quota.models import Account, Budget, LedgerEntry, OrderState, Posting, Record
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.money import MOST
from quota.vocabulary.permissions import Role
from tests.integration import money_rows as market
from tests.integration import rows, world

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _balanced():
    """Create a cell before each test, and check the whole ledger after it."""
    rows.a_cell()
    yield
    assert ledger_check() == []


def has(tenant) -> tuple[int, int, int]:
    return ledger.balance_of(tenant)[:3]


def do(what, *given):
    with records.write(market.ME) as entry:
        return what(entry, *given)


def test_a_budget_is_granted_held_charged_and_refunded() -> None:
    tenant = market.funded(amount=100)
    order = market.held(tenant, 60)
    assert has(tenant) == (40, 60, 0)
    do(ledger.charge, order)
    market.moved(order, OrderState.ACTIVE)
    assert has(tenant) == (40, 0, 0)
    market.refunded(order, 25)
    assert has(tenant) == (65, 0, 0)
    assert Account.objects.get(kind="revenue").balance == 35
    assert Account.objects.get(kind="treasury").balance == -100


def test_what_is_held_comes_back() -> None:
    tenant = market.funded(amount=100)
    order = market.held(tenant, 60)
    do(ledger.unhold, order)
    market.moved(order, OrderState.REJECTED)
    assert has(tenant) == (100, 0, 0)


def test_over_budget_names_what_is_missing_and_changes_nothing() -> None:
    tenant = market.funded(amount=100_000_000)
    order = market.an_order(tenant, 160_000_000, state=OrderState.DRAFT)
    with pytest.raises(Rejected) as refused:
        do(ledger.hold, order)
    assert refused.value.code == "over-budget"
    assert refused.value.figures == {
        "available": 100_000_000,
        "held": 0,
        "owed": 0,
        "spendable": 100_000_000,
        "price": 160_000_000,
        "missing": 60_000_000,
    }
    assert "60.00 credits are missing" in refused.value.detail
    assert has(tenant) == (100_000_000, 0, 0)


def test_an_overdraft_is_spent_and_no_more() -> None:
    tenant = market.funded(amount=100)
    Budget.objects.create(tenant=tenant, overdraft=50)
    market.held(tenant, 150)
    assert has(tenant) == (-50, 150, 0)
    with pytest.raises(Rejected, match="missing"):
        do(ledger.hold, market.an_order(tenant, 1, state=OrderState.DRAFT))


def test_an_order_that_costs_nothing_posts_nothing() -> None:
    order = market.an_order(rows.a_tenant(), 0)
    for step in (ledger.hold, ledger.charge, ledger.unhold):
        assert do(step, order) is None
    assert not Posting.objects.exists()


@pytest.mark.parametrize(
    "steps, last",
    [
        (["hold"], "hold"),
        ([], "charge"),
        ([], "unhold"),
        (["hold", "charge"], "charge"),
        (["hold", "charge"], "unhold"),
        (["hold", "unhold"], "charge"),
    ],
)
def test_money_of_an_order_moves_once(steps, last) -> None:
    order = market.an_order(market.funded(amount=100), 10)
    for step in steps:
        do(getattr(ledger, step), order)
    before = Posting.objects.count()
    with pytest.raises(Conflict, match="its postings so far are"):
        do(getattr(ledger, last), order)
    assert Posting.objects.count() == before
    market.moved(
        order,
        {"charge": OrderState.ACTIVE, "hold": OrderState.PENDING}.get(steps[-1] if steps else "", OrderState.CANCELLED),
    )


def test_no_more_is_refunded_than_was_charged() -> None:
    order = market.charged(market.funded(amount=100), 60)
    market.refunded(order, 40)
    with pytest.raises(Rejected) as refused:
        do(ledger.refund, order, 21, "too much")
    assert (refused.value.code, refused.value.figures) == ("refund-too-large", {"left": 20})


def test_usage_takes_what_is_available_the_rest_is_owed_and_settled_first() -> None:
    tenant = market.funded(amount=100)
    Budget.objects.create(tenant=tenant, overdraft=1000)
    do(lambda entry: ledger.usage(entry, tenant, 130, text="usage", key="usage:1"))
    assert has(tenant) == (0, 0, -30)
    assert ledger.balance_of(tenant).spendable == 970
    ledger.budget_grant(principal=market.ME, tenant=tenant, amount=20)
    assert has(tenant) == (0, 0, -10)
    ledger.budget_grant(principal=market.ME, tenant=tenant, amount=25)
    assert has(tenant) == (15, 0, 0)


def test_a_refund_settles_what_is_owed() -> None:
    tenant = market.funded(amount=60)
    order = market.charged(tenant, 60)
    do(lambda entry: ledger.usage(entry, tenant, 30, text="usage", key="usage:1"))
    market.refunded(order, 40)
    assert has(tenant) == (10, 0, 0)


def test_a_user_who_owes_buys_only_beyond_the_debt() -> None:
    tenant = rows.a_tenant()
    Budget.objects.create(tenant=tenant, overdraft=100)
    do(lambda entry: ledger.usage(entry, tenant, 60, text="usage", key="usage:1"))
    with pytest.raises(Rejected, match="owes"):
        do(ledger.hold, market.an_order(tenant, 41, state=OrderState.DRAFT))
    market.held(tenant, 40)


def test_money_is_handed_to_a_team_and_back_never_elsewhere() -> None:
    organisation = market.funded("corp", 100)
    team = rows.a_tenant("team")
    team.parent = organisation
    team.save()
    owner = world.principal("ann", tenant=organisation, role=Role.OWNER)
    ledger.budget_hand_down(principal=owner, from_tenant=organisation, to_tenant=team, amount=70)
    assert (has(organisation), has(team)) == ((30, 0, 0), (70, 0, 0))
    with pytest.raises(Rejected, match="are missing"):
        ledger.budget_hand_down(principal=owner, from_tenant=organisation, to_tenant=team, amount=31)
    with pytest.raises(Rejected, match="neither a team"):
        ledger.budget_hand_down(principal=owner, from_tenant=organisation, to_tenant=rows.a_tenant("other"), amount=1)
    with pytest.raises(Rejected, match="more than 0"):
        ledger.budget_hand_down(principal=owner, from_tenant=organisation, to_tenant=team, amount=-1)
    ledger.budget_hand_down(principal=market.ME, from_tenant=team, to_tenant=organisation, amount=70)
    assert (has(organisation), has(team)) == ((100, 0, 0), (0, 0, 0))


def test_only_owners_hand_down_and_only_sres_grant() -> None:
    organisation = market.funded("corp", 100)
    team = rows.a_tenant("team")
    team.parent = organisation
    team.save()
    buyer = world.principal("bob", tenant=organisation, role=Role.BUYER)
    with pytest.raises(Rejected, match="may not"):
        ledger.budget_hand_down(principal=buyer, from_tenant=organisation, to_tenant=team, amount=1)
    with pytest.raises(Rejected, match="may not"):
        ledger.budget_grant(principal=buyer, tenant=team, amount=1)


def test_a_budget_is_taken_back_as_far_as_it_is_there() -> None:
    tenant = market.funded(amount=100)
    market.held(tenant, 60)
    with pytest.raises(Rejected, match="are missing"):
        ledger.budget_grant(principal=market.ME, tenant=tenant, amount=-41)
    ledger.budget_grant(principal=market.ME, tenant=tenant, amount=-40)
    assert has(tenant) == (0, 60, 0)


@pytest.mark.parametrize("before, amount", [(0, MOST + 1), (MOST, 1), (1, MOST), (0, 10**30), (0, -(10**30))])
def test_what_does_not_fit_64_bits_is_refused_and_named(before: int, amount: int) -> None:
    tenant = market.funded(amount=before) if before else rows.a_tenant()
    with pytest.raises(Rejected) as refused:
        ledger.budget_grant(principal=market.ME, tenant=tenant, amount=amount)
    assert refused.value.code == "too-large"
    assert list(refused.value.fields) == ["amount"]
    assert has(tenant)[0] == before


def test_the_edge_of_64_bits_is_held_and_charged() -> None:
    tenant = market.funded(amount=MOST)
    market.charged(tenant, MOST)
    assert Account.objects.get(kind="revenue").balance == MOST


def test_each_posting_is_on_record() -> None:
    market.held(market.funded(amount=100), 60)
    assert [r.kind for r in Record.objects.order_by("revision")] == ["money.budget", "money.hold"]


def refuses(change) -> None:
    with pytest.raises(IntegrityError):
        committed(change)


@transaction.atomic
def committed(change) -> None:
    """Call `change` and run the checks that PostgreSQL makes at a commit."""
    change()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_postings_and_entries_are_never_changed_or_deleted() -> None:
    market.funded()
    refuses(lambda: Posting.objects.update(text="x"))
    refuses(lambda: LedgerEntry.objects.update(amount=1))
    refuses(lambda: LedgerEntry.objects.all()._raw_delete("default"))
    refuses(lambda: Posting.objects.all()._raw_delete("default"))


def test_entries_that_do_not_add_up_are_not_committed() -> None:
    tenant = market.funded()
    posting = Posting(kind="budget", tenant=tenant, text="x", actor="x", occurred_at=market.BEGIN)
    refuses(posting.save)
    account = Account.objects.get(tenant=tenant, kind="available")
    posting.pk = None

    def lopsided() -> None:
        posting.save()
        LedgerEntry.objects.create(posting=posting, account=account, amount=5)
        LedgerEntry.objects.create(posting=posting, account=account, amount=-4)

    refuses(lopsided)
    refuses(lambda: LedgerEntry.objects.create(posting=Posting.objects.get(), account=account, amount=5))


def test_the_check_finds_what_was_tampered_with() -> None:
    tenant = market.funded(amount=100)
    order = market.held(tenant, 60)
    with transaction.atomic():
        Account.objects.filter(tenant=tenant, kind="held").update(balance=61)
        type(order).objects.filter(pk=order.pk).update(state="active", refunded=1)
        wrong = "\n".join(ledger_check())
        transaction.set_rollback(True)
    assert "its balance is 61, but its entries add up to 60" in wrong
    assert "all balances together are 1" in wrong
    assert "61 are held, but its open orders cost 0" in wrong
    assert f"order {order.pk} is active at a price of 60, but 60 are held and 0 charged" in wrong
    assert f"order {order.pk}: its refund is 1, but the postings have 0" in wrong


def test_the_command_says_that_it_holds(capsys) -> None:
    market.funded()
    call_command("ledger_check")
    assert "no errors" in capsys.readouterr().out


@pytest.mark.django_db(transaction=True)
def test_the_last_credit_is_held_once() -> None:
    tenant = market.funded(amount=10)
    orders = [market.an_order(tenant, 1) for _ in range(14)]
    done: list[str] = []

    def take(order) -> None:
        try:
            do(ledger.hold, order)
            done.append("held")
        except Rejected as refused:
            market.moved(order, OrderState.DRAFT)
            done.append(refused.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["held"] * 10 + ["over-budget"] * 4
    assert has(tenant) == (0, 10, 0)


@pytest.mark.django_db(transaction=True)
def test_money_handed_both_ways_at_once_never_locks_up() -> None:
    organisation, team = market.funded("corp", 1000), market.funded("team", 1000)
    team.parent = organisation
    team.save()
    wrong: list[Exception] = []

    def shuttle(one, other) -> None:
        try:
            for _ in range(15):
                ledger.budget_hand_down(principal=market.ME, from_tenant=one, to_tenant=other, amount=1)
                order = market.charged(one, 1)
                market.refunded(order, 1)
        except (DatabaseError, Rejected) as error:
            wrong.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=shuttle, args=pair) for pair in ((organisation, team), (team, organisation)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (has(organisation), has(team)) == ((1000, 0, 0), (1000, 0, 0))
