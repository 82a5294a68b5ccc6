-- subject: Evictions and crashes
-- title: Evictions per day, by cause
-- about: How many running tasks were evicted on each day, and why.
-- chart: day, evictions, cause
SELECT date_trunc('day', time) AS day, cause, COUNT(*) AS evictions
FROM instance_events
WHERE time >= :since AND type IN ('evict', 'lost', 'fail')
GROUP BY date_trunc('day', time), cause
ORDER BY day, cause
