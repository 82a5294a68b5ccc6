"""Tests of Sigma's pages: who sees them and what they show.

Their number of queries does not depend on the number of rows.
"""

from __future__ import annotations

import copy
import html
import re
import time

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from borglet.messages import TaskKey
from quota.models import Token
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.states import Observation
from scheduling.jobs.submission.revisions import revision_of
from scheduling.journal import journal, wakeups
from scheduling.models import Event, Job, JobSpec, Machine, Package, Task
from scheduling.tasks import reported_states
from scheduling.usage import live_usage as usage
from scheduling.usage import usage_windows
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in
from tests.integration.test_usage_history import a_window

pytestmark = pytest.mark.django_db
JOB = "/jobs/cc/ubar/jfoo/"
OPEN = [
    "/",
    "/cells/",
    "/cells/cc/",
    "/jobs/",
    "/names/",
    "/submit/",
    "/tokens/",
    "/quota/",
    "/packages/",
    "/settings/",
]
OF_THE_TENANT = [JOB, JOB + "0/", JOB + "specs/"]
ROLES = ["viewer", "operator", "owner", "sre"]


@pytest.fixture
def world(kept_world):
    return copy.deepcopy(kept_world)


def without_links(page: str) -> str:
    """Return the HTML of a page with the names of machines, but without their links."""
    return re.sub(r'<a href="/cells/cc/machines/[^"]*">([^<]*)</a>', r"\1", page)


@pytest.mark.parametrize("path", [*OPEN, *OF_THE_TENANT, JOB + "kill/", JOB + "undo/"])
def test_nobody_sees_anything_before_signing_in(world, path) -> None:
    answer = Client().get(path)
    assert (answer.status_code, answer.url) == (302, f"/accounts/login/?next={path}")


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("name", [*ROLES, "stranger"])
def test_everybody_signed_in_has_the_common_pages(world, path, name) -> None:
    answer = signed_in(name).get(path)
    assert answer.status_code == 200
    assert "jfoo" not in answer.text or name != "stranger"


@pytest.mark.parametrize("path", OF_THE_TENANT)
def test_a_job_is_shown_to_members_and_not_found_by_strangers(world, path) -> None:
    for name in ROLES:
        assert signed_in(name).get(path).status_code == 200, name
    answer = signed_in("stranger").get(path)
    assert answer.status_code == 404
    assert "production" not in answer.text


@pytest.mark.parametrize(
    "name, status, live",
    [("viewer", 403, 3), ("stranger", 404, 3), ("operator", 302, 0), ("owner", 302, 0), ("sre", 302, 0)],
)
def test_killing_asks_for_the_role(world, name, status, live) -> None:
    answer = signed_in(name).post(JOB + "kill/", {"uid": world.job.uid, "reason": "over"})
    assert answer.status_code == status
    assert Task.objects.exclude(state="dead").count() == live


def test_buttons_show_only_to_those_who_may_press_them(world) -> None:
    assert "Kill the job" not in signed_in("viewer").get(JOB).text
    assert "Kill the job" in signed_in("operator").get(JOB).text


def test_a_task_shows_what_it_used(world) -> None:
    found = Task.objects.get(job=world.job, index=0)
    assert "The first data appears within 15 seconds" in signed_in("viewer").get(JOB + "0/").text
    window = a_window(TaskKey(world.job.uid.hex, 0, max(1, found.incarnation)))
    usage_windows.store([usage_windows.TaskWindow(world.job.cell_id, 1, found.id, window)])
    page = signed_in("viewer").get(JOB + "0/").text
    assert page.count('<svg class="plot-box"') == 2
    assert page.count("<polyline") == 5
    assert 'class="chart"' not in page, "the console's scripts take that for a canvas of theirs"
    assert "limit <strong>64 MiB</strong>" in page


def test_a_task_shows_its_newest_sample_before_the_first_window(world) -> None:
    found = Task.objects.get(job=world.job, index=0)
    samples = np.zeros(2, dtype=usage.SAMPLE)
    samples["at"], samples["incarnation"] = time.time(), found.incarnation
    samples["task_id"] = [-world.machine.id, found.id]
    samples["cpu_milli"], samples["ram_bytes"] = 50, 2**25
    client, key = wakeups.client(), f"borg:usage:{world.cell.id}"
    client.hset(key, str(world.machine.id), samples.tobytes())
    try:
        page = signed_in("viewer").get(JOB + "0/").text
    finally:
        client.delete(key)
    assert page.count("<polyline") == 2
    assert "<strong>32 MiB</strong>" in page
    assert "The first sample" not in page


