-- subject: Jobs and changes
-- title: Activity per person
-- about: How many events each person or process caused, by kind.
SELECT actor, kind, COUNT(*) AS events, MIN(time) AS first_time, MAX(time) AS last_time
FROM events
WHERE time >= :since
GROUP BY actor, kind
ORDER BY events DESC, actor, kind
LIMIT 500
