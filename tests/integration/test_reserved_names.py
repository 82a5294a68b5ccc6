"""Names that DNS could not serve are refused when they are made, with the field and the cure."""

from __future__ import annotations

import pytest

from naming import names
from quota.errors import Refused
from quota.models import Record, Tenant
from quota.services import tenants
from scheduling import journal
from scheduling.models import Cell, Job
from scheduling.services import cells, jobs, plans
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
LONG = "a" * 63


@pytest.mark.parametrize("name", ["ns", "health"])
def test_a_cell_can_not_be_called_as_the_zone_calls_its_own(name: str) -> None:
    with pytest.raises(Refused, match="choose another") as caught:
        cells.cell_create(principal=rows.ME, name=name)
    assert (caught.value.code, list(caught.value.fields)) == ("reserved-name", ["name"])
    assert not Cell.objects.exists()
    assert cells.cell_create(principal=rows.ME, name=f"{name}1").name == f"{name}1"


def test_a_tenant_can_not_be_called_machine() -> None:
    with pytest.raises(Refused, match="choose another") as caught:
        tenants.tenant_create(principal=rows.ME, name="machine")
    assert (caught.value.code, list(caught.value.fields)) == ("reserved-name", ["name"])
    assert (Tenant.objects.count(), Record.objects.count()) == (0, 0)
    assert tenants.tenant_create(principal=rows.ME, name="machines").name == "machines"


def test_what_is_refused_is_what_the_zones_use() -> None:
    assert cells.RESERVED_NAMES == names.RESERVED_CELLS
    assert tenants.RESERVED_NAMES == names.RESERVED_TENANTS
    assert jobs.MAX_DNS_NAME == names.MAX_NAME


def test_the_last_task_of_a_job_has_a_name_that_fits(settings) -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    ann = world.principal("ann", tenant=tenant)
    settings.BORG_ZONE = "z" * (names.MAX_NAME - len(f"9.{LONG}.ubar.cc."))
    file = world.a_file(LONG, tasks=10, priority=0)
    job = world.submit(ann, cell, file)
    longest = names.JobName("cc", "ubar", LONG)
    assert names.check_job_name(longest, settings.BORG_ZONE, tasks=10) == longest
    assert len(longest.task(9).dns(settings.BORG_ZONE)) == names.MAX_NAME

    revision = journal.newest(cell.id)
    for wanted in (file | {"tasks": 11}, file | {"name": "b" * 63, "tasks": 11}):
        with pytest.raises(Refused, match="shorten it by 1") as caught:
            jobs.spec_for(principal=ann, cell=cell, file=wanted, tenant="ubar")
        assert (caught.value.code, list(caught.value.fields)) == ("invalid-spec", ["name"])
        (verdict,) = jobs.jobs_submit_bulk(principal=ann, cell=cell, files=[wanted], tenant="ubar")
        assert (verdict.outcome, verdict.problem and verdict.problem.code) == ("refused", "invalid-spec")
    assert (journal.newest(cell.id), Job.objects.get()) == (revision, job)
    within = jobs.spec_for(principal=ann, cell=cell, file=file | {"tasks": 9}, tenant="ubar")
    assert plans.job_plan(principal=ann, cell=cell, job_spec=within).problem is None
