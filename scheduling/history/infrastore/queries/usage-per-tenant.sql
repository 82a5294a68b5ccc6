-- subject: Usage and limits
-- title: Usage per tenant and day
-- about: Mean cores and memory in use on each day.
-- chart: day, mean_cpus, user
SELECT date_trunc('day', start_time) AS day, user,
    SUM(average_usage_cpus) * 300 / 86400 AS mean_cpus, SUM(average_usage_memory / 1073741824) * 300 / 86400 AS mean_gib
FROM instance_usage
WHERE start_time >= :since
GROUP BY date_trunc('day', start_time), user
ORDER BY day, user
