-- subject: Evictions and crashes
-- title: Jobs that were preempted most, and by which jobs
-- about: Who lost machines to whom. The preempting job may belong to another tenant; its name is shown if you may see it.
SELECT e.collection_name AS preempted, p.collection_name AS preempted_by, e.preemptor_collection_id, COUNT(*) AS evictions,
    COUNT(DISTINCT e.instance_index) AS tasks
FROM instance_events e LEFT JOIN jobs p ON p.collection_id = e.preemptor_collection_id
WHERE e.time >= :since AND e.type = 'evict' AND e.cause = 'preemption'
GROUP BY e.collection_name, p.collection_name, e.preemptor_collection_id
ORDER BY evictions DESC, preempted, e.preemptor_collection_id NULLS LAST
LIMIT 100
