"""A maintenance window that an SRE writes with borgctl, and that a real master begins before it is killed."""

from __future__ import annotations

import datetime as dt
import signal
import time
from collections.abc import Callable

import pytest
from django.utils import timezone

from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.maintenance.window_keeper import WindowKeeper
from scheduling.models import Drain, MaintenanceWindow
from scheduling.policy.cell_settings import CellSettings
from tests.integration import cli_world, master_processes
from tests.integration.repack_rows import answer, scattered

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 120.0


def wait_for(cell, condition: Callable[[], bool]) -> None:
    """Answer for the machines until the condition holds."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it never happened"
        answer(cell)
        time.sleep(0.05)


def test_a_killed_master_leaves_a_window_that_the_next_one_ends(cell, ann, tmp_path, shared_portal) -> None:
    sre = cli_world.of(tmp_path, shared_portal, "sre", sre=True)
    scattered(ann, cell, machines=3, disruption_budget=6)
    until = (timezone.now() + dt.timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M")
    wrong, document = sre.failing("maintenance", "add", "m9", "--until", until, "--reason", "x")
    assert "this cell has no machine m9" in wrong
    assert list(document["fields"]) == ["machines"]
    asked = ("maintenance", "add", "m0", "--until", until, "--reason", "new fans", "--break-budgets")
    preview = sre.out(*asked, "--dry-run")
    assert "2, of which 2 have to move" in preview
    assert "ubar/web: 2 tasks to move, 6 may be down at once" in preview
    assert not MaintenanceWindow.objects.exists()
    with master_processes.running(tmp_path, "cc") as (first,):
        sre.out(*asked)
        row = MaintenanceWindow.objects.get()
        assert row.break_budgets
        wait_for(cell, lambda: Drain.objects.filter(window=row).exists())
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert "draining" in sre.out("maintenance", "list")
    changed = sre.out("maintenance", "change", str(row.pk), "--reason", "new fans and dust filters")
    assert "new fans and dust filters" in changed
    row.refresh_from_db()
    assert WindowKeeper(cell.id).turn(CellSettings(), now=row.ends_at), "the next master"
    assert not Drain.objects.exists()
    records = journal.tail(cell.id, after=0)
    assert [one.event.state for one in records if isinstance(one.event, events.MaintenanceSet)] == [
        "planned",
        "draining",
        "draining",
        "ended",
    ]
    drains = [one.event for one in records if isinstance(one.event, events.MachineState)]
    assert [one.state for one in drains if "maintenance" in one.reason] == ["draining", "up"], "each step once"
    assert "No maintenance window." in sre.out("maintenance", "list")
