"""The heartbeat file of Celery beat, the process that starts periodic tasks. Its path is in the variable BORG_PULSE.

Celery beat touches the file after it has stored the schedule, and each time it looks for periodic tasks to start.
"""

from __future__ import annotations

from portal.up.supervision.pulse import pulse
from serving.beat import StandbyScheduler


class PulsingScheduler(StandbyScheduler):
    """A scheduler for Celery beat that also touches the heartbeat file."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        pulse()

    def tick(self, *args: object, **kwargs: object) -> float:
        wait_s: float = super().tick(*args, **kwargs)
        pulse()
        return wait_s
