"""Tests of tokens that may only dispatch templates, through REST, borgctl and the page of tokens."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.live.callers import principal_of
from quota.models import Record, Token
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.token_rotation import token_rotate
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Role, system
from scheduling.job_templates import selectors, templates
from scheduling.models import Job, JobTemplate, TokenTemplate
from tests.integration import cli_world, rows, world
from tests.integration.test_job_templates import a_template_file, apply

pytestmark = pytest.mark.django_db(transaction=True)
TOKENS, TEMPLATES = "/api/v1/dispatch-tokens/", "/api/v1/cells/cc/templates/ubar"
RESIZE = f"{TEMPLATES}/resize/dispatch/"


@pytest.fixture
def boss(cell, tenant, ann) -> Client:
    """Return a client of an owner. The tenant has the templates `resize` and `report`."""
    for name in ("resize", "report"):
        apply(ann, cell, name)
    return world.bearer(world.a_user("boss", tenant=tenant, role=Role.OWNER))


def send(client: Client, path: str, body: object, method: str = "post"):
    return getattr(client, method)(path, json.dumps(body), content_type="application/json")


def issued(boss: Client, *names: str, **given: object) -> Client:
    answer = send(boss, TOKENS, {"name": "ci", "templates": [f"cc/ubar/{name}" for name in names], **given})
    assert answer.status_code == 201, answer.json()
    return Client(headers={"authorization": f"Bearer {answer.json()['secret']}"})


def test_a_token_dispatches_its_templates_and_reads_only_its_jobs(boss: Client, cell, tenant) -> None:
    ci, other = issued(boss, "resize"), issued(boss, "resize", "report")
    answer = send(ci, RESIZE, {"parameters": {"file": "a"}})
    assert (answer.status_code, answer.json()["job"]) == (201, "resize-1")
    job = Job.objects.get()
    key = Token.objects.order_by("id").filter(scopes=["dispatch"]).values_list("key", flat=True)[0]
    assert (job.labels, job.submitted_by) == ({"template": "resize", "dispatched-by": key}, "boss")
    state = ci.get(f"{TEMPLATES}/resize/dispatched/resize-1/").json()
    assert (state["name"], state["state"], state["tasks_total"], state["outcome"]) == ("resize-1", "pending", 2, "")
    assert "spec" not in state
    assert other.get(f"{TEMPLATES}/resize/dispatched/resize-1/").status_code == 404, "another token dispatched it"
    assert other.get(f"{TEMPLATES}/report/dispatched/resize-1/").status_code == 404
    assert boss.get(f"{TEMPLATES}/resize/dispatched/resize-1/").status_code == 200
    assert boss.get(f"{TEMPLATES}/report/dispatched/resize-1/").status_code == 404, "it is from another template"

    assert send(ci, RESIZE, {"parameters": {"file": "a"}, "suffix": "prod"}).status_code == 422
    key_header = {"HTTP_IDEMPOTENCY_KEY": "run-1"}
    body = json.dumps({"parameters": {"file": "k"}})
    first, again = (ci.post(RESIZE, body, content_type="application/json", **key_header) for _ in range(2))
    assert first.json()["job"] == again.json()["job"]
    answer = other.post(RESIZE, body, content_type="application/json", **key_header)
    assert (answer.status_code, first.json()["job"] in answer.json()["detail"]) == (409, False)
    for path in (f"{TEMPLATES}/report/dispatch/", "/api/v1/cells/cc/templates/other/resize/dispatch/"):
        answer = send(ci, path, {"parameters": {"file": "a"}})
        assert answer.status_code == 403
        assert answer.json()["detail"].endswith("; it may dispatch cc/ubar/resize")
    for path in ("/api/v1/cells/", "/api/v1/cells/cc/jobs/ubar/resize-1/", f"{TEMPLATES}/resize/", TOKENS):
        answer = ci.get(path)
        assert answer.status_code == 403
        assert f"token {key} may only dispatch its templates" in answer.json()["detail"]
    assert send(other, f"{TEMPLATES}/report/dispatch/", {"parameters": {"file": "b"}}).status_code == 201
    header = {"headers": [(b"authorization", ci.defaults["HTTP_AUTHORIZATION"].encode())]}
    assert principal_of(header) is None, "a token that may only dispatch opens no connection"


def test_a_deleted_template_takes_the_right_with_it(boss: Client, cell, ann) -> None:
    ci = issued(boss, "resize")
    templates.template_delete(principal=ann, template=selectors.template_named(ann, cell, "ubar", "resize"))
    apply(ann, cell, "resize")
    answer = send(ci, RESIZE, {"parameters": {"file": "a"}})
    assert (answer.status_code, TokenTemplate.objects.count()) == (403, 0)
    assert "it may dispatch no template, because its templates were deleted" in answer.json()["detail"]


def test_a_token_needs_the_right_to_dispatch(boss: Client, cell, tenant, ann) -> None:
    foreign = rows.a_tenant("other")
    their = world.principal("eve", tenant=foreign)
    spec = templates.template_spec_for(
        principal=their, cell=cell, file=a_template_file("resize", tenant="other"), tenant="other"
    )
    templates.template_apply(principal=their, cell=cell, spec=spec)
    viewer = world.bearer(world.a_user("vera", tenant=tenant, role=Role.VIEWER))
    for client, names, status in (
        (viewer, ["cc/ubar/resize"], 403),
        (boss, ["cc/other/resize"], 404),
        (boss, ["cc/ubar/none"], 404),
        (boss, ["resize"], 422),
        (boss, [], 422),
    ):
        answer = send(client, TOKENS, {"name": "ci", "templates": names})
        assert answer.status_code == status, answer.json()
    sre = world.bearer(world.a_user("root", sre=True))
    answer = send(sre, TOKENS, {"name": "ci", "templates": ["cc/ubar/resize"]})
    assert (answer.status_code, "issue the token for a service account" in answer.json()["detail"]) == (403, True)
    service_account_create(principal=system("test"), tenant=tenant, name="looks", role="viewer")
    answer = send(boss, TOKENS, {"name": "ci", "templates": ["cc/ubar/resize"], "account": "looks"})
    assert "looks@ubar has no role in tenant ubar that may submit jobs" in answer.json()["detail"]
    answer = send(sre, TOKENS, {"name": "ci", "templates": ["cc/ubar/resize", "cc/other/resize"]})
    assert "issue one token per tenant" in answer.json()["detail"]
    answer = send(boss, "/api/v1/tokens/", {"name": "x", "scopes": ["read", "dispatch"]})
    assert answer.status_code == 422, "the scope `dispatch` belongs to no other token"
    assert not Token.objects.filter(scopes__contains=["dispatch"]).exists()


def test_a_service_account_gets_such_a_token(boss: Client, tenant, cell) -> None:
    service_account_create(principal=system("test"), tenant=tenant, name="ci", role="operator")
    ci = issued(boss, "resize", account="ci")
    assert send(ci, RESIZE, {"parameters": {"file": "a"}}).status_code == 201
    assert Job.objects.get().submitted_by == "ci@ubar"
    token = Token.objects.get(scopes=["dispatch"])
    assert token.expires_at is not None
    assert Record.objects.get(kind="token.restricted").data == {"key": token.key, "templates": "cc/ubar/resize"}
    with pytest.raises(Conflict, match="may only dispatch, and is not rotated"):
        token_rotate(principal=world.principal("root", sre=True), key=token.key)
    shown = [row["templates"] for row in boss.get(TOKENS).json()["results"]]
    assert shown == [["cc/ubar/resize"]], "an owner sees the tokens of service accounts"


def test_borgctl_issues_and_uses_such_a_token(boss: Client, tenant, tmp_path, shared_portal) -> None:
    cli = cli_world.of(tmp_path, shared_portal, "bea", tenant=tenant)
    assert "belongs to --dispatch" in cli.failing("tokens", "issue", "ci", "--account", "x", status=2)[0]
    cli.environment["BORG_TOKEN"] = cli.out("tokens", "issue", "ci", "--dispatch", "resize").strip()
    assert cli.out("template", "dispatch", "resize", "-p", "file=a") == "Job resize-1 is submitted.\n"
    assert cli.out("template", "dispatched", "resize", "resize-1") == "resize-1  pending  (0 of 2 tasks running)\n"
    told, document = cli.failing("status")
    assert document["status"] == 403
    assert "use another token for this request" in told


def test_the_page_issues_and_lists_such_tokens(boss: Client, cell, tenant) -> None:
    client = Client()
    client.force_login(world.a_user("boss"))
    assert "cc/ubar/report" in client.get("/tokens/").content.decode()
    form = {"do": "dispatch", "name": "ci", "days": "30", "templates": ["cc/ubar/report"]}
    page = client.post("/tokens/", form)
    assert (page.status_code, "borg_" in page.content.decode()) == (201, True)
    assert TokenTemplate.objects.get().template == JobTemplate.objects.get(name="report")
    bad = client.post("/tokens/", form | {"templates": []})
    assert "give 1 to 20" in bad.content.decode()
    with CaptureQueriesContext(connection) as one:
        client.get("/tokens/")
    client.post("/tokens/", form | {"templates": ["cc/ubar/report", "cc/ubar/resize"]})
    with CaptureQueriesContext(connection) as two:
        page = client.get("/tokens/").content.decode()
    assert len(two) == len(one)
    assert "cc/ubar/report, cc/ubar/resize" in page