def test_a_simulated_task_says_once_that_it_writes_no_log(world) -> None:
    Machine.objects.filter(pk=world.machine.pk).update(attributes={"runtime": "simulated"})
    client = signed_in("viewer")
    page = client.get(JOB + "0/").text
    assert "Simulated tasks write no log." in page
    assert "data-logs" not in page
    answer = client.get("/api/v1/cells/cc/jobs/ubar/jfoo/tasks/0/logs/")
    assert (answer.status_code, answer.json()["code"]) == (409, "log-simulated")


def test_one_task_can_be_killed_and_the_reason_is_kept(world) -> None:
    assert "The task waits for the next scheduling pass" in signed_in("viewer").get(JOB + "1/").text
    answer = signed_in("operator").post(
        JOB + "kill/", {"uid": world.job.uid, "index": "1", "reason": "stuck"}, follow=True
    )
    assert "1 task is being killed." in answer.text
    assert Task.objects.get(job=world.job, index=1).detail == "stuck"
    assert Task.objects.exclude(state="dead").count() == 2


def test_actions_need_a_post_and_the_job_they_were_meant_for(world) -> None:
    client = signed_in("operator")
    assert client.get(JOB + "kill/").status_code == 405
    wrong = client.post(JOB + "kill/", {"uid": "00000000-0000-0000-0000-000000000000"})
    assert (wrong.status_code, Task.objects.exclude(state="dead").count()) == (404, 3)
    assert client.post(JOB + "kill/", {"uid": world.job.uid, "index": "x"}).status_code == 422


def test_forms_of_a_job_that_need_no_job_file(world) -> None:
    client, told = signed_in("operator"), {"uid": world.job.uid}
    page = client.get(JOB).text
    assert "Change the number of tasks" in page
    answer = client.post(JOB + "scale/", {**told, "tasks": "2", "revision": revision_of(world.job)}, follow=True)
    assert "The job is being changed to 2 tasks." in answer.text
    answer = client.post(JOB + "scale/", {**told, "tasks": "3", "revision": revision_of(world.job)})
    assert (answer.status_code, "look at the plan again" in answer.text) == (412, True)
    assert client.post(JOB + "scale/", {**told, "tasks": "many"}).status_code == 422
    answer = client.post(JOB + "restart/", {**told, "tasks": "0"}, follow=True)
    assert "1 task is being restarted." in answer.text
    answer = client.post(JOB + "kill/", {**told, "index": "0"}, follow=True)
    assert "Run the task again" in client.get(JOB + "0/").text
    assert "1 task runs again." in client.post(JOB + "retry/", {**told, "tasks": "0"}, follow=True).text
    assert client.post(JOB + "retry/", told).status_code == 409


def test_an_update_is_paused_and_resumed_on_the_page_of_its_job(world) -> None:
    client, told = signed_in("operator"), {"uid": world.job.uid}
    for index in (1, 2):
        portal_world.place(world.job, index, world.machine)
    for index in range(3):
        portal_world.report(world.job, index)
    client.post(JOB + "restart/", told)
    assert "Pause the restart" in client.get(JOB).text
    answer = client.post(JOB + "pause/", told, follow=True)
    assert "Resume the restart" in answer.text
    assert "no further task changes until the update is resumed" in answer.text
    assert "Pause the restart" in client.post(JOB + "resume/", told, follow=True).text


def test_undo_without_an_earlier_version_says_so(world) -> None:
    answer = signed_in("operator").post(JOB + "undo/", {"uid": world.job.uid, "version": "1"})
    assert answer.status_code == 409
    assert "never been updated" in answer.text


def test_undo_of_a_version_that_is_not_in_force_any_more_is_refused(world) -> None:
    answer = signed_in("operator").post(JOB + "undo/", {"uid": world.job.uid, "version": "7"})
    assert answer.status_code == 409
    assert "Check the job, then undo again" in answer.text


