-- subject: Money
-- title: Usage and its price per value of the label team
-- about: Core hours, memory hours and the price of usage, by the label team. Only people who may see money see rows.
-- chart: team, credits
SELECT user, COALESCE(labels['team'], 'without the label') AS team, SUM(limit_cpu_hours) AS limit_cpu_hours,
    SUM(used_cpu_hours) AS used_cpu_hours, SUM(limit_memory_hours) / 1073741824 AS limit_gib_hours,
    SUM(used_memory_hours) / 1073741824 AS used_gib_hours, SUM(price_microcredits) / 1000000 AS credits
FROM metered_hours
WHERE time >= :since
GROUP BY user, COALESCE(labels['team'], 'without the label')
ORDER BY credits DESC, limit_cpu_hours DESC, team
