-- subject: Usage and limits
-- title: Tasks that ran out of memory
-- about: Tasks whose processes the kernel ended because memory was short, with their limit and highest usage.
SELECT j.user, j.collection_name, u.instance_index, SUM(u.oom_kills) AS oom_kills, MAX(u.assigned_memory) AS memory_limit,
    MAX(u.maximum_usage_memory) AS most_memory
FROM instance_usage u JOIN jobs j ON j.collection_id = u.collection_id
WHERE u.start_time >= :since AND u.oom_kills > 0
GROUP BY j.user, j.collection_name, u.instance_index
ORDER BY oom_kills DESC, j.collection_name, u.instance_index, j.user
LIMIT 200
