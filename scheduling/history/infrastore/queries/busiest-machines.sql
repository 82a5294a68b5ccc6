-- title: Busiest machines
-- about: Mean and highest use of CPU and memory of each machine, summed over its tasks that you may see.
SELECT m.machine_name, AVG(w.cpus) / MAX(m.capacity_cpus) AS mean_cpu_share, MAX(w.cpus) / MAX(m.capacity_cpus) AS most_cpu_share,
    AVG(w.memory) / MAX(m.capacity_memory) AS mean_memory_share, MAX(w.memory) / MAX(m.capacity_memory) AS most_memory_share
FROM (
    SELECT machine_id, start_time, SUM(average_usage_cpus) AS cpus, SUM(average_usage_memory) AS memory
    FROM instance_usage
    WHERE start_time >= :since
    GROUP BY machine_id, start_time
) AS w JOIN machines m ON m.machine_id = w.machine_id
GROUP BY m.machine_name
ORDER BY mean_cpu_share DESC, m.machine_name
LIMIT 200
