"""The process of one scheduler of a cell: it works while it holds the lease, and is a warm standby otherwise (§3.1).

    start ─► load the state ─► standby: follow the journal ── the lease is free ─► take it ─► run passes
                                   ▲                                                              │
                                   └──────────────── another process holds the lease ─────────────┘

Any number of processes may run for the same scheduler, on any hosts. Taking over needs only PostgreSQL: neither Redis
nor Celery. A standby looks at the lease twice per second, and ten times per second whether the holder's process on this
host still exists.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from django.db import DatabaseError, connection

from quota.vocabulary.errors import Rejected
from scheduling.autoscaling.autoscale_thread import autoscale_thread
from scheduling.cron.cron_thread import cron_thread
from scheduling.master import lease, schedulers, standbys
from scheduling.master.schedulers import Scheduler
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.workflows.workflow_thread import workflow_thread

if TYPE_CHECKING:
    from scheduling.master.loop import Master

log = structlog.get_logger(__name__)

# The master works, or stands by, for this long before the process looks again at what it should do.
TURN_S = 30.0
# The pause before the next attempt if the cell or its scheduler is missing, or after an error. It doubles after each
# error that follows another one.
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
_BATCH = ".batch"


@dataclass(slots=True)
class MasterProcess:
    """The process `name`: the name of a cell, or `CELL.batch` for the second scheduler of a cell whose setting
    `schedulers` is `by-workload`. `pulse`: a file that it touches to show that it works.

    If the cell does not exist, or its settings do not list the scheduler, the process waits until they do.
    """

    name: str
    pulse: Path | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    _master: Master | None = None
    _waits_for: str = ""  # what the last log line said that this process waits for
    _failures: int = 0  # errors in a row
    _works: bool = False  # whether it has the lease, or tries to take it

    def run(self) -> None:
        """Work until `stopping` is set. Release the lease at the end, so that a standby takes over at once."""
        cell = self.name.removesuffix(_BATCH)

        def works() -> bool:
            return self._works

        threads = (cron_thread, workflow_thread, autoscale_thread)
        with ExitStack() as running:
            for thread in threads:
                running.enter_context(thread(cell, is_working=works))
            self._run()

    def _run(self) -> None:
        self._release_leases_of_ended_processes()
        while not self.stopping.is_set():
            self._touch()
            try:
                worked, self._failures = self._turn(), 0
            except Exception:
                # The state in memory may be wrong after an unexpected error, so it is loaded again. A standby may take
                # over meanwhile, because the error may concern only this process.
                log.exception("the master failed; it starts again", process=self.name)
                connection.close()
                worked, self._failures = False, self._failures + 1
                self._give_up()
            if not worked:
                self.stopping.wait(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** max(0, self._failures - 1)))
        self._give_up()

    def _turn(self) -> bool:
        """Work or stand by for `TURN_S` seconds. Return False if this process has nothing to do now."""
        master = self._current()
        if master is None:
            return False
        self._works = True
        try:
            worked = master.run(TURN_S, self.stopping)
        finally:
            self._works = False
        if worked:
            return True
        if not master.wanted:
            self._master = None
            return False
        master.stand_by(TURN_S, self.stopping)
        if not master.wanted:
            self._master = None
            return False
        return True

    def _current(self) -> Master | None:
        """Return the master of the scheduler that the cell's settings list for this process, or None."""
        if self._master is None and (found := self._wanted()) is not None:
            from scheduling.master.loop import Master  # 70 MB of compiled code, which an idle process does not need

            cell_id, scheduler = found
            self._waits_for = ""
            self._master = Master(cell_id, scheduler, alive=self._touch)
            self._master.prepare()
        return self._master

    def _wanted(self) -> tuple[int, Scheduler] | None:
        cell = self.name.removesuffix(_BATCH)
        try:
            found = Cell.operated.filter(name=cell).values_list("id", "settings").first()
            if found is None:
                self._wait_for(f"a cell named {cell}")
                return None
            cell_id, settings = found
            for scheduler in schedulers.wanted(cell_settings.load(settings)):
                if schedulers.process_of(cell, scheduler) == self.name:
                    return cell_id, scheduler
            self._wait_for("the setting `schedulers` of the cell to list this scheduler")
        except Rejected as refusal:
            self._wait_for(f"valid settings of the cell: {refusal.detail}")
        except DatabaseError as error:
            self._wait_for(f"the database: {str(error).strip()}")
            connection.close()
        return None

    def _wait_for(self, what: str) -> None:
        if what != self._waits_for:
            self._waits_for = what
            log.info("the master cannot work yet; `waits_for` names the cause", process=self.name, waits_for=what)

    def _release_leases_of_ended_processes(self) -> None:
        """Release the leases of processes of this host that have ended, so that a standby of another host need not wait
        until they expire while this process loads its state.
        """
        try:
            lease.release_ended(self.name.removesuffix(_BATCH))
        except DatabaseError as error:
            log.warning("cannot release leases of ended processes", process=self.name, error=str(error).strip())
            connection.close()

    def _give_up(self) -> None:
        """Discard the master and release its lease, so that a standby can take over."""
        master, self._master = self._master, None
        if master is None:
            return
        try:
            lease.release(master.cell_id, scheduler=master.scheduler.name, holder=master.holder)
            standbys.forget(master.cell_id, scheduler=master.scheduler.name, holder=master.holder)
            log.info("the master has released its lease", process=self.name)
        except DatabaseError as error:
            log.warning(
                "the master cannot release its lease of the cell; the lease expires by itself",
                process=self.name,
                error=str(error).strip(),
            )
            connection.close()

    def _touch(self) -> None:
        if self.pulse is not None:
            with suppress(OSError):  # the disk may be full
                self.pulse.touch(mode=0o600)


def pulse_file() -> Path | None:
    """Return the heartbeat file that the environment variable BORG_PULSE names, or None."""
    name = os.environ.get("BORG_PULSE")
    return Path(name) if name else None
