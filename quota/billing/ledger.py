"""The ledger: every movement of money is one posting, whose entries add up to zero.

    treasury ──budget──► available ──hold──► held ──charge──► revenue
        available ◄──unhold── held      available ◄──refund── revenue
        available, owed ──usage──► revenue ──credit──► available
        available ──settle──► owed      available ──transfer──► available

Functions that take an `entry` (a record of the audit log, see `quota.records`) run inside the transaction of this
record, which also updates the balances. Locks:
first the accounts of tenants in the order of their ids, and last the treasury and the revenue, which all tenants share.
A transaction that moves money of several tenants first locks them together, with `accounts_locked`. Postings never
change: triggers in the database reject changes, and entries that do not add up to zero. Amounts are micro-credits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from django.db import connection
from django.db.models import Max, Sum

from quota import clock, records
from quota.billing import budgets
from quota.billing.spending import Balances, balances, fitting, over_budget
from quota.models import Account, AccountKind, Budget, Invoice, LedgerEntry, Order, Posting, Tenant
from quota.notifications import notices
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, require

_TEXT = 300


class AccountKey(NamedTuple):
    """Identifies an account: by its kind, and by the tenant that owns it (None for shared accounts)."""

    kind: AccountKind
    tenant_id: int | None = None


TREASURY, REVENUE = AccountKey(AccountKind.TREASURY), AccountKey(AccountKind.REVENUE)


def available(tenant: Tenant) -> AccountKey:
    return AccountKey(AccountKind.AVAILABLE, tenant.id)


def held(tenant: Tenant) -> AccountKey:
    return AccountKey(AccountKind.HELD, tenant.id)


def owed(tenant: Tenant) -> AccountKey:
    return AccountKey(AccountKind.OWED, tenant.id)


def accounts_locked(*tenants: Tenant) -> dict[AccountKey, Account]:
    """Create the missing accounts of tenants, lock all their accounts until the transaction ends, and return them.

    Must run in a transaction. Call this function once for all tenants whose money the transaction moves.
    """
    wanted = {place(tenant) for tenant in tenants for place in (available, held, owed)}
    return _locked(wanted)


def balance_of(tenant: Tenant) -> Balances:
    """Return the balances of a tenant, without a lock. A later posting checks the balances again."""
    found = {AccountKey(AccountKind(row.kind), tenant.id): row for row in Account.objects.filter(tenant=tenant)}
    return _balances(tenant, found, Budget.objects.filter(tenant=tenant).first())


def hold(entry: records.RecordEntry, order: Order) -> Posting | None:
    """Reserve the price of an order: move it from available to held money. Returns None if the order costs nothing.

    Raises `Rejected("over-budget")` if the tenant cannot pay the price, and `Conflict` if the price was held before.
    """
    if order.price < 0:
        raise invalid("price", f"the price {order.price} is negative; give 0 or more")
    if fitting("price", order.price) == 0:
        return None
    tenant = order.tenant
    rows = accounts_locked(tenant)
    if found := _posted(order):
        raise _posted_before(order, "hold", found)
    budget = Budget.objects.filter(tenant=tenant).first() or Budget(tenant=tenant)
    has = _balances(tenant, rows, budget)
    rejection = over_budget(tenant.name, order.price, has) or budgets.month_rejection(order, budget)
    if rejection is not None:
        raise rejection
    moves = {available(tenant): -order.price, held(tenant): order.price}
    return _post_once(entry, "hold", order, rows, moves, text="placed")


def unhold(entry: records.RecordEntry, order: Order) -> Posting | None:
    """Move the held price of an order that will not begin back to available money. Return None if the order costs
    nothing.

    Raises `Conflict` unless the price is held.
    """
    return _release(entry, "unhold", order, available(order.tenant), text="cancelled")


def charge(entry: records.RecordEntry, order: Order) -> Posting | None:
    """Move the held price of an order to the revenue. Return None if the order costs nothing. Raises `Conflict` unless
    the price is held.
    """
    return _release(entry, "charge", order, REVENUE, text="begins")


def refund(entry: records.RecordEntry, order: Order, amount: int, text: str) -> Posting | None:
    """Pay back a part of a charge. Return None if `amount` is 0. Raises `Rejected` if `amount` is negative or more than
    the part that was not refunded yet.

    The caller updates `Order.refunded` in the same transaction.
    """
    if amount < 0:
        raise invalid("amount", f"the amount {amount} is negative; give 0 or more")
    if amount == 0:
        return None
    tenant = order.tenant
    rows = accounts_locked(tenant)
    charged = LedgerEntry.objects.filter(posting__order=order, account__kind=AccountKind.REVENUE.value)
    left = charged.aggregate(total=Sum("amount", default=0))["total"]
    if amount > left:
        detail = f"order {order.pk} has only {format_credits(left)} credits left to refund; give a smaller amount"
        raise Rejected("refund-too-large", detail, fields={"amount": detail}, figures={"left": int(left)})
    moves = {REVENUE: -amount, available(tenant): amount}
    return _post(entry, "refund", tenant, rows, moves, text=text, order=order)


def usage(
    entry: records.RecordEntry,
    tenant: Tenant,
    amount: int,
    *,
    text: str,
    key: str,
    occurred_at: dt.datetime | None = None,
    pk: int | None = None,
) -> Posting:
    """Charge metered usage to the tenant's available money, down to zero. If it is not enough, the tenant owes the
    rest.

    `occurred_at`: a time in the month of the usage; if that month is closed, the posting goes to the open month. `pk`:
    the id of the posting, if the caller has reserved one.
    """
    rows = accounts_locked(tenant)
    covered = min(amount, max(0, rows[available(tenant)].balance))
    moves = {available(tenant): -covered, owed(tenant): covered - amount, REVENUE: amount}
    return _post(entry, "usage", tenant, rows, moves, text=text, key=key, occurred_at=occurred_at, pk=pk)


def credit(
    entry: records.RecordEntry,
    tenant: Tenant,
    amount: int,
    *,
    text: str,
    key: str = "",
    occurred_at: dt.datetime | None = None,
) -> Posting:
    """Pay back a part of the charges, because a cell broke its promise. A negative `amount` takes a credit back: from
    available money, and if it is not enough, the tenant owes the rest.

    `occurred_at`: as for `usage`. The caller makes sure that `amount` is at most `revenue_from`.
    """
    rows = accounts_locked(tenant)
    covered = min(-amount, max(0, rows[available(tenant)].balance)) if amount < 0 else -amount
    moves = {available(tenant): -covered, owed(tenant): covered + amount, REVENUE: -amount}
    return _post(entry, "credit", tenant, rows, moves, text=text, key=key, occurred_at=occurred_at)


def revenue_from(tenant: Tenant) -> int:
    """Return the sum of all charges of a tenant, less refunds and credits. The caller has locked its accounts."""
    found = LedgerEntry.objects.filter(posting__tenant=tenant, account__kind=AccountKind.REVENUE.value)
    return int(found.aggregate(total=Sum("amount", default=0))["total"])


def budget_grant(*, principal: Principal, tenant: Tenant, amount: int, text: str = "") -> Posting:
    """Grant money to a tenant. The money first pays the tenant's debt. A negative `amount` takes back available money.
    Raises `Rejected` if an argument is not valid; the error names the field.
    """
    require(principal, Action.PLATFORM_ADMIN)
    if amount == 0:
        raise invalid("amount", "an amount of 0 moves no money; give another amount")
    with records.write(principal) as entry:
        rows = accounts_locked(tenant)
        if amount < 0:
            _check_available(tenant, -amount, rows[available(tenant)].balance)
        text = text.strip() or ("budget" if amount > 0 else "budget taken back")
        moves = {TREASURY: -amount, available(tenant): amount}
        return _fund(entry, "budget", tenant, rows, moves, text=text)


def budget_hand_down(
    *, principal: Principal, from_tenant: Tenant, to_tenant: Tenant, amount: int, text: str = ""
) -> Posting:
    """Move money from an organisation to one of its teams, or from a team to its organisation.

    Raises `Rejected` if the tenants are not related, if `amount` is not positive, or if it exceeds the available money.
    """
    require(principal, Action.BILLING_ADMIN, tenant=from_tenant.name)
    if to_tenant.parent_id != from_tenant.id and from_tenant.parent_id != to_tenant.id:
        raise invalid(
            "to",
            f"tenant {to_tenant.name} is neither a team nor the organisation of {from_tenant.name}; give one of these",
            "not-related",
        )
    if amount <= 0:
        raise invalid("amount", f"the amount {amount} is not positive; give more than 0")
    with records.write(principal) as entry:
        rows = accounts_locked(from_tenant, to_tenant)
        _check_available(from_tenant, amount, rows[available(from_tenant)].balance)
        text = text.strip() or f"moved from {from_tenant.name} to {to_tenant.name}"
        moves = {available(from_tenant): -amount, available(to_tenant): amount}
        return _fund(entry, "transfer", to_tenant, rows, moves, text=text)


def _fund(
    entry: records.RecordEntry,
    kind: str,
    tenant: Tenant,
    rows: dict[AccountKey, Account],
    moves: Mapping[AccountKey, int],
    *,
    text: str,
) -> Posting:
    """Write a posting that gives money to a tenant or takes money from it. Then notify the tenant and check its budget.

    `moves`: micro-credits that are added, by account.
    """
    posting, amount = _post(entry, kind, tenant, rows, moves, text=text), moves[available(tenant)]
    verb = "were granted to" if amount > 0 else "were taken back from"
    notices.notify(
        entry,
        tenant,
        "budget.granted",
        f"{format_credits(abs(amount))} credits {verb} {tenant.name}",
        f"{posting.text}, by {posting.actor}.",
        url=f"/billing/?tenant={tenant.name}",
        amount=amount,
        posting=posting.pk,
    )
    budgets.examine(entry, tenant)
    return posting


def _settle(entry: records.RecordEntry, tenant: Tenant, rows: dict[AccountKey, Account]) -> None:
    """Pay the tenant's debt from its available money. If a debt remains, no available money remains."""
    amount = min(-rows[owed(tenant)].balance, rows[available(tenant)].balance)
    if amount > 0:
        moves = {available(tenant): -amount, owed(tenant): amount}
        _post(entry, "settle", tenant, rows, moves, text="payment of owed usage")


