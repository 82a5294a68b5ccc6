"""Restart a task whose health checks fail (§2.6). Pure."""

from __future__ import annotations

from borglet.messages import EndCause, Health, Phase
from borglet.state import health_watch, stopping
from borglet.state.events import ProbeAnswered
from borglet.state.instructions import Instruction
from borglet.state.machine_state import Holdings


def probe_answered(holdings: Holdings, event: ProbeAnswered, out: list[Instruction], *, now: float) -> None:
    """Handle the answer to a health probe. After too many failed probes in a row, append to `out` the instructions that
    stop the task, so that it restarts.
    """
    inc = holdings.by_key.get(event.key)
    if inc is None or inc.run != event.run or inc.watch is None or inc.task.health is None:
        return
    before = inc.watch.health
    inc.watch = health_watch.answered(
        inc.watch, inc.task.health, ok=event.ok, detail=event.detail, holds_s=event.holds_s, now=now
    )
    if inc.watch.health is not before:
        inc.was_up = inc.was_up or stopping.is_served(inc)
        holdings.version += 1
    if inc.watch.health is Health.UNHEALTHY and inc.phase is Phase.UP and inc.key in holdings.run:
        detail = f"{inc.watch.failures} health checks in a row failed; the last error was: {inc.watch.detail}"
        stopping.order(inc, inc.task.notice_s, EndCause.UNHEALTHY, detail, out, now=now)
        holdings.version += 1
