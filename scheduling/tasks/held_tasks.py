"""SQL that tells pending tasks which the scheduler may place from those that their own job holds back.

A job holds tasks back because of `start_after`, `after` and `max_running`. Such tasks do not starve. The statements use
the aliases `t` for a task and `j` for its job.
"""

from __future__ import annotations

# Since when the task has waited for the scheduler.
SINCE = "greatest(t.since, j.start_after, j.may_start_since)"
MAY_START = """
    (j.start_after IS NULL OR j.start_after <= clock_timestamp()) AND NOT j.waiting
    AND (j.max_running = 0 OR j.tasks_running < j.max_running)"""