def _post(
    entry: records.RecordEntry,
    kind: str,
    tenant: Tenant,
    rows: dict[AccountKey, Account],
    moves: Mapping[AccountKey, int],
    *,
    text: str,
    order: Order | None = None,
    key: str = "",
    occurred_at: dt.datetime | None = None,
    pk: int | None = None,
) -> Posting:
    """Write one posting and the new balances. If the tenant received money, also pay its debt.

    `moves`: micro-credits that are added, by account. `rows`: the locked accounts of tenants. This function locks the
    shared accounts.
    """
    moves = {place: amount for place, amount in moves.items() if amount}
    rows |= _locked(moves.keys() - rows.keys())
    for place, amount in moves.items():
        fitting("amount", amount)
        rows[place].balance = fitting("amount", rows[place].balance + amount)
    posting = Posting.objects.create(
        kind=kind,
        tenant=tenant,
        order=order,
        text=text[:_TEXT],
        actor=entry.principal.name,
        request_id=entry.principal.request_id,
        occurred_at=_moment(tenant, occurred_at),
        key=key,
        pk=pk,
    )
    LedgerEntry.objects.bulk_create(
        LedgerEntry(posting=posting, account=rows[place], amount=amount) for place, amount in moves.items()
    )
    _store([rows[place] for place in moves])
    entry.append(
        f"money.{kind}",
        tenant=tenant.name,
        posting=posting.pk,
        order=order.pk if order else None,
        amount=max(moves.values()),
        text=posting.text,
    )
    if moves.get(available(tenant), 0) > 0:
        _settle(entry, tenant, rows)
    return posting


