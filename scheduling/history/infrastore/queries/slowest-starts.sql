-- title: Slowest starts, and why
-- about: Tasks that took longest from pending to up, split into the time in the queue and the time to install packages and start.
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
SELECT collection_name, instance_index, machine_id, incarnation,
    (time_us - before_us) / 1000000.0 AS queue_s,
    (next_us - time_us) / 1000000.0 AS start_s,
    (next_us - before_us) / 1000000.0 AS total_s,
    package_bytes - package_bytes_installed AS bytes_to_install,
    before_type AS pending_after
FROM steps
WHERE type = 'schedule' AND next_type = 'report' AND next_up AND before_us IS NOT NULL
ORDER BY total_s DESC, collection_name, instance_index
LIMIT 100
