-- subject: Machines
-- title: Who changed machines
-- about: Drains and other changes of machines, newest first.
SELECT e.time, e.actor, m.machine_name, e.type, e.detail
FROM machine_events e LEFT JOIN machines m ON m.machine_id = e.machine_id
WHERE e.time >= :since
ORDER BY e.time DESC, e.revision DESC, e.seq DESC
LIMIT 1000
