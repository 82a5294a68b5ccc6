"""Tests of names that DNS could not serve: they are rejected at their creation, with the field and the cure."""

from __future__ import annotations

import msgspec
import pytest

from naming.table import names
from quota.models import Record, Tenant
from quota.tenancy import tenants
from quota.vocabulary.errors import Rejected
from scheduling.cells import cells
from scheduling.jobs import job_name_rules as job_names
from scheduling.jobs import plans, submit_and_kill, updates
from scheduling.journal import journal
from scheduling.models import Cell, Job
from scheduling.spec import parser
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
LONG = "a" * 63


@pytest.mark.parametrize("name", ["ns", "health"])
def test_a_cell_can_not_be_called_as_the_zone_calls_its_own(name: str) -> None:
    with pytest.raises(Rejected, match="choose another") as caught:
        cells.cell_create(principal=rows.ME, name=name)
    assert (caught.value.code, list(caught.value.fields)) == ("reserved-name", ["name"])
    assert not Cell.objects.exists()
    assert cells.cell_create(principal=rows.ME, name=f"{name}1").name == f"{name}1"


def test_a_tenant_can_not_be_called_machine() -> None:
    with pytest.raises(Rejected, match="choose another") as caught:
        tenants.tenant_create(principal=rows.ME, name="machine")
    assert (caught.value.code, list(caught.value.fields)) == ("reserved-name", ["name"])
    assert (Tenant.objects.count(), Record.objects.count()) == (0, 0)
    assert tenants.tenant_create(principal=rows.ME, name="machines").name == "machines"


def test_what_is_refused_is_what_the_zones_use() -> None:
    assert cells.RESERVED_NAMES == names.RESERVED_CELLS
    assert {names.MACHINE} == tenants.RESERVED_NAMES
    assert {names.SERVICE} == job_names.RESERVED_NAMES
    assert job_names.MAX_DNS_NAME == names.MAX_NAME


def test_the_last_task_of_a_job_has_a_name_that_fits(settings) -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    ann = world.principal("ann", tenant=tenant)
    settings.BORG_ZONE = "z" * (names.MAX_NAME - len(f"9.{LONG}.ubar.cc."))
    file = world.a_file(LONG, tasks=10, priority=0)
    job = world.submit(ann, cell, file)
    longest = names.JobName("cc", "ubar", LONG)
    assert len(longest.task(9).dns(settings.BORG_ZONE)) == names.MAX_NAME

    revision = journal.newest(cell.id)
    for wanted in (file | {"tasks": 11}, file | {"name": "b" * 63, "tasks": 11}):
        with pytest.raises(Rejected, match="shorten it by 1") as caught:
            submit_and_kill.spec_for(principal=ann, cell=cell, file=wanted, tenant="ubar")
        assert (caught.value.code, list(caught.value.fields)) == ("invalid-spec", ["name"])
        (verdict,) = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=[wanted], tenant="ubar")
        assert (verdict.outcome, verdict.problem and verdict.problem.code) == ("refused", "invalid-spec")
    assert (journal.newest(cell.id), Job.objects.get()) == (revision, job)
    within = submit_and_kill.spec_for(principal=ann, cell=cell, file=file | {"tasks": 9}, tenant="ubar")
    assert plans.job_plan(principal=ann, cell=cell, job_spec=within).problem is None


def test_no_new_job_is_called_service() -> None:
    """A new job cannot be called `service`. A job that already has this name can still be updated."""
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    ann = world.principal("ann", tenant=tenant)
    file = world.a_file("service", priority=0)
    read = submit_and_kill.spec_for(principal=ann, cell=cell, file=file, tenant="ubar")
    plan = plans.job_plan(principal=ann, cell=cell, job_spec=read)
    (bulk,) = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=[file], tenant="ubar")
    for problem in (plan.problem, bulk.problem):
        assert problem is not None
        assert (problem.code, list(problem.fields)) == ("reserved-name", ["name"])
        assert "choose another" in problem.detail
    with pytest.raises(Rejected, match="choose another"):
        submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=read, dry_run=True)
    assert not Job.objects.exists()

    job = world.submit(ann, cell, world.a_file("services", priority=0))
    Job.objects.filter(pk=job.pk).update(name="service")
    again = submit_and_kill.job_apply(principal=ann, cell=cell, job_spec=msgspec.structs.replace(read, tasks=2))
    assert (again.outcome, again.job and again.job.spec_version) == ("updated", 2)


@pytest.mark.parametrize("value", ["", "Web", "1st", "web_1", "a.b", "-web", "web-", "w" * 64])
def test_the_label_service_is_a_name(value: str) -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    ann = world.principal("ann", tenant=tenant)
    file = world.a_file(priority=0, labels={"service": value, "tier": value})
    with pytest.raises(Rejected, match="use lower-case letters") as caught:
        submit_and_kill.spec_for(principal=ann, cell=cell, file=file, tenant="ubar")
    assert (caught.value.code, list(caught.value.fields)) == ("invalid-spec", ["labels.service"])
    assert parser.load(file).labels["service"] == value  # values that were accepted earlier can still be read


def test_the_longest_name_of_a_service_fits(settings) -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    ann = world.principal("ann", tenant=tenant)
    settings.BORG_ZONE = "z" * (names.MAX_NAME - len(f"_http._tcp.{LONG}.service.ubar.cc."))
    file = world.a_file(priority=0, labels={"service": LONG})
    job = world.submit(ann, cell, file)
    longer = world.with_task(ports=["http", "https"]) | {"priority": 0, "labels": {"service": LONG}}
    with pytest.raises(Rejected, match="shorten it by 1") as caught:
        submit_and_kill.spec_for(principal=ann, cell=cell, file=longer, tenant="ubar")
    assert (caught.value.code, list(caught.value.fields)) == ("invalid-spec", ["labels.service"])
    without = longer | {"labels": {"service": LONG[:-1]}}
    changed = submit_and_kill.spec_for(principal=ann, cell=cell, file=without, tenant="ubar", name=job.name)
    assert updates.job_update(principal=ann, job=job, job_spec=changed).outcome == "updated"
