"""The part of a master that plans re-packings and runs them."""

from __future__ import annotations

import time

import structlog
from django.db import InterfaceError, OperationalError

from quota.vocabulary.permissions import system
from scheduling.core.cell.state import CellState
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.vocabulary.policy import Policy
from scheduling.journal import journal
from scheduling.models import Repacking
from scheduling.repacking.planning import plan_make
from scheduling.repacking.repackings import stop
from scheduling.repacking.run import run_advance

log = structlog.get_logger(__name__)


class Repacker:
    """Plans and runs the re-packings of one cell. Everything that must not be lost is in rows."""

    def __init__(self, cell_id: int) -> None:
        self.cell_id = cell_id
        self._relocation: Relocation | None = None

    def turn(self, state: CellState, policy: Policy, *, patience_s: float, booked: frozenset[int]) -> bool:
        """Make a plan that was requested, or advance the re-packing that runs. Return whether something changed.

        `patience_s`: how long a step may last. `booked`: the ids of machines on which capacity is booked for a gang.
        """
        wanted = (Repacking.PLANNING, Repacking.RUNNING)
        row = Repacking.objects.filter(cell=self.cell_id, state__in=wanted).first()
        if row is None:
            self._relocation = None  # free its memory
            return False
        if row.state == Repacking.PLANNING:
            plan_make(row, state, policy, patience_s=patience_s, booked=booked)
            return True
        relocation = self._relocation
        if relocation is None or not relocation.is_for(state, policy):
            relocation = self._relocation = Relocation(state, policy, now=time.time())
        relocation.now = time.time()
        try:
            return run_advance(row, state, relocation, patience_s=patience_s, booked=booked)
        except (OperationalError, InterfaceError):
            raise  # the database is away
        except Exception:  # a re-packing that cannot go on must not stop the master
            log.exception("a re-packing failed; it stops", repacking=row.pk)
            self._relocation = None
            with journal.write(self.cell_id, system("repacking")) as entry:
                locked = Repacking.objects.select_for_update().filter(pk=row.pk, state=Repacking.RUNNING).first()
                if locked is not None:
                    stop(entry, locked, "an unexpected error, which the log of the master contains")
            return True
