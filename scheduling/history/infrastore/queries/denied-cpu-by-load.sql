-- subject: Usage and limits
-- title: Denied CPU by the load of machines
-- about: How often limits denied CPU to tasks, by how busy their machine was: the percentage of their usage windows. It is similar to Figure 13 of the Borg paper, which counts threads that waited. The load of a machine is the sum over its tasks that you may see.
-- chart: load, denied_percent, kind
SELECT b.load, k.kind, CASE WHEN k.kind = 'batch' THEN b.batch ELSE b.sensitive END AS windows,
    CASE WHEN k.kind = 'batch' THEN 100.0 * b.batch_denied / b.batch
        ELSE 100.0 * b.sensitive_denied / b.sensitive END AS denied_percent
FROM (
    SELECT LEAST(FLOOR(10 * w.cpus / m.capacity_cpus), 10) / 10.0 AS load, SUM(w.sensitive) AS sensitive,
        SUM(w.sensitive_denied) AS sensitive_denied, SUM(w.batch) AS batch, SUM(w.batch_denied) AS batch_denied
    FROM (
        SELECT u.machine_id, u.start_time, SUM(u.average_usage_cpus) AS cpus,
            SUM(CASE WHEN j.scheduling_class >= 2 THEN 1 ELSE 0 END) AS sensitive,
            SUM(CASE WHEN j.scheduling_class >= 2 AND u.throttled_cpus > 0 THEN 1 ELSE 0 END) AS sensitive_denied,
            SUM(CASE WHEN j.scheduling_class >= 2 THEN 0 ELSE 1 END) AS batch,
            SUM(CASE WHEN j.scheduling_class < 2 AND u.throttled_cpus > 0 THEN 1 ELSE 0 END) AS batch_denied
        FROM instance_usage u JOIN jobs j ON j.collection_id = u.collection_id
        WHERE u.start_time >= :since
        GROUP BY u.machine_id, u.start_time
    ) AS w JOIN machines m ON m.machine_id = w.machine_id
    WHERE m.capacity_cpus > 0
    GROUP BY LEAST(FLOOR(10 * w.cpus / m.capacity_cpus), 10)
) AS b CROSS JOIN (SELECT 'batch' AS kind UNION ALL SELECT 'latency-sensitive' AS kind) AS k
WHERE CASE WHEN k.kind = 'batch' THEN b.batch ELSE b.sensitive END > 0
ORDER BY load, kind
