-- subject: Waiting and starting
-- title: Slowest starts, and why
-- about: Tasks that took longest from pending to up, split into the time in the queue and the time to install packages and start.
WITH steps AS (
    SELECT collection_name, instance_index, machine_id, incarnation, type, time_us, package_bytes,
        package_bytes_installed, LAG(type) OVER w AS before_type, LAG(time_us) OVER w AS before_us,
        LEAD(CASE WHEN type = 'report' THEN time_us END) OVER w AS up_us
    FROM instance_events
    WHERE time >= :since AND (type IN ('submit', 'schedule', 'evict', 'lost', 'fail') OR (type = 'report' AND up))
    WINDOW w AS (PARTITION BY collection_id, instance_index ORDER BY revision, seq)
)
SELECT collection_name, instance_index, machine_id, incarnation,
    (time_us - before_us) / 1000000 AS queue_s,
    (up_us - time_us) / 1000000 AS start_s,
    (up_us - before_us) / 1000000 AS total_s,
    package_bytes - package_bytes_installed AS bytes_to_install,
    before_type AS pending_after
FROM steps
WHERE type = 'schedule' AND before_us IS NOT NULL AND up_us IS NOT NULL
ORDER BY total_s DESC, collection_name, instance_index, time_us
LIMIT 100