def submit(client: Client, text: str, **more):
    return client.post("/submit/", {"cell": "cc", "tenant": "ubar", "text": text, "do": "plan", **more})


GOOD = "name: web\ntasks: 2\npriority: 200\ntask: {command: [sleep, '9'], limit: {cpu: 100m}}"


def test_a_plan_changes_nothing_and_a_submission_does(world) -> None:
    client = signed_in("operator")
    plan = submit(client, GOOD)
    assert plan.status_code == 200
    assert "Submit the job" in plan.text
    assert "2 tasks" in plan.text
    assert not Job.objects.filter(name="web").exists()
    done = submit(client, GOOD, do="submit")
    assert (done.status_code, done.url) == (302, "/jobs/cc/ubar/web/")
    assert Job.objects.get(name="web").submitted_by == "operator"


def test_the_plan_of_an_update_says_what_happens_to_tasks_and_names(world) -> None:
    client = signed_in("operator")
    submit(client, GOOD, do="submit")
    answer = submit(client, GOOD.replace("sleep, '9'", "sleep, '8'") + "\nnames: {ttl_s: 60}")
    for told in ("will be restarted, at most 1 at a time", "for 60 s, 5 s until now"):
        assert told in answer.text
    kept = submit(client, GOOD + "\noverrides: {'1': {weight: 0}}")
    for told in ("will not change", "will be changed without a restart", "Task 1 has weight 0"):
        assert told in kept.text