def _store(rows: Sequence[Account]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE quota_account AS a SET balance = n.balance"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS n(id, balance) WHERE a.id = n.id",
            [[row.pk for row in rows], [row.balance for row in rows]],
        )


def _moment(tenant: Tenant, wanted: dt.datetime | None) -> dt.datetime:
    """Return the time of a posting: `wanted`, or now. If this time is in a closed month, return the end of the last
    closed month.

    The caller has locked the tenant's accounts, so no month can be closed meanwhile.
    """
    closed = Invoice.objects.filter(tenant=tenant).aggregate(end=Max("ends_at"))["end"]
    moment = wanted or clock.now()
    return moment if closed is None else max(moment, closed)


def _locked(wanted: Set[AccountKey]) -> dict[AccountKey, Account]:
    found = _select_locked(wanted)
    if missing := wanted - found.keys():
        Account.objects.bulk_create(
            (Account(kind=place.kind.value, tenant_id=place.tenant_id) for place in sorted(missing, key=str)),
            ignore_conflicts=True,
        )
        found = _select_locked(wanted)
    return found


def _select_locked(wanted: Set[AccountKey]) -> dict[AccountKey, Account]:
    tenants = {place.tenant_id for place in wanted if place.tenant_id is not None}
    shared = {place.kind.value for place in wanted if place.tenant_id is None}
    rows = list(Account.objects.filter(tenant__in=tenants).select_for_update().order_by("id")) if tenants else []
    if shared:
        rows += Account.objects.filter(tenant=None, kind__in=shared).select_for_update().order_by("id")
    return {AccountKey(AccountKind(row.kind), row.tenant_id): row for row in rows}


