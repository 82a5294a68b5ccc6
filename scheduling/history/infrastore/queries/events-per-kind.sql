-- subject: Jobs and changes
-- title: Events per kind and day
-- about: What fills the journal.
-- chart: day, events, kind
SELECT date_trunc('day', time) AS day, kind, COUNT(*) AS events, SUM(LENGTH(data)) AS bytes
FROM events
WHERE time >= :since
GROUP BY date_trunc('day', time), kind
ORDER BY day, events DESC, kind
