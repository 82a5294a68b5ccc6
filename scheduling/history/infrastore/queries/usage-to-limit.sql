-- subject: Usage and limits
-- title: Usage against the limit
-- about: How tasks use what they ask for: the share of usage windows, by usage divided by the limit, for CPU and memory (Figure 11 of the Borg paper).
-- chart: usage_to_limit, cpu_windows
WITH shares AS (
    SELECT CASE WHEN assigned_cpus > 0 THEN LEAST(FLOOR(20 * average_usage_cpus / assigned_cpus), 40) END AS cpu,
        CASE WHEN assigned_memory > 0 THEN LEAST(FLOOR(20 * average_usage_memory / assigned_memory), 40) END AS memory,
        COUNT(*) AS windows
    FROM instance_usage
    WHERE start_time >= :since
    GROUP BY 1, 2
)
SELECT bucket / 20 AS usage_to_limit, SUM(cpu_windows) AS cpu_windows, SUM(memory_windows) AS memory_windows
FROM (
    SELECT cpu AS bucket, windows AS cpu_windows, 0 AS memory_windows FROM shares WHERE cpu IS NOT NULL
    UNION ALL
    SELECT memory AS bucket, 0 AS cpu_windows, windows AS memory_windows FROM shares WHERE memory IS NOT NULL
) AS parts
GROUP BY bucket
ORDER BY usage_to_limit
