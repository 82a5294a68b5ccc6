"""Tests of secrets in workflows, and of the rule against plain secrets for each way to submit a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Role
from scheduling.job_templates import templates
from scheduling.models import Job, JobSpec, SecretVersion, Workflow
from scheduling.secrets import job_uses, secrets, selectors
from scheduling.workflows import workflows
from tests.integration import cron_rows, secret_rows, workflow_rows, world
from tests.integration.workflow_rows import advance, after, end, node, states, submit

pytestmark = pytest.mark.django_db(transaction=True)
SCHEDULING = Path(workflows.__file__).parents[1]


@pytest.fixture(autouse=True)
def keys(settings):
    settings.BORG_SECRET_KEYS = secret_rows.OLD


@pytest.fixture
def olga(tenant):
    return world.principal("olga", tenant=tenant, role=Role.OWNER)


def with_task(**fields: Any) -> dict[str, Any]:
    """Return a job of a node, with fields of its task."""
    return {**workflow_rows.JOB, "task": {**workflow_rows.JOB["task"], **fields}}


def dispatch(who, cell, job) -> None:
    file = {"kind": "Template", "name": "resize", "tenant": "ubar", "job": job}
    spec = templates.template_spec_for(principal=who, cell=cell, file=file)
    row = templates.template_apply(principal=who, cell=cell, spec=spec).template
    templates.template_dispatch(principal=who, template=row, given={})


# Each way to submit a new job: how, and the path of the job in its file.
WAYS = {
    "Job": (lambda who, cell, job: world.submit(who, cell, {**job, "name": "web"}), ""),
    "CronJob": (lambda who, cell, job: cron_rows.apply(who, cell, job=job), "job."),
    "Template": (dispatch, "job."),
    "Workflow": (lambda who, cell, job: submit(who, cell, {"a": node(), "b": after("a", job=job)}), "nodes.b.job."),
}


@pytest.mark.parametrize("kind", WAYS)
def test_no_way_accepts_secrets_in_plain_text(cell, ann, kind) -> None:
    way, path = WAYS[kind]
    job = with_task(env={"DB_PASSWORD": "hunter2"}) | {"overrides": {"0": {"env": {"DSN": "db://ann:hunter3@db"}}}}
    with pytest.raises(Rejected, match="the value looks like a secret") as rejected:
        way(ann, cell, job)
    assert set(rejected.value.fields) == {f"{path}task.env.DB_PASSWORD", f"{path}overrides.0.env.DSN"}
    assert "hunter" not in str(rejected.value.fields) + rejected.value.detail
    assert not Job.objects.exists()
    way(ann, cell, job | {"task": {**job["task"], "plain_env": ["DB_PASSWORD", "DSN"]}})


def test_only_known_modules_submit_jobs_without_the_rule() -> None:
    """Their jobs were accepted earlier, when a person submitted the cron job, the workflow or the job."""
    found = {
        str(path.relative_to(SCHEDULING))
        for path in SCHEDULING.rglob("*.py")
        if "jobs_submit_for(" in (text := path.read_text()) or "earlier=True" in text
    }
    assert found == {
        "cron/run_submission.py",
        "jobs/actions/retry.py",
        "jobs/submit_and_kill.py",
        "workflows/node_submission.py",
    }


def test_missing_secrets_and_grants_are_found_at_the_submission(cell, tenant, olga, ann) -> None:
    job = with_task(secrets=[{"name": "db", "file": "a"}])
    nodes = {"load": node(job=job), "map": after("load", job=job, for_each=[1, 2, 3]), "plain": node()}
    with pytest.raises(Rejected) as rejected:
        submit(ann, cell, nodes)
    assert set(rejected.value.fields) == {f"nodes.{name}.job.task.secrets[0].name" for name in ("load", "map")}
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "w", "w-load")
    with pytest.raises(Rejected) as rejected:
        submit(ann, cell, nodes)
    assert rejected.value.fields == {
        "nodes.map.job.task.secrets[0].name": (
            "secret db is not granted to job w-map-* in cell cc; grant it with `borgctl secret grant db w-map-*`"
        )
    }
    assert not Workflow.objects.exists()
    secrets.secret_grant(principal=olga, tenant=tenant, name="db", jobs="w-map-*")
    row = submit(ann, cell, nodes)
    secrets.secret_revoke(principal=olga, tenant=tenant, name="db", jobs="w-map-*")
    again = workflow_rows.apply(ann, cell, nodes)
    assert (again.outcome, again.workflow.pk) == ("unchanged", row.pk), "a repetition is not checked again"


def test_few_problems_with_secrets_are_named(cell, ann) -> None:
    job = with_task(secrets=[{"name": "db", "file": "a"}])
    with pytest.raises(Rejected) as rejected:
        submit(ann, cell, {f"n{number}": node(job=job) for number in range(50)})
    assert len(rejected.value.fields) == 20


def test_a_live_workflow_keeps_the_secrets_of_nodes_that_wait(cell, tenant, olga, ann, client, monkeypatch) -> None:
    monkeypatch.setattr(secrets, "KEPT_VERSIONS", 2)
    uses = [{"name": "db", "file": "a", "version": 1}, {"name": "db", "file": "b"}, {"name": "db", "env": "DB"}]
    secret_rows.a_secret(olga, tenant, "db", b"1", "w-*")
    row = submit(ann, cell, {"a": node(), "b": after("a", job=with_task(secrets=uses))})
    advance(cell)
    (user,) = job_uses.jobs_using(tenant.pk, "db")
    assert (user.job_id, user.cell, user.name, user.kind) == (0, "cc", "w", "Workflow")
    assert set(user.versions) == {"1", "latest"}
    with pytest.raises(Conflict, match="is used by cc/w; change or end these jobs, cron jobs and workflows"):
        secrets.secret_delete(principal=olga, tenant=tenant, name="db")
    for value in (b"2", b"3", b"4"):
        secret_rows.a_secret(olga, tenant, "db", value)
    assert set(SecretVersion.objects.values_list("version", flat=True)) == {1, 3, 4}
    client.force_login(world.a_user("olga"))
    assert "/workflows/cc/ubar/w/" in client.get("/tenants/ubar/secrets/db/").content.decode()
    end(row, "a")
    advance(cell)
    (job,) = Job.objects.filter(name="w-b")
    assert {user.job_id for user in job_uses.jobs_using(tenant.pk, "db")} == {0, job.pk}
    end(row, "b")
    advance(cell)
    assert selectors.using_jobs(olga, secrets.secret_named(tenant, "db")) == []
    secrets.secret_delete(principal=olga, tenant=tenant, name="db")


def test_a_secret_comes_before_a_variable_of_the_workflow(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "w-*")
    of_region, of_item = (with_task(secrets=[{"name": "db", "env": name}]) for name in ("REGION", "ITEM"))
    of_one = {**workflow_rows.JOB, "tasks": 2, "overrides": {"1": {"secrets": [{"name": "db", "env": "REGION"}]}}}
    nodes = {"a": node(job=of_region), "b": node(job=of_item, for_each=["x"]), "c": node(job=of_one)}
    row = submit(ann, cell, nodes, parameters={"REGION": "eu"})
    advance(cell)
    assert states(row) == {"a": "running", "b": "running", "b/0": "running", "c": "running"}
    jobs = {job.name: job for job in workflow_rows.jobs_of(row)}
    specs = {name: JobSpec.objects.get(job=job).spec for name, job in jobs.items()}
    assert "REGION" not in specs["w-a"]["task"]["env"]
    assert specs["w-b-0"]["task"]["env"].keys() & {"REGION", "ITEM", "ITEM_INDEX"} == {"REGION", "ITEM_INDEX"}
    assert specs["w-c"]["task"]["env"]["REGION"] == "eu"
    assert specs["w-c"]["overrides"]["1"]["env"] == {"REGION": None}
