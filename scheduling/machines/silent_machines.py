"""The detection of silent machines, and of network partitions, which look like many dead machines (§4).

    Redis: report times, live shards ──► Silence.judge ──► machines to mark as down
    rows:  machines up, draining ────────────┘

A machine counts as silent only if this process has watched it for long enough. The process starts to watch from
scratch if no shard is alive, if Redis was unreachable or has lost the report time of a machine, or if the process
itself stood still. It also does so while a shard is overloaded.

If too many machines of the cell or of one shard become silent together, their connections may have failed instead of
the machines. So they are not marked as down for a limited time. This time starts again when some of these machines
report. The machines of a dead shard get the same time to find another shard. `scheduling.machines.evacuation` evicts
tasks from machines that are marked as down.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import redis
import structlog

from quota.vocabulary.permissions import system
from scheduling.machines import last_contact
from scheduling.machines.last_contact import SHARD_TTL_S, Contacts
from scheduling.machines.machines import DRAINING, UP, machines_down
from scheduling.machines.poll_times import poll_interval
from scheduling.models import Machine
from scheduling.policy.brake_rules import ALWAYS_BELIEVED
from scheduling.policy.cell_settings import CellSettings

log = structlog.get_logger(__name__)

# A sweep runs every second. After a longer gap than this, this process stood still.
STANDSTILL_S = 5.0
# After an error, Redis is not read for this time, because the master waits for each read.
AWAY_S = 5.0
# For this time at most, an overloaded shard, or one whose machines return slowly, protects its silent machines.
OVERLOAD_BELIEVED_S = 600.0
# The hold of a poll is up to a tenth longer than the interval.
_JITTER = 1.1
_WHOLE_CELL = ""


@dataclass(slots=True)
class _Suspicion:
    """The suspicion that a shard has failed and that its machines still work. `late`: the smallest number of late
    machines that the shard has had since the suspicion began. `hopeful_at`: the time when this number last fell.
    """

    began_at: float
    hopeful_at: float
    late: int

    def note(self, late: int, now: float) -> None:
        if late < self.late:
            self.late, self.hopeful_at = late, now

    def holds(self, hold_s: float, now: float) -> bool:
        return now - self.hopeful_at <= hold_s and now - self.began_at <= OVERLOAD_BELIEVED_S


@dataclass(slots=True)
class Silence:
    """The detector of silent machines in one master. Times are in seconds by Redis' clock.

    `late`: how many machines are late: their report is overdue, but they are not marked as down. In a network
    partition, the machines do not become silent all at once, because each has answered at another time. All of them are
    late before the first one is silent. So the partition can be detected in time.
    """

    late: int = 0
    _since: dict[int, float] = field(default_factory=dict)
    _heard: frozenset[int] = frozenset()  # machines with a contact in Redis at the last sweep
    _swept: float = 0.0
    _suspected: dict[str, _Suspicion] = field(default_factory=dict)  # by shard, or `_WHOLE_CELL`
    _overloaded_since: float | None = None
    _away_until: float = 0.0  # by the clock of this process

    def sweep(self, cell_id: int, settings: CellSettings) -> list[int]:
        """Mark the silent machines of a cell as down, and return the ids of these machines."""
        self.late = 0
        if time.monotonic() < self._away_until:
            return []
        live = Machine.objects.filter(cell_id=cell_id, state__in=[UP, DRAINING])
        ids = list(live.order_by().values_list("id", flat=True))
        try:
            contacts = last_contact.read(cell_id)
            silent = self.judge(contacts, ids, settings, holders=lambda: last_contact.holders(cell_id))
        except redis.RedisError as error:
            if self._swept:
                log.warning(
                    "cannot read when machines last reported; no machine is marked down",
                    cell_id=cell_id,
                    error=str(error),
                )
            self._start_again()
            self._away_until = time.monotonic() + AWAY_S
            return []
        if not silent:
            return []
        reason = f"no report for more than {settings.down_after_s:g} s"
        down = machines_down(principal=system("master"), cell_id=cell_id, machine_ids=silent, reason=reason)
        self.late = max(0, self.late - len(down))
        log.warning("machines are marked down", cell_id=cell_id, machines=down[:20], number=len(down))
        return down

    def judge(
        self,
        contacts: Contacts,
        ids: Iterable[int],
        settings: CellSettings,
        *,
        holders: Callable[[], Mapping[int, str]] = dict,
    ) -> list[int]:
        """Return the ids of the machines to mark as down now. Reads neither Redis nor the database.

        `ids`: the machines that are up or draining. `holders`: a function that returns, by machine id, the shard to
        which the machine connected last; it is called only if a machine is silent.
        """
        now = contacts.now
        ids = frozenset(ids)
        emptied = not (self._heard & ids) <= contacts.last.keys()
        if (
            contacts.shards == 0
            or emptied
            or self._link_overloaded(contacts)
            or not 0 <= now - self._swept <= STANDSTILL_S
        ):
            self._start_again()
        self._swept, self._heard = now, ids & contacts.last.keys()
        self._since = {machine: self._since.get(machine, now) for machine in ids}
        polled_s = poll_interval(len(self._since), settings.poll_interval_s) * _JITTER
        late_s = max(0.0, settings.down_after_s - polled_s)
        late = last_contact.silent_machines(contacts, self._since, after_s=late_s)
        self.late = len(late)
        silent = last_contact.silent_machines(contacts, self._since, after_s=settings.down_after_s)
        if not silent:
            self._suspected = {}
            return []
        held_by = holders()
        doubted = self._doubt(late, held_by, settings, now)
        if _WHOLE_CELL in doubted:
            return []
        return [
            machine
            for machine in silent
            if (shard := held_by.get(machine)) is None
            or (shard not in doubted and not _shard_died(contacts, shard, settings.suspect_hold_s))
        ]

    def _link_overloaded(self, contacts: Contacts) -> bool:
        """Return whether a shard is overloaded. Machines that wait for an overloaded shard may only seem silent."""
        if not contacts.overloaded:
            self._overloaded_since = None
            return False
        if self._overloaded_since is None:
            self._overloaded_since = contacts.now
            log.warning(
                "link shards are overloaded, so reports of machines may be late; no machine is marked down for now",
                shards=sorted(contacts.overloaded),
            )
        return contacts.now - self._overloaded_since <= OVERLOAD_BELIEVED_S

    def _doubt(self, late: list[int], held_by: Mapping[int, str], settings: CellSettings, now: float) -> set[str]:
        """Return the names of the shards that may have failed, because too many of their machines stopped reporting
        together. The name `""` means the whole cell.
        """
        held = Counter(shard for machine in self._since if (shard := held_by.get(machine)) is not None)
        held[_WHOLE_CELL] = len(self._since)
        lost = Counter(shard for machine in late if (shard := held_by.get(machine)) is not None)
        lost[_WHOLE_CELL] = len(late)
        # A suspected shard stays suspected until all its machines report, even if few of them are still late.
        suspects = {
            shard
            for shard, number in lost.items()
            if (number and shard in self._suspected)
            or number > max(ALWAYS_BELIEVED, settings.suspect_share * held[shard])
        }
        for shard in sorted(suspects - self._suspected.keys()):
            log.error(
                "too many machines stopped reporting together; link shards may have failed, so no machine is marked"
                " down yet",
                shard=shard or "all",
                silent=lost[shard],
                machines=held[shard],
                hold_s=settings.suspect_hold_s,
            )
        self._suspected = {shard: self._suspected.get(shard) or _Suspicion(now, now, lost[shard]) for shard in suspects}
        for shard, suspicion in self._suspected.items():
            suspicion.note(lost[shard], now)
        return {shard for shard, suspicion in self._suspected.items() if suspicion.holds(settings.suspect_hold_s, now)}

    def _start_again(self) -> None:
        self._since = {}
        self._heard = frozenset()
        self._swept = 0.0
        self._suspected = {}


def _shard_died(contacts: Contacts, shard: str, grace_s: float) -> bool:
    """Return whether a shard is dead, but has sent a heartbeat in the last `grace_s` seconds. Its machines may still be
    looking for another shard.
    """
    age = contacts.now - contacts.beats.get(shard, float("-inf"))
    return SHARD_TTL_S < age <= grace_s
