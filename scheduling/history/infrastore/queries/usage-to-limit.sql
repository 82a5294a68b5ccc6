-- title: Usage against the limit
-- about: How tasks use what they ask for: the share of usage windows, by usage divided by the limit, for CPU and memory (Figure 11 of the Borg paper).
-- chart: usage_to_limit, cpu_windows
SELECT bucket / 20.0 AS usage_to_limit,
    SUM(CASE WHEN resource = 'cpu' THEN windows ELSE 0 END) AS cpu_windows,
    SUM(CASE WHEN resource = 'memory' THEN windows ELSE 0 END) AS memory_windows
FROM (
    SELECT 'cpu' AS resource, LEAST(FLOOR(20 * average_usage_cpus / assigned_cpus), 40) AS bucket, COUNT(*) AS windows
    FROM instance_usage
    WHERE start_time >= :since AND assigned_cpus > 0
    GROUP BY LEAST(FLOOR(20 * average_usage_cpus / assigned_cpus), 40)
    UNION ALL
    SELECT 'memory' AS resource, LEAST(FLOOR(20 * average_usage_memory / assigned_memory), 40) AS bucket, COUNT(*) AS windows
    FROM instance_usage
    WHERE start_time >= :since AND assigned_memory > 0
    GROUP BY LEAST(FLOOR(20 * average_usage_memory / assigned_memory), 40)
) AS parts
GROUP BY bucket
ORDER BY usage_to_limit