@pytest.mark.parametrize(
    "text, field, what",
    [
        ("name: web\ntask: {command: [sleep], weight: -1}", "task.weight", "0 to 65535"),
        ("name: web\ntask: {command: [sleep]}\nlabels: {service: My_Shop}", "labels.service", "My_Shop"),
        ("name: service\ntask: {command: [sleep]}", "name", "reserved"),
        ("name: web\ntask: {command: [sleep], limit: {cpu: -1}}", "task.limit.cpu", "-1"),
        ("name: web\ntask: {command: [sh, -c, $(date)]}", "task.command[2]", "$(date) is not a variable"),
        ("name: Web!\ntask: {command: [sleep]}", "name", "Web!"),
        ("name: web\ncolour: red\ntask: {command: [sleep]}", "colour", "colour"),
        ("{", "file", "not valid JSON"),
        ("- a\n- b", "file", "does not describe a job"),
        ("a: &x [1]\nb: *x", "file", "aliases"),
        ("name: web\ntask: {command: [sleep], restart: {on: sometimes}}", "task.restart.on", "sometimes"),
        ("name: web\ntask: [", "file", "line 2: "),
        ("a: " + "[" * 20_000, "file", "nested too deeply: more than 64 levels"),
        ("[\n" * 20_000, "file", "nested too deeply: more than 64 levels"),
        ("- " * 20_000, "file", "nested too deeply: more than 64 levels"),
        ('{"a":' * 20_000, "file", "nested too deeply: more than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "file", "nested too deeply: more than 64 levels"),
        ("- a\n" * 70_000, "file", "at most 262144 bytes of YAML"),
    ],
)
def test_a_bad_spec_names_its_field(world, text, field, what) -> None:
    answer = submit(signed_in("operator"), text, do="submit")
    assert answer.status_code == 422
    assert f"<dt><code>{field}</code></dt>" in answer.text
    assert what in answer.text
    assert Job.objects.count() == 1


def test_what_quota_refuses_is_reported_with_figures(world) -> None:
    answer = submit(signed_in("operator"), GOOD.replace("100m", "'90000'"), do="submit")
    assert answer.status_code in (403, 409, 422)
    assert "quota" in answer.text
    body = answer.content.decode()
    assert "Possible solutions" in body
    assert '<a href="/jobs/cc/ubar/jfoo/">jfoo</a>' in body
    assert "/shop/?tenant=ubar&amp;cell=cc&amp;band=production&amp;" in body
    assert "borgctl quota buy --tenant ubar" in body


@pytest.mark.parametrize("name", ["viewer", "stranger"])
def test_a_user_who_may_not_submit_for_a_tenant_does_not(world, name) -> None:
    assert submit(signed_in(name), GOOD, do="submit").status_code in (403, 404)
    assert Job.objects.count() == 1


def test_a_token_shows_its_secret_once(world) -> None:
    client = signed_in("viewer")
    given = {"name": "ci", "scopes": ["read"], "days": "30", "tenant": "ubar"}
    answer = client.post("/tokens/", given)
    assert answer.status_code == 201
    secret = answer.context["secret"]
    assert secret in answer.text
    assert "no-store" in answer["Cache-Control"]
    again = client.get("/tokens/").text
    assert "ci" in again
    assert secret not in again
    api = Client(headers={"authorization": f"Bearer {secret}"})
    assert [row["name"] for row in api.get("/api/v1/tenants/").json()["results"]] == ["ubar"]


@pytest.mark.parametrize(
    "given, field",
    [
        ({"name": " ", "scopes": ["read"]}, "name"),
        ({"name": "x"}, "scopes"),
        ({"name": "x", "scopes": ["read"], "days": "12"}, "days"),
        ({"name": "x", "scopes": ["read"], "tenant": "other"}, "tenant"),
    ],
)
def test_a_bad_token_names_its_field(world, given, field) -> None:
    answer = signed_in("viewer").post("/tokens/", given)
    assert answer.status_code in (404, 422)
    assert f"<code>{field}</code>" in answer.text
    assert not Token.objects.exists()


def test_only_ones_own_tokens_can_be_revoked(world) -> None:
    signed_in("owner").post("/tokens/", {"name": "ci", "scopes": ["read"]})
    token = Token.objects.get()
    assert signed_in("viewer").post(f"/tokens/{token.key}/revoke/").status_code == 404
    assert signed_in("sre").post(f"/tokens/{token.key}/revoke/").status_code == 404
    assert "were revoked" in signed_in("owner").post(f"/tokens/{token.key}/revoke/", follow=True).text
    token.refresh_from_db()
    assert token.revoked_at is not None


def queries(client: Client, path: str) -> int:
    client.get(path)
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


@pytest.mark.parametrize("path", [*OPEN, *OF_THE_TENANT, JOB + "?state=pending"])
def test_pages_cost_the_same_whatever_there_is_to_show(world, path) -> None:
    client = signed_in("sre")
    before = queries(client, path)
    for number in range(3):
        tenant = rows.a_tenant(f"team-{number}")
        rows.grant(tenant, world.cell, "production")
        job = rows.a_job(world.cell, tenant, f"job-{number}", tasks=4)
        portal_world.place(job, 0, rows.a_machine(world.cell, f"more-{number}"))
        portal_world.report(world.job, 0, phase="starting" if number % 2 else "up", up=number % 2 == 0)
    portal_world.place(world.job, 1, world.machine)
    assert queries(client, path) == before
    assert before <= 27


def test_pages_are_filtered_and_paged(world) -> None:
    client = signed_in("viewer")
    assert "No machine matches" in client.get("/cells/cc/?state=down").text
    assert "m1" in client.get("/cells/cc/?state=up&rack=r1&q=m1").text
    assert "No job matches" in client.get("/jobs/?state=dead").text
    assert "jfoo" in client.get("/jobs/?labels=!track").text
    assert "No job matches" in client.get("/jobs/?labels=track").text
    assert "write key=value" in client.get("/jobs/?labels=a b").text
    assert client.get("/jobs/?page=999&state=nonsense").status_code == 200
    assert client.get(JOB + "?state=dead").context["page_obj"].paginator.count == 0


def test_what_does_not_exist_is_said_in_words(world) -> None:
    client = signed_in("viewer")
    assert "no cell &#x27;xx&#x27;" in client.get("/cells/xx/").text
    for path in ("/jobs/cc/ubar/none/", JOB + "99/", JOB + "specs/?version=9", JOB + "?uid=nonsense", "/nothing/"):
        assert client.get(path).status_code == 404, path


def test_the_job_page_tells_what_happened_and_why(world) -> None:
    from django.utils import timezone

    from scheduling.models import PendingVerdict

    PendingVerdict.objects.create(
        job=world.job,
        revision=3,
        at=timezone.now(),
        whys=[
            {
                "tasks": [[world.job.id, 2]],
                "machines": 1,
                "ruled_out": [{"code": "resource", "subject": "cpu", "machines": 1, "wanted": 4000, "largest": 2500}],
                "changes": [{"subject": "cpu", "to": 2500, "machines": 1}],
            }
        ],
    )
    page = signed_in("viewer").get(JOB).text
    assert "2 tasks can&#x27;t be placed on any of 1 machine:" in page
    assert "1 machine with less than 4 cores of cpu free (at most 2.5 cores)" in page
    assert "A task would fit with at most 2.5 cores of cpu (on 1 machine)." in page
    assert "task 0 was placed on m1 as incarnation 1" in without_links(page)


def test_an_eviction_is_reported_with_what_caused_it(world) -> None:
    from scheduling.core.vocabulary import events, task_events
    from scheduling.core.vocabulary.requirement import task_id
    from scheduling.journal import journal
    from scheduling.tasks import transitions

    with journal.write(world.cell.id, rows.ME) as entry:
        drained = entry.append(events.MachineState(machine_id=world.machine.id, state="draining", reason="new disk"))
        transitions.tasks_evict(
            entry,
            [
                task_events.Eviction(
                    task_id(world.job.id, 0), 1, "machine-shutdown", caused_by=drained, detail="drained"
                )
            ],
        )
    page = without_links(signed_in("viewer").get(JOB).text)
    assert "task 0 was evicted from m1 by machine shutdown: drained" in page
    assert "incarnation 1 is still stopping on m1" in page
    assert "m1 is draining: new disk (by system:test)" in page
    history = without_links(signed_in("viewer").get(JOB + "0/").text)
    assert "task 0 was placed on m1 as incarnation 1" in history
    assert "Incarnation 1 is still stopping on m1" in history


def test_a_page_reads_without_scripts_and_carries_no_inline_handler(world) -> None:
    page = signed_in("operator").get(JOB).text
    assert "<noscript>" in page
    for handler in ("onclick=", "onchange=", "onsubmit=", "onload="):
        assert handler not in page


def test_signing_in_by_the_form_and_out_by_the_button(world) -> None:
    client = Client()
    assert "Sign in" in client.get("/accounts/login/").text
    wrong = client.post("/accounts/login/", {"login": "viewer", "password": "wrong"})
    assert (wrong.status_code, "alert" in wrong.text) == (200, True)
    right = client.post("/accounts/login/?next=/jobs/", {"login": "viewer", "password": portal_world.PASSWORD})
    assert (right.status_code, right.url) == (302, "/jobs/")
    assert client.post("/accounts/logout/").status_code == 302
    assert client.get("/").status_code == 302


@pytest.mark.parametrize("path", ["signup/", "email/", "password/reset/"])
def test_nobody_makes_an_account_or_sends_mail(world, path) -> None:
    for client in (Client(), signed_in("viewer")):
        for answer in (client.get(f"/accounts/{path}"), client.post(f"/accounts/{path}", {"email": "a@b.cd"})):
            assert answer.status_code == 403
            assert "Ask an SRE" in answer.text


@pytest.mark.parametrize("path", ["/accounts/password/change/", "/accounts/2fa/"])
def test_the_password_and_the_second_factor_have_pages(world, path) -> None:
    client = Client()
    client.post("/accounts/login/", {"login": "viewer", "password": portal_world.PASSWORD})
    assert client.get(path).status_code == 200


def test_a_task_in_an_alloc_names_its_alloc(world) -> None:
    from scheduling.core.vocabulary import task_events
    from scheduling.core.vocabulary.requirement import task_id
    from scheduling.journal import journal
    from scheduling.tasks import transitions
    from tests.integration import world as submitting

    owner = submitting.principal("owner")
    shelf = {"name": "shelf", "kind": "AllocSet", "priority": "production", "tasks": 1}
    limit = {"cpu": "500m", "ram": "256Mi", "disk": "256Mi"}
    outer = submitting.submit(owner, world.cell, shelf | {"task": {"limit": limit}}, tenant="ubar")
    inner = submitting.submit(owner, world.cell, submitting.a_file("inside", tasks=1, alloc_set="shelf"), tenant="ubar")
    with journal.write(world.cell.id, rows.ME) as entry:
        transitions.tasks_place(entry, [Assignment(outer.id, 0, world.machine.id)])
        transitions.tasks_place(
            entry, [Assignment(inner.id, 0, world.machine.id, ports=(20_900,), alloc=task_id(outer.id, 0))]
        )
    page = "/jobs/cc/ubar/inside/"
    assert "in alloc 0" in signed_in("viewer").get(page).text
    told = signed_in("viewer").get(page + "0/").text
    assert "The task runs in the alloc shelf/0, so it is always on the machine of this alloc." in told
    assert "No score" not in told
    with journal.write(world.cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [task_events.Eviction(task_id(outer.id, 0), 1, "preemption")])
    text = without_links(signed_in("viewer").get(page).text)
    assert "task 0 was evicted from m1: its alloc shelf/0 was stopped" in text


def test_packages_are_shown_to_members_with_the_jobs_that_may_run_them(world) -> None:
    package = Package.objects.get()
    JobSpec.objects.filter(job=world.job).update(packages={package.digest: {"size_bytes": 1, "format": "tar"}})
    shown = signed_in("viewer").get("/packages/").text
    assert "tool" in shown
    assert f'<a href="{JOB}">jfoo</a>' in shown
    assert "tool" not in signed_in("stranger").get("/packages/").text
    assert "No package matches" in signed_in("viewer").get("/packages/?q=other").text


def test_a_page_of_packages_asks_as_often_whatever_it_shows(world) -> None:
    client = signed_in("viewer")

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get("/packages/")
        return len(queries)

    asked()  # the first request records the session
    rows.a_package(world.cell, world.tenant, name="first")
    few = asked()
    for number in range(10):
        rows.a_package(world.cell, world.tenant, name=f"tool{number}", digest=f"sha256:{number:064}")
    assert asked() == few


# --- an update opens the spec in force, and touches no other job


def opened(page) -> str:
    """Return the text in the form's field for the spec, as a browser would send it."""
    return html.unescape(page.text.partition('aria-describedby="spec-help">')[2].partition("</textarea>")[0])


def test_an_update_opens_the_spec_in_force_of_that_very_job(world) -> None:
    client, path = signed_in("operator"), "/jobs/cc/ubar/web/"
    submit(client, GOOD, do="submit")
    job = Job.objects.get(name="web")
    assert f'href="{path}update/?uid={job.uid}"' in client.get(path).text
    page = client.get(path + "update/")
    assert opened(page).startswith("name: web\n")
    form = {"uid": job.uid, "version": "1", "text": opened(page), "do": "plan"}
    assert "Nothing will change" in client.post(path + "update/", form).text
    changed = opened(page).replace("'9'", "'8'")
    assert "Update the job" in client.post(path + "update/", {**form, "text": changed}).text
    done = client.post(path + "update/", {**form, "text": changed, "do": "submit"})
    assert (done.status_code, done.url) == (302, path)
    assert list(Job.objects.order_by("id").values_list("name", "spec_version")) == [("jfoo", 1), ("web", 2)]
    late = client.post(path + "update/", {**form, "text": changed, "do": "submit"})
    assert late.status_code == 409
    assert "the spec changed to version 2 after this page showed version 1." in late.text


@pytest.mark.parametrize(
    "change, field", [(("name: jfoo", "name: hello"), "name"), (("name: jfoo", "name: jfoo\ntenant: other"), "tenant")]
)
def test_an_update_whose_file_names_another_job_is_rejected(world, change, field) -> None:
    client = signed_in("operator")
    text = opened(client.get(JOB + "update/"))
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("tenant:", "cell:")))
    form = {"uid": world.job.uid, "version": "1", "text": text.replace(*change), "do": "submit"}
    answer = client.post(JOB + "update/", form)
    assert (answer.status_code, f"<code>{field}</code>" in answer.text) == (422, True)
    assert list(Job.objects.values_list("name", "spec_version")) == [("jfoo", 1)]


