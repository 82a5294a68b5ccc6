"""SQL that tells pending tasks which the scheduler may place from those that their own job holds back.

A job holds tasks back because of `start_after`, `after` and `max_running`. Such tasks do not starve. The statements use
the aliases `t` for a task, `j` for its job and `m` for `MOVED`.
"""

from __future__ import annotations

# When a task of a job with `max_running` was last placed, came up, went down or ended. Since then another may start.
MOVED = """
    moved AS (SELECT b.id, max(o.since) AS at FROM scheduling_job AS b JOIN scheduling_task AS o ON o.job_id = b.id
        WHERE b.max_running > 0 AND b.ended_at IS NULL AND o.state <> 'pending' GROUP BY b.id)"""
JOINED = "LEFT JOIN moved AS m ON m.id = j.id"
# Since when the task has waited for the scheduler.
SINCE = "greatest(t.since, j.start_after, j.released_at, m.at)"
MAY_START = """
    (j.start_after IS NULL OR j.start_after <= clock_timestamp()) AND NOT j.waiting
    AND (j.max_running = 0 OR j.tasks_running < j.max_running)"""
