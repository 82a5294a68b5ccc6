"""The health of a task, computed from the answers to its health probes (§2.6). Pure. The module `health_prober` sends
the probes.

After a start, the Borglet probes often, so that a task soon counts as healthy. After the first success, it sends a
probe every `interval_s` seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from borglet.messages import Health, HealthCheck

FIRST_PROBE_S = 0.1
# Before the first success, the pause is this share of the time since the start. This gives ten probes in the first
# second, and about 46 in the first minute.
FIRST_PROBE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class HealthWatch:
    """The health of one run of a task, and when to probe the task next. Times are seconds since the epoch."""

    since: float  # start of the run
    due: float  # time of the next probe; infinite while a probe waits for its answer
    health: Health = Health.UNKNOWN
    failures: int = 0  # failures in a row, without those in the grace period
    succeeded: bool = False
    detail: str = ""  # reason of the last failure


def answered(
    watch: HealthWatch, check: HealthCheck, *, ok: bool, detail: str, holds_s: float, now: float
) -> HealthWatch:
    """Return the health of a task after the answer to a probe. `holds_s`: the answer is valid for this number of
    seconds, so the next probe is sent only after them.
    """
    if ok:
        due = now + max(check.interval_s, holds_s)
        return replace(watch, due=due, health=Health.HEALTHY, failures=0, succeeded=True, detail="")
    if not watch.succeeded and now - watch.since < check.grace_s:
        pause = max(FIRST_PROBE_S, FIRST_PROBE_SHARE * (now - watch.since))
        return replace(watch, due=now + min(pause, check.interval_s), detail=detail)
    failures = watch.failures + 1
    health = Health.UNHEALTHY if failures >= check.failures else watch.health
    return replace(watch, due=now + check.interval_s, health=health, failures=failures, detail=detail)
