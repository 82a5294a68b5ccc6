"""The heartbeat file of Celery beat, which the variable BORG_PULSE names.

The scheduler touches the file after it has stored the schedule, and at each tick.
"""

from __future__ import annotations

from django_celery_beat.schedulers import DatabaseScheduler

from portal.up.supervision.pulse import pulse


class PulsingScheduler(DatabaseScheduler):  # type: ignore[misc]
    """Celery beat's scheduler, which also touches the heartbeat file."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        pulse()

    def tick(self, *args: object, **kwargs: object) -> float:
        wait_s: float = super().tick(*args, **kwargs)
        pulse()
        return wait_s
