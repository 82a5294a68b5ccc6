-- subject: Evictions and crashes
-- title: How long tasks run
-- about: Runs of tasks that ended in the period, by length, and how they ended.
-- chart: length, runs, type
WITH steps AS (
    SELECT type, time_us,
        LAG(type) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS before_type,
        LAG(time_us) OVER (PARTITION BY collection_id, instance_index ORDER BY revision, seq) AS before_us
    FROM instance_events
    WHERE time >= :since AND type IN ('schedule', 'evict', 'lost', 'fail', 'finish', 'kill')
)
SELECT length, type, COUNT(*) AS runs
FROM (
    SELECT type,
        CASE
            WHEN time_us - before_us < 60000000 THEN '1: below a minute'
            WHEN time_us - before_us < 3600000000 THEN '2: below an hour'
            WHEN time_us - before_us < 86400000000 THEN '3: below a day'
            ELSE '4: a day or more'
        END AS length
    FROM steps
    WHERE before_type = 'schedule' AND type <> 'schedule'
) AS runs
GROUP BY length, type
ORDER BY length, type
