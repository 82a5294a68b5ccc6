-- subject: Jobs and changes
-- title: How jobs ended
-- about: Jobs that ended in the period, by tenant, band and outcome, without jobs that are only in the archive.
SELECT user, band, outcome, COUNT(*) AS jobs, SUM(tasks) AS tasks
FROM jobs
WHERE ended_at >= :since
GROUP BY user, band, outcome
ORDER BY user, band, outcome
