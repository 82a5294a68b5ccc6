-- subject: Jobs and changes
-- title: Rejected submissions
-- about: Submissions that admission control rejected, with the reason.
SELECT time, actor, user, collection_name, detail
FROM collection_events
WHERE time >= :since AND type = 'reject'
ORDER BY time DESC, revision DESC, seq DESC
LIMIT 500