@pytest.mark.parametrize("name, status", [("viewer", 403), ("stranger", 404), ("operator", 200)])
def test_an_update_asks_for_the_role(world, name, status) -> None:
    assert signed_in(name).get(JOB + "update/").status_code == status


def test_a_job_that_has_ended_is_not_updated(world) -> None:
    client = signed_in("operator")
    client.post(JOB + "kill/", {"uid": world.job.uid})
    answer = client.get(JOB + f"update/?uid={world.job.uid}")
    assert (answer.status_code, "Submit it again." in answer.text) == (409, True)


# --- health


def crash(job: Job, index: int) -> None:
    task = Task.objects.get(job=job, index=index)
    ended = {"cause": "exited", "status": 3, "signal": None}
    seen = Observation(task.id, task.incarnation, "backoff", "unknown", False, 4, ended)
    with journal.write(job.cell_id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [seen])


def test_a_job_that_only_crashes_is_shown_red_everywhere(world) -> None:
    crash(world.job, 0)
    label = '<span class="tag tag-bad">failing</span>'
    listed, shown = signed_in("viewer").get("/jobs/").text, signed_in("viewer").get(JOB).text
    assert label in listed
    assert label in shown
    assert "tag-good" not in listed
    assert "1 of 3 tasks keeps crashing." in shown
    assert "Task 0 on m1: exit status 3, 4 restarts." in shown
    assert shown.index("keeps crashing") < shown.index("Why tasks are pending")
    assert 'data-again-s="60"' in shown
    home = signed_in("viewer").get("/").text
    assert '<a href="/jobs/?state=failing">Failing jobs</a></dt><dd class="bad">1</dd>' in home
    assert "Task 0 last ended: exit status 3." in home
    assert "jfoo" in signed_in("viewer").get("/jobs/?state=failing").text
    assert "No job matches" in signed_in("stranger").get("/jobs/?state=failing").text
    console = signed_in("sre").get("/admin/scheduling/job/").text
    assert "failing" in console


