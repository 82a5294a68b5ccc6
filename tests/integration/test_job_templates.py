"""Tests of templates through services, REST, borgctl and pages."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from quota.models import ServiceAccount
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tokens import token_issue
from quota.vocabulary.errors import Conflict, NotFound, Rejected
from quota.vocabulary.permissions import Role, Scope, system
from scheduling.cells.deletion import cell_delete, cell_deletion
from scheduling.job_templates import selectors, templates
from scheduling.jobs.submit_and_kill import job_submit
from scheduling.journal import journal
from scheduling.models import Event, Job, JobTemplate, JobTemplateVersion, Task
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/api/v1/cells/cc/templates/ubar/resize/"


def a_template_file(name: str = "resize", **changes: Any) -> dict[str, Any]:
    job = {key: value for key, value in world.a_file().items() if key != "name"} | {"tasks": "$(param.size)"}
    job["task"] = job["task"] | {"command": ["serve", "$(param.file)"]}
    properties = {"size": {"type": "integer", "maximum": 9, "default": 2}, "file": {"type": "string"}}
    file = {"kind": "Template", "name": name, "tenant": "ubar", "parameters": {"properties": properties}, "job": job}
    return file | changes


def apply(who, cell, name: str = "resize", **changes: Any) -> templates.TemplateChange:
    spec = templates.template_spec_for(principal=who, cell=cell, file=a_template_file(name, **changes))
    return templates.template_apply(principal=who, cell=cell, spec=spec)


def dispatch(who, row: JobTemplate, suffix: str = "", key: str = "", **given: Any) -> Job:
    done = templates.template_dispatch(principal=who, template=row, given=given, suffix=suffix, key=key)
    assert done.job is not None
    return done.job


def test_each_change_is_a_version_and_an_event(cell, ann) -> None:
    assert apply(ann, cell).outcome == "submitted"
    assert apply(ann, cell).outcome == "unchanged"
    for number in range(25):
        assert apply(ann, cell, description=f"{number}").outcome == "updated"
    row = JobTemplate.objects.get()
    assert (row.version, row.content["description"]) == (26, "24")
    assert list(JobTemplateVersion.objects.values_list("version", flat=True)) == list(range(26, 6, -1))
    assert Event.objects.filter(kind="template.set").count() == 26
    templates.template_delete(principal=ann, template=selectors.template_named(ann, cell, "ubar", "resize"))
    assert Event.objects.filter(kind="template.deleted").count() == 1
    assert not JobTemplateVersion.objects.exists()


def test_a_dispatch_submits_an_ordinary_job(cell, ann, machine) -> None:
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    first, second = dispatch(ann, row, file="a"), dispatch(ann, row, file="b", size="3")
    named = dispatch(ann, row, suffix="monday", file="c")
    assert [job.name for job in (first, second, named)] == ["resize-1", "resize-2", "resize-monday"]
    assert [job.tasks_total for job in (first, second)] == [2, 3]
    assert first.labels == {"template": "resize"}
    with pytest.raises(Conflict):
        dispatch(ann, row, suffix="monday", file="d")
    assert dispatch(ann, row, file="e").name == "resize-3"


def test_a_repeated_request_submits_one_job(cell, ann) -> None:
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    first, again = (dispatch(ann, row, key="k1", file="a") for _ in range(2))
    assert first.pk == again.pk
    assert JobTemplate.objects.get().last_number == 1
    apply(ann, cell, description="changed")  # a repeated webhook after a change still gets the first job
    assert dispatch(ann, row, key="k1", file="a").pk == first.pk
    old = templates.revision_of(row)
    again = templates.template_dispatch(principal=ann, template=row, given={"file": "a"}, key="k1", if_revision=old)
    assert again.job.pk == first.pk, "also if it repeats the revision of the template that it had"
    spec = world.read(cell, world.a_file("other"))
    job_submit(principal=ann, cell=cell, job_spec=spec, key="k2")
    with pytest.raises(Conflict, match="Idempotency-Key"):
        dispatch(ann, row, key="k2", file="b")


def test_concurrent_dispatches_get_numbers_of_their_own(cell, ann) -> None:
    """Dispatch in six threads: three with different keys, and three with the same key."""
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)

    def one(key: str) -> str:
        try:
            return dispatch(ann, row, key=key, file="a").name
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        names = list(pool.map(one, ["k1", "k2", "k3", "same", "same", "same"]))
    assert len(set(names[:3])) == 3
    assert len(set(names[3:])) == 1
    assert Job.objects.count() == 4


def test_a_number_that_a_live_job_has_is_skipped(cell, ann) -> None:
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    dispatch(ann, row, file="a")
    templates.template_delete(principal=ann, template=row)
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    assert dispatch(ann, row, file="a").name == "resize-2"


def test_a_large_dispatch_makes_several_transactions(cell, ann, monkeypatch) -> None:
    """Dispatch a job with more tasks than one transaction creates. No transaction has more."""
    monkeypatch.setattr(journal, "CHUNK", 3)
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    job = dispatch(ann, row, file="a", size=8)
    assert Task.objects.filter(job=job).count() == 8
    created: Counter[int] = Counter()
    for event in Event.objects.filter(job_id=job.pk, kind__in=("job.submitted", "tasks.added")):
        ranges = [one for group in event.data["groups"] for one in group["ranges"]]
        created[event.revision] += sum(last - first + 1 for first, last in ranges)
    assert sorted(created.values()) == [2, 3, 3]


def test_a_form_or_request_of_an_older_version_is_rejected(cell, ann) -> None:
    row = apply(ann, cell).template
    old = templates.revision_of(row)
    apply(ann, cell, description="changed")
    row = selectors.template_named(ann, cell, "ubar", "resize")
    with pytest.raises(Rejected) as refused:
        templates.template_dispatch(principal=ann, template=row, given={"file": "a"}, if_revision=old)
    assert refused.value.status == 412


def test_viewers_do_not_see_secret_defaults(cell, ann, tenant) -> None:
    file = a_template_file()
    file["parameters"]["properties"]["password"] = {"type": "string", "default": "hunter2"}
    file["job"]["task"]["env"] = {"DB_PASSWORD": "$(param.password)"}
    spec = templates.template_spec_for(principal=ann, cell=cell, file=file)
    templates.template_apply(principal=ann, cell=cell, spec=spec)
    viewer = world.principal("vic", tenant=tenant, role=Role.VIEWER)
    row = selectors.template_named(viewer, cell, "ubar", "resize")
    assert "hunter2" not in json.dumps(selectors.content_shown(viewer, row))
    assert "hunter2" in json.dumps(selectors.content_shown(ann, row))
    with pytest.raises(Rejected):
        dispatch(viewer, row, file="a")


def test_the_deletion_of_a_cell_deletes_its_templates(cell, ann) -> None:
    apply(ann, cell)
    other = rows.a_cell("dd")
    sre = world.principal("sre", sre=True)
    file = a_template_file()
    spec = templates.template_spec_for(principal=sre, cell=other, file=file, tenant="ubar")
    templates.template_apply(principal=sre, cell=other, spec=spec)
    assert cell_deletion(principal=sre, cell=other).templates == 1
    cell_delete(principal=sre, cell=other, confirm="dd")
    assert JobTemplate.objects.get().cell == cell


def test_a_rejected_dispatch_is_an_event(cell, ann, tenant) -> None:
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    type(tenant).objects.update(max_jobs=0)
    with pytest.raises(Rejected, match="may have at most 0"):
        dispatch(ann, row, file="a")
    assert Event.objects.filter(kind="job.rejected").count() == 1
    assert not Job.objects.exists()


def test_other_tenants_do_not_see_a_template(cell, ann) -> None:
    apply(ann, cell)
    bob = world.principal("bob", tenant=rows.a_tenant("other"))
    with pytest.raises(NotFound):
        selectors.template_named(bob, cell, "ubar", "resize")
    assert not selectors.templates_visible(bob, cell).exists()


def test_a_tenant_has_a_limited_number_of_templates(cell, ann, settings) -> None:
    settings.BORG_MAX_TEMPLATES_PER_TENANT = 1
    apply(ann, cell)
    with pytest.raises(Rejected) as refused:
        apply(ann, cell, "other")
    assert refused.value.code == "too-many-templates"


def test_rest_applies_dispatches_and_deletes(cell, ann, tenant) -> None:
    rest = world.bearer(world.a_user("ann"))

    def put(**changes: Any) -> Any:
        return rest.put(PATH, json.dumps(a_template_file(**changes)), content_type="application/json")

    body = json.dumps(a_template_file())
    assert rest.put(PATH + "?dry_run=1", body, content_type="application/json").status_code == 200
    assert not JobTemplate.objects.exists()
    revision = put().json()["job_revision"]
    assert [row["name"] for row in rest.get("/api/v1/cells/cc/templates/").json()["results"]] == ["resize"]
    found = rest.get(PATH).json()
    assert (found["version"], found["job_revision"], found["versions"][0]["actor"]) == (1, revision, "ann")
    assert found["parameters"]["properties"]["size"]["maximum"] == 9
    late = rest.put(PATH, json.dumps(a_template_file()), content_type="application/json", headers={"If-Match": "old-1"})
    assert late.status_code == 412

    body = {"parameters": {"file": "a", "size": 4}}
    rehearsed = rest.post(PATH + "dispatch/?dry_run=1", body, content_type="application/json")
    assert (rehearsed.status_code, rehearsed.json()["job"], Job.objects.count()) == (200, "resize-1", 0)
    key = {"Idempotency-Key": "k"}
    done = [rest.post(PATH + "dispatch/", body, content_type="application/json", headers=key) for _ in range(2)]
    assert [one.json()["job"] for one in done] == ["resize-1", "resize-1"]
    assert Job.objects.get().tasks_total == 4
    wrong = rest.post(PATH + "dispatch/", {"parameters": {"size": 10}}, content_type="application/json")
    assert set(wrong.json()["fields"]) == {"parameters.size", "parameters.file"}
    assert rest.delete(PATH).status_code == 204
    assert rest.get(PATH).status_code == 404


def test_a_service_account_dispatches_through_the_webhook(cell, ann, tenant) -> None:
    apply(ann, cell)
    boss = world.principal("boss", tenant=tenant)
    service_account_create(principal=boss, tenant=tenant, name="ci", role="operator")
    account = ServiceAccount.objects.select_related("user").get()
    _, secret = token_issue(
        principal=system("test"),
        user=account.user,
        name="webhook",
        scopes=[Scope.READ.value, Scope.WRITE.value],
        tenant=tenant,
        expires_at=timezone.now() + dt.timedelta(days=1),
    )
    client = Client(headers={"authorization": f"Bearer {secret}"})
    answer = client.post(PATH + "dispatch/", {"parameters": {"file": "a"}}, content_type="application/json")
    assert answer.status_code == 201
    assert Job.objects.get().submitted_by == "ci@ubar"


def test_the_page_has_a_form_of_the_parameters(cell, ann) -> None:
    apply(ann, cell, description="Makes pictures smaller.")
    client = Client()
    client.force_login(world.a_user("ann"))
    assert "resize" in client.get("/templates/").content.decode()
    page = client.get("/templates/cc/ubar/resize/").content.decode()
    assert 'type="number" name="param.size" value="2" step="1" max="9' in page
    assert "Makes pictures smaller." in page
    sent = {
        "param.size": "10",
        "param.file": "a",
        "key": "k",
        "revision": templates.revision_of(JobTemplate.objects.get()),
    }
    wrong = client.post("/templates/cc/ubar/resize/", sent)
    assert (wrong.status_code, Job.objects.count()) == (422, 0)
    assert "parameters.size" in wrong.content.decode()
    for _ in range(2):  # a form that is sent twice submits one job
        done = client.post("/templates/cc/ubar/resize/", sent | {"param.size": ""})
        assert (done.status_code, Job.objects.get().tasks_total) == (302, 2)
    old = client.post("/templates/cc/ubar/resize/", sent | {"param.size": "", "key": "k2", "revision": "old-1"})
    assert old.status_code == 412
    client.post("/templates/cc/ubar/resize/delete/")
    assert not JobTemplate.objects.exists()


@pytest.fixture
def cli(tmp_path, shared_portal) -> Cli:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)


def test_borgctl_creates_shows_dispatches_and_deletes(cli) -> None:
    (cli.folder / "resize.json").write_text(json.dumps(a_template_file()))
    assert cli.out("template", "create", "resize.json") == "Template cc/ubar/resize, version 1: created.\n"
    assert "unchanged" in cli.out("template", "create", "resize.json")
    assert "cc/ubar/resize" in cli.out("template", "list")
    shown = cli.out("template", "show", "resize")
    assert "required" in shown
    assert "integer" in shown
    assert cli.out("template", "dispatch", "resize", "-p", "file=a", "-p", "size=3") == "Job resize-1 is submitted.\n"
    assert Job.objects.get().tasks_total == 3
    fields = cli.failing("template", "dispatch", "resize", "-p", "size=3")[1]["fields"]
    assert list(fields) == ["parameters.file"]
    assert "write NAME=VALUE" in cli.failing("template", "dispatch", "resize", "-p", "size", status=2)[0]
    cli.out("template", "delete", "resize")
    assert not JobTemplate.objects.exists()
