-- subject: Money
-- title: Price of usage per day and band
-- about: What measured usage cost on each day. Only people who may see money see rows.
-- chart: day, credits, band
SELECT date_trunc('day', time) AS day, band, SUM(price_microcredits) / 1000000 AS credits,
    SUM(used_cpu_hours) AS used_cpu_hours
FROM metered_hours
WHERE time >= :since
GROUP BY date_trunc('day', time), band
ORDER BY day, band
