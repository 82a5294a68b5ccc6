"""Tests of templates through services, REST, borgctl and pages."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from quota.models import ServiceAccount
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tokens import token_issue
from quota.vocabulary.errors import Conflict, NotFound, Rejected
from quota.vocabulary.permissions import Scope, system
from scheduling.job_templates import selectors, templates
from scheduling.models import Event, Job, JobTemplate, JobTemplateVersion
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
    assert dispatch(ann, row, file="e").name == "resize-3"  # the rejected dispatch took no number


def test_a_repeated_request_submits_one_job(cell, ann) -> None:
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    first, again = (dispatch(ann, row, key="k1", file="a") for _ in range(2))
    assert first.pk == again.pk
    assert JobTemplate.objects.get().dispatches == 1
    with pytest.raises(Conflict, match="Idempotency-Key"):
        dispatch(ann, row, key="k1", file="b")


def test_a_rejected_dispatch_is_an_event(cell, ann, tenant) -> None:
    row = selectors.template_named(ann, cell, "ubar", apply(ann, cell).template.name)
    type(tenant).objects.update(max_jobs=0)
    with pytest.raises(Rejected, match="may have at most 0"):
        dispatch(ann, row, file="a")
    assert Event.objects.filter(kind="job.rejected").count() == 1
    assert JobTemplate.objects.get().dispatches == 0


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
    wrong = client.post("/templates/cc/ubar/resize/", {"param.size": "10", "param.file": "a"})
    assert (wrong.status_code, Job.objects.count()) == (422, 0)
    assert "parameters.size" in wrong.content.decode()
    done = client.post("/templates/cc/ubar/resize/", {"param.size": "", "param.file": "a"})
    assert (done.status_code, Job.objects.get().name, Job.objects.get().tasks_total) == (302, "resize-1", 2)
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
