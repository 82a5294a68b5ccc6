-- subject: Machines
-- title: Machines that went down
-- about: How often machines went down or were drained, and the last reason.
SELECT m.machine_name, m.switch_id, m.power_domain,
    SUM(CASE WHEN e.type = 'down' THEN 1 ELSE 0 END) AS down,
    SUM(CASE WHEN e.type = 'draining' THEN 1 ELSE 0 END) AS drained, MAX(e.time) AS last_change,
    MAX(e.detail) AS a_reason
FROM machine_events e JOIN machines m ON m.machine_id = e.machine_id
WHERE e.time >= :since AND e.type IN ('down', 'draining')
GROUP BY m.machine_name, m.switch_id, m.power_domain
ORDER BY down DESC, drained DESC, m.machine_name
LIMIT 200
