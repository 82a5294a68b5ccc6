-- subject: Usage and limits
-- title: Requested capacity that was not used, per job
-- about: Core hours and GiB hours that a job asked for and did not use.
SELECT j.user, j.collection_name,
    SUM(u.cpu_hours) AS requested_cpu_hours, SUM(u.idle_cpu_hours) AS idle_cpu_hours,
    SUM(u.memory_hours) AS requested_gib_hours, SUM(u.idle_memory_hours) AS idle_gib_hours
FROM (
    SELECT collection_id, SUM(assigned_cpus) / 12 AS cpu_hours,
        SUM(assigned_cpus - average_usage_cpus) / 12 AS idle_cpu_hours,
        SUM(assigned_memory / 1073741824) / 12 AS memory_hours,
        SUM((assigned_memory - average_usage_memory) / 1073741824) / 12 AS idle_memory_hours
    FROM instance_usage
    WHERE start_time >= :since
    GROUP BY collection_id
) AS u JOIN jobs j ON j.collection_id = u.collection_id
GROUP BY j.user, j.collection_name
ORDER BY idle_cpu_hours DESC, j.collection_name, j.user
LIMIT 200
