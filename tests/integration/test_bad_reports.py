"""Tests of reports with text that PostgreSQL cannot store: the text is changed, and the report is written."""

from __future__ import annotations

import pytest

from borglet.messages import EndCause, Exit
from scheduling.models import Task
from tests.integration import rows
from tests.integration.simulated_cell import SimulatedCell

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("restart", [True, False])
def test_a_nul_character_in_the_words_of_an_end(restart: bool) -> None:
    """A NUL character in the detail of a task's exit is replaced by U+FFFD, because PostgreSQL cannot store it."""
    cell = SimulatedCell(rows.a_cell())
    borglet = cell.add(rows.a_machine(cell.cell))
    job = rows.a_job(cell.cell, rows.a_tenant(), tasks=2)
    cell.commit(cell.decide())
    for _ in range(2):
        cell.talk(borglet)
    key = min(borglet.runs)
    status = 1 if restart else 0
    borglet.ends(key, Exit(EndCause.EXITED, cell.now, status=status, detail="a\x00b"), cell.now)
    cell.talk(borglet)
    told = Task.objects.get(job=job, index=key.index)
    assert told.exit is not None
    assert told.exit["detail"] == "a\ufffdb"
