-- subject: Waiting and starting
-- title: Time in the queue, hour by hour
-- about: Median and 90th percentile of the seconds between pending and scheduled, for tasks that were scheduled in the hour.
-- chart: hour, p90_s
WITH steps AS (
    SELECT type, time, time_us,
        LAG(time_us) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS before_us
    FROM instance_events
    WHERE time >= :since AND type IN ('submit', 'schedule', 'evict', 'lost', 'fail')
)
SELECT date_trunc('hour', time) AS hour, COUNT(*) AS scheduled,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY (time_us - before_us) / 1000000) AS p50_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY (time_us - before_us) / 1000000) AS p90_s
FROM steps
WHERE type = 'schedule' AND before_us IS NOT NULL
GROUP BY date_trunc('hour', time)
ORDER BY hour
