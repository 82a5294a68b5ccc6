"""Tests of the home page, the first steps, the settings of a person, and the form for a job."""

from __future__ import annotations

import copy
import datetime as dt

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from portal.cli import apply_kinds, origin_labels
from portal.sigma.jobs.job_files import file_of
from portal.sigma.submit.form_fields import fields_of
from portal.sigma.submit.starting_points import EXAMPLES, free_name
from quota.models import Preferences, Quota
from quota.personal import preferences
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.bands import DEFAULT_BANDS
from scheduling.cron import cron_spec
from scheduling.job_templates import template_spec
from scheduling.models import Job, JobSpec, Task
from scheduling.workflows import workflow_spec
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(kept_world):
    return copy.deepcopy(kept_world)


def home(name: str) -> str:
    return signed_in(name).get("/").text


def test_the_home_page_lists_what_needs_the_user_with_an_action(world) -> None:
    waiting = rows.a_job(world.cell, world.tenant, "waiting", tasks=2)
    Task.objects.filter(job=waiting).update(since=timezone.now() - dt.timedelta(minutes=5))
    Quota.objects.update(
        ends_at=timezone.now() + dt.timedelta(days=2), grace_until=timezone.now() + dt.timedelta(days=9)
    )
    page = home("viewer")
    assert '<a href="/jobs/cc/ubar/waiting/">cc/ubar/waiting</a> The next scheduling pass will examine it.' in page
    assert '<a href="/jobs/cc/ubar/waiting/cures/">Show solutions' in page
    assert "for tenant ubar in band production of cell cc ends, and is not renewed." in page
    assert "waiting" not in home("stranger")


def test_a_user_without_tenants_reads_what_would_be_there(world) -> None:
    portal_world.person("newcomer")
    page = home("newcomer")
    for words in ("Nothing needs you now.", "You are not a member of any tenant yet.", "ask an SRE to create a tenant"):
        assert words in page


def test_the_first_steps_are_ticked_by_what_exists(world) -> None:
    assert "1 of 4 done" in home("operator"), "the tenant has quota"
    assert "First steps" not in home("viewer"), "a viewer may submit no job"
    Job.objects.update(submitted_by="operator")
    assert "2 of 4 done" in home("operator")
    portal_world.report(world.job, 0)
    page = home("operator")
    assert "3 of 4 done" in page
    assert "/jobs/cc/ubar/jfoo/0/" in page
    assert '<a class="button" href="/cells/cc/map/">Show the map</a>' in page
    user = get_user_model().objects.get(username="operator")
    preferences.log_opened(principal_of_user(user))
    assert "4 of 4 done" in home("operator")
    Job.objects.update(state="dead", tasks_up=0)
    assert "of 4 done" not in home("operator"), "steps that were done stay done"
    client = signed_in("operator")
    assert "You have done all first steps." in client.post("/first-steps/", {"do": "shown"}, follow=True).text
    assert "You have done all" not in client.post("/first-steps/", {"do": "hidden"}, follow=True).text
    assert client.post("/first-steps/", {"do": "x"}).status_code == 422
    assert Preferences.objects.get().first_steps == "hidden"


def test_times_have_the_zone_of_the_user_or_else_of_the_browser(world) -> None:
    client = signed_in("operator")
    client.cookies["borg-time-zone"] = "Asia/Kolkata"
    assert "IST" in client.get("/jobs/").text
    client.post("/settings/", {"time_zone": "Asia/Tokyo"})
    assert "JST" in client.get("/jobs/").text
    assert client.post("/settings/", {"time_zone": "Mars"}).status_code == 422
    client.post("/settings/", {"time_zone": ""})
    client.cookies["borg-time-zone"] = "Mars"
    assert "UTC" in client.get("/jobs/").text


FORM = {"cell": "cc", "tenant": "ubar", "do": "plan", "base": "name: a\ntask: {command: [sleep, '9']}"}