def test_the_list_of_jobs_takes_as_many_queries_however_many_crash(world) -> None:
    client = signed_in("viewer")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get("/jobs/").status_code == 200
        return len(captured)

    queries()
    before = queries()
    for number in range(4):
        other = rows.a_job(world.cell, world.tenant, f"crash{number}")
        portal_world.place(other, 0, rows.a_machine(world.cell, f"n{number}"))
        crash(other, 0)
    assert queries() == before


def test_actions_are_in_the_live_part_of_the_page(world) -> None:
    client = signed_in("operator")

    def live() -> str:
        return client.get(JOB).text.partition("data-live-region")[2]

    assert "Kill the job" in live()
    assert "Undo the last change" not in live()
    text = opened(client.get(JOB + "update/")).replace("infinity", "'9'")
    client.post(JOB + "update/", {"uid": world.job.uid, "version": "1", "text": text, "do": "submit"})
    assert "Undo the last change" in live()


# --- everything that happened to a job


def test_all_events_of_a_job_are_reached_page_by_page(world) -> None:
    for number in range(60):
        portal_world.report(world.job, 0, phase="up" if number % 2 else "starting", up=bool(number % 2))
    client = signed_in("viewer")
    assert f'href="{JOB}events/?uid={world.job.uid}"' in client.get(JOB).text
    places, page, pages = [], client.get(JOB + "events/"), 0
    while True:
        pages += 1
        places += [(one.event.revision, one.event.seq) for one in page.context["events"]]
        if not (older := page.context["paging"].after) or pages > 5:
            break
        page = client.get(JOB + f"events/?before={older['before']}")
    everything = Event.objects.filter(job_id=world.job.id).order_by("-revision", "-seq")
    assert places == list(everything.values_list("revision", "seq"))
    assert pages == 2
    newer = client.get(JOB + f"events/?after={page.context['paging'].before['after']}")
    assert [(one.event.revision, one.event.seq) for one in newer.context["events"]] == places[:50]


def test_events_are_filtered_by_kind_and_places_are_checked(world) -> None:
    client = signed_in("viewer")
    page = client.get(JOB + "events/?kind=task.placed")
    assert [one.event.kind for one in page.context["events"]] == ["task.placed"]
    assert "task 0 was placed on m1" in without_links(page.text)
    assert "UTC" in page.text
    assert client.get(JOB + "events/?before=nonsense").status_code == 422
    assert signed_in("stranger").get(JOB + "events/").status_code == 404
