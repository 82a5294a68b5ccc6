-- subject: Money
-- title: Orders of quota
-- about: Orders that were placed in the period, newest first, with the price per core hour. Only people who may see money see rows.
SELECT time, user, order_id, band, state, amount_cpus, amount_memory / 1073741824 AS amount_gib, starts_at, ends_at,
    price_microcredits / 1000000 AS credits, refunded_microcredits / 1000000 AS refunded_credits,
    CASE WHEN amount_cpus > 0 THEN price_microcredits / 1000000 / (amount_cpus * hours) END AS credits_per_core_hour,
    placed_by, decided_by
FROM orders
WHERE time >= :since
ORDER BY time DESC, order_id DESC
LIMIT 500
