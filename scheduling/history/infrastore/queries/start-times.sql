-- subject: Waiting and starting
-- title: Time from pending to running, per job
-- about: Percentiles of the time in the queue and of the time to start, in seconds.
WITH steps AS (
    SELECT user, collection_name, type, time_us, LAG(time_us) OVER w AS before_us,
        LEAD(CASE WHEN type = 'report' THEN time_us END) OVER w AS up_us
    FROM instance_events
    WHERE time >= :since AND (type IN ('submit', 'schedule', 'evict', 'lost', 'fail') OR (type = 'report' AND up))
    WINDOW w AS (PARTITION BY collection_id, instance_index ORDER BY revision, seq)
)
SELECT user, collection_name, COUNT(*) AS starts,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY (time_us - before_us) / 1000000) AS queue_p50_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY (time_us - before_us) / 1000000) AS queue_p90_s,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY (up_us - time_us) / 1000000) AS start_p50_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY (up_us - time_us) / 1000000) AS start_p90_s
FROM steps
WHERE type = 'schedule' AND before_us IS NOT NULL AND up_us IS NOT NULL
GROUP BY user, collection_name
ORDER BY queue_p90_s DESC, collection_name, user
LIMIT 200