def test_the_form_and_the_file_are_merged(world) -> None:
    client, text = signed_in("operator"), "name: b  # mine\ntask: {command: [sleep, '9']}"
    fields = {"name": "a", "band": "free", "tasks": "1", "command": "sleep 9"}
    kept = client.post("/submit/", {**FORM, **fields, "text": text})
    assert kept.context["text"] == text, "the form is unchanged, so the file keeps its comment"
    assert kept.context["fields"]["name"] == "b"
    both = client.post("/submit/", {**FORM, **fields, "text": text, "tasks": "4", "band": "production"})
    assert both.context["wanted"].tasks == 4
    assert both.context["wanted"].name == "b"
    assert both.context["wanted"].priority == 120
    wrong = client.post("/submit/", {**FORM, **fields, "text": text, "command": "echo '"})
    assert (wrong.status_code, "command" in wrong.context["errors"]) == (422, True)
    assert not Job.objects.exclude(name="jfoo").exists()


def test_a_form_that_nobody_changed_changes_nothing(world) -> None:
    """A browser sends the first choice if none is selected, and line breaks as CRLF."""
    client = signed_in("operator")
    text = 'name: a\ncell: bb\ntenant: other\ntask: {command: [sh, -c, "one\\ntwo"]}'
    fields = {name: value.replace("\n", "\r\n") for name, value in fields_of(file_of(text), DEFAULT_BANDS).items()}
    again = client.post("/submit/", {**FORM, **fields, "base": text, "text": text})
    assert again.context["text"] == text
    assert "<option selected>bb</option>" in again.text
    assert "<option selected>other</option>" in again.text
    assert again.status_code == 404, "the cell of the file counts, not one of the list"


def test_a_new_job_that_became_an_update_is_shown_first(world) -> None:
    client, text = signed_in("operator"), "name: jfoo\ntask: {command: [sleep, '9']}"
    page = client.post("/submit/", {**FORM, "text": text, "base": text, "do": "submit", "planned": "submit"})
    assert page.status_code in (200, 409, 422)
    assert Job.objects.get(name="jfoo").spec_version == 1


def test_a_new_job_starts_from_an_example_or_from_another_job(world) -> None:
    client = signed_in("operator")
    for name in EXAMPLES:
        page = client.get("/submit/", {"example": name, "cell": "cc", "tenant": "ubar"})
        plan = client.post("/submit/", {**FORM, "text": page.context["text"], "base": page.context["text"]})
        assert plan.context["plan"].problem is None, name
        assert plan.text.count("at the list price") + plan.text.count("needs no quota") == 1, name
    page = client.get("/submit/", {"from": "cc/ubar/jfoo"})
    assert page.context["fields"]["name"] == "jfoo-2"
    assert (page.context["cell"], page.context["tenant"]) == ("cc", "ubar")
    assert signed_in("stranger").get("/submit/", {"from": "cc/ubar/jfoo"}).status_code == 404
    assert client.get("/submit/", {"from": "jfoo"}).status_code == 422
    assert client.get("/submit/", {"example": "none"}).status_code == 404


def test_a_copy_has_no_label_of_what_made_the_job(world) -> None:
    job = world.job
    made_by = {"applied-by": "team", "template": "nightly", "dispatched-by": "abc"}
    JobSpec.objects.filter(job=job).update(spec=job.specs.get().spec | {"labels": {"app": "web", **made_by}})
    client = signed_in("operator")
    copied = client.get("/submit/", {"from": "cc/ubar/jfoo"}).context["text"]
    assert file_of(copied)["labels"] == {"app": "web"}
    again = client.get("/submit/", {"from": "cc/ubar/jfoo", "again": "yes"}).context["text"]
    assert file_of(again)["labels"] == {"app": "web", "applied-by": "team"}
    theirs = {cron_spec.LABEL, workflow_spec.LABEL, workflow_spec.NODE_LABEL}
    assert {*theirs, template_spec.LABEL, template_spec.DISPATCHED_BY, apply_kinds.LABEL} == {*origin_labels.LABELS}


def test_a_copy_gets_a_free_name() -> None:
    assert free_name("web-2", {"web-3"}) == "web-4"
    assert free_name("w" * 63, set()) == "w" * 61 + "-2"
