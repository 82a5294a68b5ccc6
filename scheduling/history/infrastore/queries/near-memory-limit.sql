-- subject: Usage and limits
-- title: Tasks close to their memory limit
-- about: Tasks that used more than 90 % of their memory limit in at least one window.
SELECT j.user, j.collection_name, u.instance_index, COUNT(*) AS windows,
    MAX(u.maximum_usage_memory / u.assigned_memory) AS most_share, MAX(u.assigned_memory) AS memory_limit
FROM instance_usage u JOIN jobs j ON j.collection_id = u.collection_id
WHERE u.start_time >= :since AND u.assigned_memory > 0 AND u.maximum_usage_memory > 0.9 * u.assigned_memory
GROUP BY j.user, j.collection_name, u.instance_index
ORDER BY most_share DESC, j.collection_name, u.instance_index, j.user
LIMIT 200
