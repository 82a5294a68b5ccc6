"""Tests of `manage.py secrets erase-env`, which erases values that look like secrets from old job files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from quota.models import Record
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.history.erasure import env_values
from scheduling.jobs import submit_and_kill, updates
from scheduling.master.invariants import validate
from scheduling.models import Cell, Job, JobSpec, JobTemplate, JobTemplateVersion, Task, Workflow, WorkflowNode
from scheduling.spec.masking import ERASED
from tests.integration import rows, workflow_rows, world
from tests.integration.test_job_templates import apply as template_apply

pytestmark = pytest.mark.django_db(transaction=True)
PLANTED = "planted-4711"


def plant(model: Any, column: str, **where: Any) -> None:
    """Put a value that looks like a secret into `env` of a stored job file, as older portals accepted it."""
    row = model.objects.get(**where)
    file = getattr(row, column)
    job = file.get("job", file)
    job["task"].setdefault("env", {}).update(DB_PASSWORD=PLANTED, SORT_KEY="name")
    job["task"]["plain_env"] = ["SORT_KEY"]
    row.save(update_fields=[column])


def places() -> set[str]:
    """Return the tables of PostgreSQL that contain the planted value."""
    found = set()
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT EXISTS (SELECT FROM "{table}" AS t WHERE t::text LIKE %s)', [f"%{PLANTED}%"])
            if cursor.fetchone()[0]:
                found.add(table)
    return found


def erase(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    call_command("secrets", "erase-env", *words)
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_values_that_nothing_uses_are_erased(cell: Cell, tenant, ann, machine, capsys, monkeypatch) -> None:
    monkeypatch.setattr(env_values, "AT_ONCE", 1)
    monkeypatch.setattr(env_values, "_IDS_AT_ONCE", 1)
    rows.grant(tenant, cell, "production")
    spec = world.read(cell, world.a_file("old"))
    old = submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=spec, key="k1").job
    assert old is not None
    plant(JobSpec, "spec", job=old, version=1)
    submit_and_kill.job_kill(principal=system("test"), job=Job.objects.select_related("cell", "tenant").get(pk=old.pk))
    live = world.submit(ann, cell, world.a_file("live"))
    world.bring_up(live, machine)
    plant(JobSpec, "spec", job=live, version=1)
    assert places() == {"scheduling_jobspec"}, "the journal has no values of env"
    assert erase(capsys)["left"] == ["job cc/ubar/live, version 1"]
    assert places() == {"scheduling_jobspec"}, "the value of the live job stays"

    assert JobSpec.objects.get(job=old).spec["task"]["env"] == {"DB_PASSWORD": ERASED, "SORT_KEY": "name"}
    live = Job.objects.select_related("cell", "tenant").get(pk=live.pk)
    updates.job_update(principal=ann, job=live, job_spec=world.read(cell, world.a_file("live", labels={"a": "b"})))
    live.refresh_from_db()
    assert erase(capsys)["in_use"] == 1, "tasks still have the first version, or the update is not done"
    assert erase(capsys)["in_use"] == 1, "the first version is the last good one"
    for _ in range(3):  # one task at a time
        world.bring_up(live, machine)
        updates.updates_advance(cell.id)
    assert set(Task.objects.filter(job=live).values_list("spec_version", flat=True)) == {2}
    dead = Task.objects.filter(job=live, index=2)
    dead.update(spec_version=1)
    assert erase(capsys)["left"] == ["job cc/ubar/live, version 1"], "a retry of the task would need it"
    dead.update(spec_version=2)
    planned = erase(capsys, "--dry-run")
    assert (planned["values"], planned["specs"], planned["dry_run"]) == (1, 1, True)
    assert places() == {"scheduling_jobspec"}
    assert erase(capsys, "--tenant", "ubar")["values"] == 1
    assert places() == set()
    assert erase(capsys) | {"dry_run": None} == dict.fromkeys(
        ("values", "specs", "templates", "workflows", "in_use"), 0
    ) | {"left": [], "dry_run": None}, "a second call finds nothing"
    assert validate(cell.pk) == []
    assert JobSpec.objects.get(job=old).digest == ""
    again = submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=spec, key="k1").job
    assert again is not None
    assert again.pk == old.pk, "a repeated submission still gets its job"
    assert [(row.tenant, row.data["values"]) for row in Record.objects.filter(kind="secret.env-erased")] == [
        ("ubar", 1)
    ] * 2
    live = Job.objects.select_related("cell", "tenant").get(pk=live.pk)
    with pytest.raises(Rejected, match="the value was erased, because it looked like a secret"):
        updates.job_undo(principal=ann, job=live)
    with pytest.raises(CommandError, match="nobody"):
        erase(capsys, "--tenant", "nobody")


def test_templates_and_workflows_lose_old_values(cell: Cell, tenant, ann, capsys) -> None:
    rows.grant(tenant, cell, "production")
    template_apply(ann, cell)
    template_apply(ann, cell, description="second")
    plant(JobTemplateVersion, "content", version=1)
    row = workflow_rows.submit(ann, cell)
    plant(WorkflowNode, "template", name="b")
    Workflow.objects.update(parameters={"API_TOKEN": PLANTED, "DAY": "1"})
    # The variables that the branches of a node share.
    WorkflowNode.objects.filter(name="a").update(variables={"API_TOKEN": PLANTED, "DAY": "1"})
    assert places() == {"scheduling_jobtemplateversion", "scheduling_workflow", "scheduling_workflownode"}
    done = erase(capsys)
    assert (done["values"], done["templates"], done["left"]) == (1, 1, ["workflow cc/ubar/w"])
    Workflow.objects.filter(pk=row.pk).update(state="cancelled", ended_at=row.created_at)
    done = erase(capsys)
    assert (done["values"], done["workflows"], done["left"]) == (3, 1, [])
    assert places() == set()
    assert Workflow.objects.get().parameters == {"API_TOKEN": ERASED, "DAY": "1"}
    plant(JobTemplate, "content", name="resize")
    plant(JobTemplateVersion, "content", version=2)
    assert erase(capsys)["left"] == ["template cc/ubar/resize"], "the newest version is in use"
