-- subject: Machines
-- title: Capacity and load of racks
-- about: Machines, cores and mean use of cores per rack.
-- chart: switch_id, used_cpu_hours
SELECT m.switch_id, COUNT(*) AS machines, SUM(m.capacity_cpus) AS cpus, SUM(u.cpu_hours) AS used_cpu_hours
FROM machines m LEFT JOIN (
    SELECT machine_id, SUM(average_usage_cpus) / 12 AS cpu_hours
    FROM instance_usage
    WHERE start_time >= :since
    GROUP BY machine_id
) AS u ON u.machine_id = m.machine_id
WHERE m.state <> 'removed'
GROUP BY m.switch_id
ORDER BY m.switch_id
