"""The heartbeat file of Celery beat: its scheduler touches the file in BORG_PULSE at each tick."""

from __future__ import annotations

from django_celery_beat.schedulers import DatabaseScheduler

from portal.up.supervision.pulse import pulse


class PulsingScheduler(DatabaseScheduler):  # type: ignore[misc]
    def tick(self, *args: object, **kwargs: object) -> float:
        wait_s: float = super().tick(*args, **kwargs)
        pulse()
        return wait_s
