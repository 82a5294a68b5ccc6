-- subject: Money
-- title: Price of orders and price of usage, per tenant and band
-- about: Prices of active and expired orders that were placed in the period, without refunds, and the price of the usage in the period. Only people who may see money see rows.
-- chart: user, bought_credits, band
SELECT user, band, SUM(bought) / 1000000 AS bought_credits, SUM(used) / 1000000 AS used_credits,
    SUM(bought_cpu_hours) AS bought_cpu_hours, SUM(used_cpu_hours) AS used_cpu_hours
FROM (
    SELECT user, band, price_microcredits - refunded_microcredits AS bought, 0 AS used,
        amount_cpus * hours AS bought_cpu_hours, 0.0 AS used_cpu_hours
    FROM orders
    WHERE time >= :since AND state IN ('active', 'expired')
    UNION ALL
    SELECT user, band, 0 AS bought, price_microcredits AS used, 0.0 AS bought_cpu_hours, used_cpu_hours
    FROM metered_hours
    WHERE time >= :since
) AS parts
GROUP BY user, band
ORDER BY bought_credits DESC, used_credits DESC, user, band
