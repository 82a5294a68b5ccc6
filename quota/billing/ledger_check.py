"""A check of the whole ledger. The check is one SQL statement, so it reads one consistent state even while the system
runs.
"""

from __future__ import annotations

from django.db import connection

_CHECKS = """
WITH entry AS (
    SELECT e.posting_id, e.account_id, e.amount, p.kind, p.order_id, a.kind AS account
    FROM quota_ledgerentry e JOIN quota_posting p ON p.id = e.posting_id JOIN quota_account a ON a.id = e.account_id
), balance AS (
    SELECT a.id, a.kind, a.tenant_id, a.balance, COALESCE(sum(e.amount), 0) AS posted
    FROM quota_account a LEFT JOIN quota_ledgerentry e ON e.account_id = a.id GROUP BY a.id
), per_order AS (
    SELECT o.id, o.state, o.price, o.refunded, o.tenant_id,
        COALESCE(sum(e.amount) FILTER (WHERE e.account = 'held'), 0) AS held,
        COALESCE(sum(e.amount) FILTER (WHERE e.account = 'revenue' AND e.kind = 'charge'), 0) AS charged,
        -COALESCE(sum(e.amount) FILTER (WHERE e.account = 'revenue' AND e.kind = 'refund'), 0) AS paid_back
    FROM quota_order o LEFT JOIN entry e ON e.order_id = o.id GROUP BY o.id
), open_orders AS (
    SELECT tenant_id, sum(price) AS held FROM quota_order WHERE state IN ('pending', 'approved') GROUP BY tenant_id
)
SELECT format('posting %%s has %%s entries, which add up to %%s', p.id, count(e.id), COALESCE(sum(e.amount), 0))
    FROM quota_posting p LEFT JOIN quota_ledgerentry e ON e.posting_id = p.id
    GROUP BY p.id HAVING count(e.id) < 2 OR sum(e.amount) <> 0
UNION ALL
SELECT format('all balances together are %%s instead of 0', sum(balance)) FROM balance HAVING sum(balance) <> 0
UNION ALL
SELECT format('account %%s (%%s of tenant %%s): its balance is %%s, but its entries add up to %%s', id, kind,
              tenant_id, balance, posted)
    FROM balance WHERE balance <> posted
UNION ALL
SELECT format('tenant %%s: %%s are held, but its open orders cost %%s', b.tenant_id, b.balance, COALESCE(o.held, 0))
    FROM balance b LEFT JOIN open_orders o ON o.tenant_id = b.tenant_id
    WHERE b.kind = 'held' AND b.balance <> COALESCE(o.held, 0)
UNION ALL
SELECT format('tenant %%s: its open orders cost %%s, but it has no account for held money', o.tenant_id, o.held)
    FROM open_orders o
    WHERE o.held <> 0 AND NOT EXISTS (SELECT FROM balance b WHERE b.kind = 'held' AND b.tenant_id = o.tenant_id)
UNION ALL
SELECT format('tenant %%s owes %%s, but has %%s available', a.tenant_id, -o.balance, a.balance)
    FROM balance a JOIN balance o ON o.tenant_id = a.tenant_id AND o.kind = 'owed'
    WHERE a.kind = 'available' AND o.balance < 0 AND a.balance > 0
UNION ALL
SELECT format('order %%s is %%s at a price of %%s, but %%s are held and %%s charged', id, state, price, held, charged)
    FROM per_order WHERE (held, charged) <> CASE
        WHEN state IN ('pending', 'approved') THEN (price::numeric, 0::numeric)
        WHEN state IN ('active', 'expired') THEN (0::numeric, price::numeric)
        WHEN state = 'cancelled' AND charged <> 0 THEN (0::numeric, price::numeric)
        ELSE (0::numeric, 0::numeric) END
UNION ALL
SELECT format('order %%s: its refund is %%s, but the postings have %%s', id, refunded, paid_back)
    FROM per_order WHERE refunded <> paid_back
UNION ALL
SELECT format('invoice %%s: it has %%s charged and %%s refunded, but the ledger has %%s and %%s', i.number,
              i.charged, i.refunded, r.charged, r.refunded)
    FROM quota_invoice i CROSS JOIN LATERAL (
        SELECT COALESCE(sum(e.amount) FILTER (WHERE e.amount > 0), 0) AS charged,
            -COALESCE(sum(e.amount) FILTER (WHERE e.amount < 0), 0) AS refunded
        FROM quota_posting p JOIN quota_ledgerentry e ON e.posting_id = p.id
            JOIN quota_account a ON a.id = e.account_id AND a.kind = 'revenue'
        WHERE p.tenant_id = i.tenant_id AND p.occurred_at >= i.begins_at AND p.occurred_at < i.ends_at
    ) r WHERE (i.charged, i.refunded) <> (r.charged, r.refunded)
UNION ALL
SELECT format('posting %%s of kind credit: its lines add up to %%s, but it took %%s from the revenue', p.id,
              c.amount, -r.amount)
    FROM quota_posting p
    CROSS JOIN LATERAL (SELECT COALESCE(sum(amount), 0) AS amount FROM quota_credit WHERE posting_id = p.id) c
    CROSS JOIN LATERAL (SELECT COALESCE(sum(e.amount), 0) AS amount FROM quota_ledgerentry e
        JOIN quota_account a ON a.id = e.account_id AND a.kind = 'revenue' WHERE e.posting_id = p.id) r
    WHERE p.kind = 'credit' AND c.amount <> -r.amount
"""


def ledger_check() -> list[str]:
    """Return the errors of the ledger, one sentence each; empty if it is correct.

    The function checks these rules. The amounts of each posting add up to zero, and so do all balances. A balance is
    the sum of its entries. Held money equals the prices of open orders. Postings of each order match its state. A
    tenant that owes has no available money. Closed invoices equal the revenue of their months. Lines of
    credits equal their postings.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHECKS, [])
        return [row[0] for row in cursor.fetchall()]
