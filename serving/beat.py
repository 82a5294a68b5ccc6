"""The scheduler of Celery beat. Several hosts may run beat: one sends the periodic tasks, and the others are standbys.

A beat works while its session with PostgreSQL holds an advisory lock. PostgreSQL releases the lock when the session
ends, so a standby takes over about a second after the working beat or its host has ended.
"""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, connection
from django_celery_beat.schedulers import DatabaseScheduler
from structlog import get_logger

log = get_logger(__name__)

STANDBY_S = 1.0  # time between two attempts of a standby to get the lock
# A beat calls PostgreSQL at least every five seconds. The session of one that hangs ends after this time.
HANGS_S = 30
_LOCK = int.from_bytes(b"borgbeat")


class StandbyScheduler(DatabaseScheduler):  # type: ignore[misc]
    """A scheduler that sends periodic tasks only while it holds the lock. `works`: whether it holds the lock."""

    works = False

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._session = connection.copy()
        super().__init__(*args, **kwargs)

    def tick(self, *args: object, **kwargs: object) -> float:
        """Send the task that is due, if there is one. Return the seconds until the next call."""
        before, self.works = self.works, self._has_lock()
        if self.works != before:
            log.info("beat works" if self.works else "beat is a standby")
            # Another beat may have sent tasks since, so the schedule is read again, and no earlier times are written.
            self._dirty.clear()
            self._initial_read, self._heap = True, None
        if not self.works:
            return STANDBY_S
        wait_s: float = super().tick(*args, **kwargs)
        return wait_s

    def close(self) -> None:
        """Store the times of the last runs, and release the lock."""
        super().close()
        self._session.close()

    def _has_lock(self) -> bool:
        """Return whether this session holds the lock. If the session has ended, it does not."""
        try:
            with self._session.cursor() as cursor:
                if self.works:
                    cursor.execute("SELECT 1")
                    return True
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
                found = bool(cursor.fetchone()[0])
                cursor.execute("SELECT set_config('idle_session_timeout', %s, false)", [f"{HANGS_S}s"])
                return found
        except (DatabaseError, InterfaceError) as error:
            log.warning("Celery beat cannot reach PostgreSQL", error=str(error).strip())
            self._session.close()
            return False
