-- subject: Usage and limits
-- title: Tasks that wanted more CPU than their limit
-- about: Tasks whose CPU limit denied them CPU time, with the cores that were denied on average.
SELECT j.user, j.collection_name, u.instance_index, COUNT(*) AS windows, AVG(u.throttled_cpus) AS denied_cpus,
    MAX(u.assigned_cpus) AS cpu_limit
FROM instance_usage u JOIN jobs j ON j.collection_id = u.collection_id
WHERE u.start_time >= :since AND u.throttled_cpus > 0
GROUP BY j.user, j.collection_name, u.instance_index
ORDER BY denied_cpus DESC, j.collection_name, u.instance_index, j.user
LIMIT 200
