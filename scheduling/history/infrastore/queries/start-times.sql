-- title: Time from pending to running, per job
-- about: Percentiles of the time in the queue and of the time to start, in seconds.
WITH steps AS (
    SELECT collection_id, collection_name, user, instance_index, machine_id, incarnation, type, time_us, up,
        package_bytes, package_bytes_installed,
        LAG(type) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS before_type,
        LAG(time_us) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS before_us,
        LEAD(type) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS next_type,
        LEAD(up) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS next_up,
        LEAD(time_us) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS next_us
    FROM instance_events
    WHERE time >= :since AND (type IN ('submit', 'schedule', 'evict', 'lost', 'fail') OR (type = 'report' AND up))
)
SELECT user, collection_name, COUNT(*) AS starts,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY (time_us - before_us) / 1000000.0) AS queue_p50_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY (time_us - before_us) / 1000000.0) AS queue_p90_s,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY (next_us - time_us) / 1000000.0) AS start_p50_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY (next_us - time_us) / 1000000.0) AS start_p90_s
FROM steps
WHERE type = 'schedule' AND next_type = 'report' AND next_up AND before_us IS NOT NULL
GROUP BY user, collection_name
ORDER BY queue_p90_s DESC, collection_name
LIMIT 200
