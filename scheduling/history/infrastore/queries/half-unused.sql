-- subject: Usage and limits
-- title: Jobs that never use half of what they ask for
-- about: Jobs with no window in which a task used half of its CPU limit or half of its memory limit. Their limits can be lowered.
SELECT j.user, j.collection_name, u.tasks, u.assigned_cpus, u.most_cpu_share, u.assigned_memory, u.most_memory_share
FROM (
    SELECT collection_id, COUNT(*) AS tasks, MAX(assigned_cpus) AS assigned_cpus,
        MAX(most_cpu_share) AS most_cpu_share, MAX(assigned_memory) AS assigned_memory,
        MAX(most_memory_share) AS most_memory_share
    FROM (
        SELECT collection_id, instance_index, MAX(assigned_cpus) AS assigned_cpus,
            MAX(maximum_usage_cpus / assigned_cpus) AS most_cpu_share, MAX(assigned_memory) AS assigned_memory,
            MAX(maximum_usage_memory / assigned_memory) AS most_memory_share
        FROM instance_usage
        WHERE start_time >= :since AND assigned_cpus > 0 AND assigned_memory > 0
        GROUP BY collection_id, instance_index
    ) AS t
    GROUP BY collection_id
) AS u JOIN jobs j ON j.collection_id = u.collection_id
WHERE u.most_cpu_share < 0.5 AND u.most_memory_share < 0.5
ORDER BY u.assigned_cpus * u.tasks DESC, j.collection_name, u.collection_id
LIMIT 200
