"""The condition with which gates of updates and of services find tasks that fail (§2.3)."""

from __future__ import annotations

from borglet.messages import Health, Phase
from scheduling.jobs.health import BLAMELESS
from scheduling.jobs.rollouts.rollout import HOPELESS_RESTARTS

# The values to which `failing_since` refers.
FIGURES = {
    "blameless": BLAMELESS,
    "backoff": Phase.BACKOFF.value,
    "unhealthy": Health.UNHEALTHY.value,  # and `EndCause.UNHEALTHY`
    "hopeless": HOPELESS_RESTARTS,
}


def failing_since(time: str) -> str:
    """Return an SQL condition for a task `t`: it is not up, because it failed after `time` (an SQL expression). Ends
    for which the task is not to blame do not count. The exit status 0 counts only after several restarts.
    """
    return f"""NOT t.up AND (t.state = 'running' AND t.health = %(unhealthy)s AND t.since >= {time}
    OR NOT coalesce(t.exit->>'cause', '') = ANY(%(blameless)s)
      AND (coalesce(t.exit->>'status', '') <> '0' OR t.exit->>'cause' = %(unhealthy)s OR t.restarts >= %(hopeless)s)
      AND (t.state = 'dead' AND t.outcome = 'failed' AND t.since >= {time}
        OR t.state = 'pending' AND (t.exit->>'at')::float >= extract(epoch FROM {time})
        OR t.state = 'running' AND (t.restarts > 0 OR t.phase = %(backoff)s)
          AND (t.since >= {time} OR (t.exit->>'at')::float >= extract(epoch FROM {time}))))"""
