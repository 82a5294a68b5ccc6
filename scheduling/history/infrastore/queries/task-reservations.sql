-- subject: Usage and limits
-- title: Reservations of tasks, and how often they change
-- about: For each job, how many times reclamation changed a reservation, and the mean and highest reservation.
SELECT j.user, j.collection_name, COUNT(*) AS changes, COUNT(DISTINCT r.instance_index) AS tasks,
    AVG(r.reserved_cpus) AS mean_reserved_cpus, MAX(r.reserved_cpus) AS most_reserved_cpus,
    AVG(r.reserved_memory) AS mean_reserved_memory, MAX(r.reserved_memory) AS most_reserved_memory
FROM reservations r JOIN jobs j ON j.collection_id = r.collection_id
WHERE r.time >= :since
GROUP BY j.user, j.collection_name
ORDER BY changes DESC, j.collection_name, j.user
LIMIT 200
