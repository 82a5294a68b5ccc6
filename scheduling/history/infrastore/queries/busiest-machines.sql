-- subject: Machines
-- title: Busiest machines
-- about: Mean use of CPU and memory of each machine in the hours with usage, and its busiest hour, summed over its tasks that you may see.
SELECT m.machine_name, AVG(w.cpus) / MAX(m.capacity_cpus) AS mean_cpu_share, MAX(w.cpus) / MAX(m.capacity_cpus) AS most_cpu_share,
    AVG(w.memory) / MAX(m.capacity_memory) AS mean_memory_share, MAX(w.memory) / MAX(m.capacity_memory) AS most_memory_share
FROM (
    SELECT machine_id, date_trunc('hour', start_time) AS hour, SUM(average_usage_cpus) / 12 AS cpus,
        SUM(average_usage_memory) / 12 AS memory
    FROM instance_usage
    WHERE start_time >= :since
    GROUP BY machine_id, date_trunc('hour', start_time)
) AS w JOIN machines m ON m.machine_id = w.machine_id
GROUP BY m.machine_name
ORDER BY mean_cpu_share DESC, m.machine_name
LIMIT 200
