-- subject: Jobs and changes
-- title: Who changed what
-- about: Submissions, updates, kills and other changes of jobs by people, newest first.
SELECT time, actor, user, collection_name, type, priority, tasks, spec_version, detail
FROM collection_events
WHERE time >= :since AND actor NOT LIKE 'system:%'
ORDER BY time DESC, revision DESC, seq DESC
LIMIT 1000
