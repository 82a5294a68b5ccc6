-- subject: Machines
-- title: Machines that crash tasks
-- about: Machines on which tasks failed or crashed, with the number of jobs that are affected. A machine with many jobs is suspect.
SELECT m.machine_name, m.switch_id, m.platform_id, COUNT(*) AS crashes, COUNT(DISTINCT e.collection_id) AS jobs,
    COUNT(DISTINCT e.exit_signal) AS signals, MAX(e.time) AS last_crash
FROM instance_events e JOIN machines m ON m.machine_id = e.machine_id
WHERE e.time >= :since AND (e.type = 'fail' OR (e.type = 'report' AND e.restarts > 0 AND NOT e.up))
GROUP BY m.machine_name, m.switch_id, m.platform_id
ORDER BY jobs DESC, crashes DESC, m.machine_name
LIMIT 100
