"""Tests of environment values that look like secrets: who sees them in answers, on pages and in `borgctl`."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from quota.vocabulary.permissions import Role, Scope
from scheduling.jobs import submit_and_kill
from scheduling.models import Cell, JobSpec
from scheduling.spec.masking import MASK
from tests.integration import cli_world, rows, world

pytestmark = pytest.mark.django_db
JOB = "/api/v1/cells/cc/jobs/ubar/web/"
OLD, NEW, OTHER = "hunter1-old", "hunter2-new", "hunter3-override"
SEES = {"viewer": False, "buyer": False, "operator": True, "owner": True, "sre": True}


def file(secret: str) -> dict:
    env = {"DB_PASSWORD": secret, "COLOUR": "teal", "DATABASE": f"postgresql://borg:{secret}@db/borg"}
    given = world.a_file(tasks=2)
    given["task"]["env"] = env
    given["task"]["plain_env"] = ["DB_PASSWORD", "DATABASE", "API_TOKEN"]  # as if an older release had accepted them
    given["overrides"] = {"1": {"env": {"API_TOKEN": OTHER}}}
    return given


@pytest.fixture
def cell() -> Cell:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    for role in Role:
        world.a_user(role.value, tenant=tenant, role=role)
    world.a_user("sre", sre=True)
    boss = world.principal("owner", tenant=tenant)
    world.submit(boss, cell, file(OLD), tenant="ubar")
    submit_and_kill.job_apply(principal=boss, cell=cell, job_spec=world.read(cell, file(NEW), tenant="ubar"))
    return cell


def user(name: str):
    return get_user_model().objects.get(username=name)


def in_session(name: str) -> Client:
    client = Client()
    client.force_login(user(name))
    return client


def secrets_in(text: str) -> set[str]:
    return {secret for secret in (OLD, NEW, OTHER) if secret in text}


@pytest.mark.parametrize("role", SEES)
def test_answers_hide_secrets_from_those_who_may_not_change_the_job(cell, role: str) -> None:
    client = world.bearer(user(role))
    shown = client.get(JOB).content.decode()
    assert secrets_in(shown) == ({NEW, OTHER} if SEES[role] else set())
    assert "teal" in shown
    versions = client.get(f"{JOB}versions/")
    assert versions.status_code == 200, versions.content
    assert secrets_in(versions.content.decode()) == ({OLD, NEW, OTHER} if SEES[role] else set())
    assert all(bool(row["digest"]) == SEES[role] for row in versions.json()["results"])


def test_a_token_that_may_only_read_sees_no_secrets(cell) -> None:
    for scopes, sees in (([Scope.READ], False), ([Scope.READ, Scope.WRITE], True)):
        client = world.bearer(user("operator"), scopes=scopes)
        assert bool(secrets_in(client.get(JOB).content.decode())) == sees
        assert bool(secrets_in(client.get(f"{JOB}versions/").content.decode())) == sees


@pytest.mark.parametrize("role", SEES)
def test_pages_hide_secrets_from_those_who_may_not_change_the_job(cell, role: str) -> None:
    client = in_session(role)
    page = client.get("/jobs/cc/ubar/web/specs/?version=2&against=1").content.decode()
    assert secrets_in(page) == ({OLD, NEW, OTHER} if SEES[role] else set())
    assert "teal" in page
    assert ("Only users who may change the job can see" in page) == (not SEES[role])


@pytest.mark.parametrize("role", SEES)
def test_no_other_answer_or_page_has_secrets(cell, role: str) -> None:
    client, session = world.bearer(user(role)), in_session(role)
    answers = [
        client.get(f"/api/v1/cells/cc/{path}").content.decode()
        for path in (
            "jobs/",
            "events/",
            "jobs/ubar/web/events/",
            "jobs/ubar/web/why/",
            "jobs/ubar/web/tasks/",
            "jobs/ubar/web/tasks/1/",
            "jobs/ubar/web/update/",
        )
    ]
    pages = [
        session.get(path).content.decode()
        for path in ("/", "/jobs/", "/jobs/cc/ubar/web/", "/jobs/cc/ubar/web/1/", "/notices/", "/tenants/ubar/records/")
    ]
    if SEES[role]:
        plan = client.post(f"{JOB}plan/", json.dumps(file(OLD)), content_type="application/json")
        assert plan.status_code == 200, plan.content
        answers.append(plan.content.decode())
    assert [secrets_in(text) for text in answers + pages] == [set()] * len(answers + pages)


def test_a_masked_spec_is_rejected_instead_of_stored(cell) -> None:
    spec = world.bearer(user("viewer")).get(JOB).json()["spec"]
    assert spec["task"]["env"]["DB_PASSWORD"] == MASK
    operator = world.bearer(user("operator"))
    for method, path in ((operator.put, JOB), (operator.post, f"{JOB}update/")):
        refused = method(path, json.dumps(spec), content_type="application/json")
        assert refused.status_code == 422
        assert {"task.env.DB_PASSWORD", "task.env.DATABASE"} <= set(refused.json()["fields"])
    text = json.dumps(spec)
    page = in_session("operator").post("/submit/", {"text": text, "cell": "cc", "tenant": "ubar", "do": "submit"})
    assert (page.status_code, "hides the stored value" in page.content.decode()) == (422, True)
    assert JobSpec.objects.filter(job__name="web").count() == 2


def test_an_operator_writes_back_what_they_read(cell) -> None:
    operator = world.bearer(user("operator"))
    answer = operator.put(JOB, json.dumps(operator.get(JOB).json()["spec"]), content_type="application/json")
    assert (answer.status_code, answer.json()["outcome"]) == (200, "unchanged")


def test_a_capability_for_any_job_shows_the_secrets_that_its_holder_may_change(cell) -> None:
    world.a_user("oncall", tenant=rows.a_tenant("other"), role=Role.OPERATOR)
    user("oncall").capabilities.create(kind="any-job", reason="on call")
    assert secrets_in(world.bearer(user("oncall")).get(JOB).content.decode()) == {NEW, OTHER}


@pytest.mark.django_db(transaction=True)
def test_borgctl_shows_a_viewer_no_secrets(shared_portal, cell, tmp_path) -> None:
    for role in ("viewer", "operator"):
        shown = cli_world.of(tmp_path, shared_portal, role).out("status", "web", "--json")
        assert secrets_in(shown) == ({NEW, OTHER} if SEES[role] else set())
