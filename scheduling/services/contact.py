"""Which machines have fallen silent, and whether to believe it (§4: a partition looks like many dead machines).

    Redis: contacts, shards alive ──► Silence.judge ──► these are down | hold off, because …
    rows:  machines up, draining ─────────┘

Nobody is silent unless this process watched for long enough: counting starts anew when no shard is alive, when
Redis was away, and when this process itself stood still. When too many fall silent together, the link is
suspected first, for a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import redis
import structlog

from quota.permissions import system
from scheduling.config import CellSettings
from scheduling.link import contact
from scheduling.link.contact import Contacts
from scheduling.models import Machine
from scheduling.services.machines import DRAINING, UP, machines_down

log = structlog.get_logger(__name__)

# A sweep comes every second; one this late means that this process stood still.
STANDSTILL_S = 5.0
# Redis is not asked again for so long after it gave no answer: the master waits for each.
AWAY_S = 5.0
# So few machines may always be dead together.
ALWAYS_BELIEVED = 3


@dataclass(slots=True)
class Silence:
    """One per master. Times are Redis' clock, in seconds."""

    _since: dict[int, float] = field(default_factory=dict)
    _swept: float = 0.0
    _suspected: float | None = None
    _away_until: float = 0.0  # on this process' clock

    def sweep(self, cell_id: int, settings: CellSettings) -> list[int]:
        """Mark the machines down that are silent beyond doubt. Returns them."""
        if time.monotonic() < self._away_until:
            return []
        live = Machine.objects.filter(cell_id=cell_id, state__in=[UP, DRAINING])
        ids = list(live.values_list("id", flat=True))
        try:
            contacts = contact.read(cell_id)
        except redis.RedisError as error:
            if self._swept:
                log.warning("contact unknown, nobody is judged", cell_id=cell_id, error=str(error))
            self._start_anew()
            self._away_until = time.monotonic() + AWAY_S
            return []
        silent = self.judge(contacts, ids, settings)
        if not silent:
            return []
        reason = f"not heard of for more than {settings.down_after_s:g} s"
        down = machines_down(
            principal=system("master"), cell_id=cell_id, machine_ids=silent, reason=reason
        )  # fmt: skip
        log.warning("machines down", cell_id=cell_id, machines=down[:20], number=len(down))
        return down

    def judge(self, contacts: Contacts, ids: Iterable[int], settings: CellSettings) -> list[int]:
        """Those to be marked down now. `ids`: machines that count as alive. Touches neither Redis nor rows."""
        now = contacts.now
        if contacts.shards == 0 or not 0 <= now - self._swept <= STANDSTILL_S:
            self._start_anew()
        self._swept = now
        self._since = {machine: self._since.get(machine, now) for machine in ids}
        silent = contact.silent_machines(contacts, self._since, after_s=settings.down_after_s)
        if len(silent) <= max(ALWAYS_BELIEVED, settings.suspect_share * len(self._since)):
            self._suspected = None
            return silent
        if self._suspected is None:
            self._suspected = now
            log.error(
                "too many machines fell silent together: the link is suspected, none is marked down yet",
                silent=len(silent),
                machines=len(self._since),
                hold_s=settings.suspect_hold_s,
            )
        return silent if now - self._suspected > settings.suspect_hold_s else []

    def _start_anew(self) -> None:
        self._since = {}
        self._swept = 0.0
        self._suspected = None
