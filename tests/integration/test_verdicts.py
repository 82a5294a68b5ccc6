"""Why tasks are pending is told to each job of its own tasks alone: a class is shared among jobs, and tenants."""

from __future__ import annotations

import pytest

from scheduling import verdicts
from scheduling.models import PendingVerdict
from tests.integration import rows
from tests.integration.simulated_cell import SimulatedCell

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_verdict_names_no_job_of_another_tenant() -> None:
    cell = SimulatedCell(rows.a_cell())
    rows.a_machine(cell.cell, capacity=(10, 2**20, 2**20, 0, 0, 1))
    jobs = {
        rows.a_job(cell.cell, rows.a_tenant(tenant), tasks=number).id: number
        for tenant, number in (("ubar", 2), ("other", 3))
    }
    verdicts.store(cell.cell.id, cell.decide())
    told = {row.job_id: verdicts.read(row.whys) for row in PendingVerdict.objects.all()}
    assert {job: [why.tasks for why in whys] for job, whys in told.items()} == {
        job: [((job, number),)] for job, number in jobs.items()
    }
