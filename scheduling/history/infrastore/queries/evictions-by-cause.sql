-- subject: Evictions and crashes
-- title: Evictions per task-week, by cause and band
-- about: How often running tasks were evicted, for each cause, in prod and non-prod (Figure 3 of the Borg paper).
-- about: A task-week is seven days of one running task: 2,016 windows of usage. Choose a period within the last 30 days
-- about: (ended_jobs_keep_days), because jobs that are only in the archive count as evictions, but not as task-weeks.
-- chart: cause, per_task_week, prod
WITH running AS (
    SELECT CASE WHEN j.priority >= 120 THEN 'prod' ELSE 'non-prod' END AS prod, SUM(u.windows) / 2016 AS task_weeks
    FROM (
        SELECT collection_id, COUNT(*) AS windows
        FROM instance_usage
        WHERE start_time >= :since
        GROUP BY collection_id
    ) AS u JOIN jobs j ON j.collection_id = u.collection_id
    GROUP BY CASE WHEN j.priority >= 120 THEN 'prod' ELSE 'non-prod' END
),
evicted AS (
    SELECT CASE WHEN priority >= 120 THEN 'prod' ELSE 'non-prod' END AS prod, cause, COUNT(*) AS evictions
    FROM instance_events
    WHERE time >= :since AND type IN ('evict', 'lost', 'fail')
    GROUP BY CASE WHEN priority >= 120 THEN 'prod' ELSE 'non-prod' END, cause
)
SELECT evicted.prod, evicted.cause, evicted.evictions, running.task_weeks,
    evicted.evictions / running.task_weeks AS per_task_week
FROM evicted LEFT JOIN running ON running.prod = evicted.prod
ORDER BY evicted.prod, evicted.evictions DESC, evicted.cause
