-- subject: Jobs and changes
-- title: Updates of jobs
-- about: Updates that started and ended, with their outcome, newest first.
SELECT time, actor, user, collection_name, type, spec_version, detail
FROM collection_events
WHERE time >= :since AND type IN ('update_start', 'update_end', 'update_running')
ORDER BY time DESC, revision DESC, seq DESC
LIMIT 500
