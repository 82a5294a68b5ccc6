-- subject: Evictions and crashes
-- title: Jobs whose tasks crash
-- about: Failures and restarts per job, with the most frequent exit status and signal.
SELECT user, collection_name, COUNT(*) AS crashes, COUNT(DISTINCT instance_index) AS tasks,
    COUNT(DISTINCT machine_id) AS machines, MIN(exit_status) AS lowest_status, MAX(exit_status) AS highest_status,
    MAX(exit_signal) AS highest_signal, MAX(time) AS last_crash
FROM instance_events
WHERE time >= :since AND (type = 'fail' OR (type = 'report' AND restarts > 0 AND NOT up))
GROUP BY user, collection_name
ORDER BY crashes DESC, collection_name, user
LIMIT 100