def _balances(tenant: Tenant, rows: Mapping[AccountKey, Account], budget: Budget | None) -> Balances:
    of = {place: rows[place(tenant)].balance if place(tenant) in rows else 0 for place in (available, held, owed)}
    overdraft = budget.overdraft if budget is not None else 0
    return balances(available=of[available], held=of[held], owed=of[owed], overdraft=overdraft)


def _posted(order: Order) -> set[str]:
    """Return the kinds of the postings that exist for an order, such as `hold` and `charge`."""
    return set(Posting.objects.filter(order=order).values_list("kind", flat=True))


def _release(entry: records.RecordEntry, kind: str, order: Order, to: AccountKey, *, text: str) -> Posting | None:
    """Move the held price of an order to the account `to`.

    Returns None if the order costs nothing. Raises `Conflict` unless the price is held.
    """
    if order.price == 0:
        return None
    rows, found = accounts_locked(order.tenant), _posted(order)
    if "hold" not in found or found & {"unhold", "charge"}:
        raise _posted_before(order, kind, found)
    on_hold = LedgerEntry.objects.filter(posting__order=order, posting__kind="hold")
    amount = on_hold.get(account__kind=AccountKind.HELD.value).amount
    return _post_once(entry, kind, order, rows, {held(order.tenant): -amount, to: amount}, text=text)


def _post_once(
    entry: records.RecordEntry,
    kind: str,
    order: Order,
    rows: dict[AccountKey, Account],
    moves: Mapping[AccountKey, int],
    *,
    text: str,
) -> Posting:
    """Write a posting of the kind `kind` for an order. The caller uses only kinds that an order can have once."""
    key, text = f"{kind}:{order.pk}", f"order {order.pk} {text}"
    return _post(entry, kind, order.tenant, rows, moves, text=text, order=order, key=key)


def _posted_before(order: Order, kind: str, found: set[str]) -> Conflict:
    so_far = ", ".join(sorted(found)) or "none"
    return Conflict(
        "not-held" if kind != "hold" else "held-before",
        f"Cannot write the posting (account entry) {kind} of order {order.pk}: its postings so far are {so_far}. The"
        " order may have changed meanwhile. Load it again, and repeat the action if it is still possible.",
        figures={"order": order.pk, "posted": sorted(found)},
    )


def _check_available(tenant: Tenant, amount: int, has: int) -> None:
    """Raise `Rejected` if `amount` is more than `has`, the tenant's available money.

    The overdraft is not added to the available money.
    """
    if fitting("amount", amount) > has:
        detail = (
            f"{tenant.name} has {format_credits(has)} credits available, so {format_credits(amount - has)} are missing;"
            " give a smaller amount, or cancel orders that hold money"
        )
        raise Rejected(
            "over-budget",
            detail,
            fields={"amount": detail},
            figures={"available": has, "price": amount, "missing": amount - has},
        )
