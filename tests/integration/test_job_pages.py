"""Tests of the pages of a job: updates with differences and prices, copies, usage, states of tasks, and events."""

from __future__ import annotations

import copy
import datetime as dt
import html
import time

import numpy as np
import pytest
from django.utils import timezone

from borglet.messages import TaskKey
from portal.sigma.jobs.charts.job_usage import job_usage_plots, usage_meters
from portal.sigma.reads.task_states import task_grid
from quota.models import MeteredHour, PriorityBand
from scheduling.core.vocabulary.requirement import task_id
from scheduling.jobs import submit_and_kill, updates
from scheduling.models import Job, JobSpec, MeteringHour, ReservedInHour, Task, Update
from scheduling.usage import job_history, job_usage, usage_windows
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in
from tests.integration.test_usage_history import a_window

pytestmark = pytest.mark.django_db
JOB = "/jobs/cc/ubar/jfoo/"
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def world(kept_world):
    return copy.deepcopy(kept_world)


def update(job: Job, **changes: object) -> None:
    wanted = updates.spec_of(job).to_json() | changes
    read = submit_and_kill.spec_for(principal=rows.ME, cell=job.cell, file=wanted, tenant="ubar")
    updates.job_update(principal=rows.ME, job=job, job_spec=read)


def opened(text: str, field: str) -> str:
    """Return the text in a field for a job file. `field`: the end of the element's start tag."""
    return html.unescape(text.partition(field)[2].partition("</textarea>")[0])


def test_a_plan_shows_the_differences_and_both_prices(world) -> None:
    PriorityBand.objects.filter(name="production").update(price_milli=1000)
    client = signed_in("operator")
    text = opened(client.get(JOB + "update/").text, 'aria-describedby="spec-help">')
    form = {"uid": world.job.uid, "version": "1", "text": text.replace("tasks: 3", "tasks: 6"), "do": "plan"}
    page = client.post(JOB + "update/", form)
    assert [(one.field, one.before, one.after) for one in page.context["diff"].fields] == [("tasks", "3", "6")]
    assert page.context["price"].after == 2 * page.context["price"].before > 0
    assert "per 30 days at the list price now" in page.text
    assert "3 tasks</strong> will be added" in page.text


def test_a_conflict_shows_what_changed_and_keeps_the_text(world) -> None:
    client = signed_in("operator")
    text = opened(client.get(JOB + "update/").text, 'aria-describedby="spec-help">').replace("tasks: 3", "tasks: 6")
    update(world.job, priority=210)
    form = {"uid": world.job.uid, "version": "1", "text": text, "do": "submit"}
    late = client.post(JOB + "update/", form)
    assert late.status_code == 409
    assert [(one.field, one.before, one.after) for one in late.context["changed"].fields] == [
        ("priority", "200", "210")
    ]
    assert f"{rows.ME.name} created version 2" in html.unescape(late.text)
    assert opened(late.text, 'aria-describedby="spec-help">') == text
    # The next plan compares the text with the current version, so it shows what the user would undo.
    plan = client.post(JOB + "update/", {**form, "version": late.context["version"], "do": "plan"})
    assert [one.field for one in plan.context["diff"].fields] == ["tasks", "priority"]
    assert JobSpec.objects.filter(job=world.job).count() == 2


def test_an_earlier_version_is_compared_before_it_returns(world) -> None:
    update(world.job, tasks=5)
    client = signed_in("operator")
    shown = client.get(JOB).text
    assert "Roll back to version 1…" in shown
    assert "version=2&amp;against=1" in shown
    form = {"uid": world.job.uid, "version": "2", "to": "1", "do": "plan"}
    plan = client.post(JOB + "update/", form)
    assert [(one.before, one.after) for one in plan.context["diff"].fields] == [("5", "3")]
    assert "Roll back to version 1</button>" in plan.text
    assert client.post(JOB + "update/", {**form, "to": "9"}).status_code == 404
    assert client.get(JOB + "update/?to=1").status_code == 200
    sent = {**form, "planned": plan.context["planned"], "do": "submit"}
    edited = client.post(JOB + "update/", {**sent, "text": plan.context["text"].replace("tasks: 3", "tasks: 4")})
    assert "The text has changed since the plan" in edited.text
    assert "Update the job</button>" in edited.text
    assert client.post(JOB + "update/", {**sent, "text": plan.context["text"]}).status_code == 302
    assert updates.spec_of(Job.objects.get(pk=world.job.pk)).tasks == 3
    versions = client.get(JOB + "specs/?version=2&against=1").text
    assert "<code>tasks</code>" in versions
    viewer = signed_in("viewer")
    assert "Roll back" not in viewer.get(JOB + "specs/?version=1").text
    assert viewer.post(JOB + "update/", form).status_code == 403
    assert signed_in("stranger").post(JOB + "update/", form).status_code == 404


def test_a_rollback_is_an_undo_without_canary_tasks(world) -> None:
    careful = {"update": {"canary": 1, "promote": "manual"}}
    task = updates.spec_of(world.job).to_json()["task"]
    portal_world.report(world.job, 0)
    update(world.job, task={**task, "command": ["sleep", "1"]}, **careful)
    update(world.job, task={**task, "command": ["sleep", "2"]}, **careful)
    form = {"uid": world.job.uid, "version": "3", "to": "2", "do": "submit"}
    assert signed_in("operator").post(JOB + "update/", form).status_code == 302
    newest = Update.objects.filter(job=world.job).latest("id")
    assert (newest.to_version, newest.undo, newest.canary) == (4, True, 0)
    # A conflict keeps what the rollback would do.
    late = signed_in("operator").post(JOB + "update/", form)
    assert late.status_code == 409
    assert "[sleep, '1']" in opened(late.text, 'aria-describedby="spec-help">')


def test_a_job_whose_band_is_gone_can_still_be_updated(world) -> None:
    text = opened(signed_in("operator").get(JOB + "update/").text, 'aria-describedby="spec-help">')
    Job.objects.filter(pk=world.job.pk).update(band="gone")
    form = {"uid": world.job.uid, "version": "1", "text": text.replace("tasks: 3", "tasks: 2"), "do": "plan"}
    plan = signed_in("operator").post(JOB + "update/", form)
    assert (plan.context["price"], len(plan.context["diff"].fields)) == (None, 1)
    assert signed_in("owner").get(JOB).context["cost"].quota is None


def test_a_job_is_opened_as_a_new_one_and_an_ended_one_again(world) -> None:
    client = signed_in("operator")
    rows.a_job(world.cell, world.tenant, "jfoo-2")
    link = client.get(JOB).context["edit_as_new"]
    form = client.get(link)
    assert form.context["text"].startswith("name: jfoo-3\ncell: cc\ntenant: ubar\n")
    assert (form.context["cell"], form.context["tenant"]) == ("cc", "ubar")
    assert submitted(client, form.context["text"]).url == "/jobs/cc/ubar/jfoo-3/"
    client.post(JOB + "kill/", {"uid": world.job.uid})
    ended = client.get(f"{JOB}?uid={world.job.uid}")
    assert "Submit again" in ended.text
    namesake = rows.a_job(world.cell, world.tenant, "jfoo")
    assert "Submit again" not in client.get(f"{JOB}?uid={world.job.uid}").text
    client.post(JOB + "kill/", {"uid": namesake.uid})
    again = client.get(ended.context["submit_again"]).context["text"]
    assert again.startswith("name: jfoo\n")
    assert submitted(client, again).url == JOB
    assert signed_in("stranger").get(link).status_code == 404
    assert signed_in("viewer").get(JOB).context["edit_as_new"] == ""
    assert client.get("/submit/?from=nonsense").status_code == 422


def submitted(client, text: str):
    return client.post("/submit/", {"cell": "cc", "tenant": "ubar", "text": text, "do": "submit"})


def test_usage_is_plotted_against_reservation_and_limit(world) -> None:
    now = timezone.now()
    world.job.refresh_from_db()
    for index in range(2):
        window = a_window(TaskKey(world.job.uid.hex, index, 1), ago=2, cpu_milli=250, limit_cpu_milli=500)
        key = task_id(world.job.id, index)
        usage_windows.store([usage_windows.TaskWindow(world.cell.id, world.machine.id, key, window)])
    at = dt.datetime.fromtimestamp(window.start, dt.UTC)
    hour = at.replace(minute=0, second=0)
    MeteringHour.objects.create(cell=world.cell, hour=hour, looks=2)
    ReservedInHour.objects.create(cell=world.cell, hour=hour, job_id=world.job.id, reserved=[1400, 2**27, 0, 0, 0, 0])
    recent = job_history.recent_use(world.job, since=now - 3 * HOUR, until=now)
    assert recent.steps == [job_history.UsageStep(at, (500, 2**21), (1000, 2**27))]
    cpu, ram = job_usage_plots(world.job, "3h", now=now).plots
    assert [(line.name, line.last) for line in cpu.lines] == [
        ("used", "0.5 cores"),
        ("reserved", "0.7 cores"),
        ("limit", "1 core"),
    ]
    assert [line.limit for line in cpu.lines] == [False, False, True]
    assert ram.rows[0][1][2] == "128 MiB"
    band = PriorityBand.objects.get(name="production")
    MeteredHour.objects.create(
        tenant=world.tenant,
        cell="cc",
        band=band,
        job_uid=world.job.uid.hex,
        job="jfoo",
        hour=hour - 5 * HOUR,
        limit=[3600 * 900, 0, 0, 0, 0, 0],
        reserved=[3600 * 600, 0, 0, 0, 0, 0],
        used=[3600 * 300, 0, 0, 0, 0, 0],
    )
    (day, _ram) = job_usage_plots(world.job, "1d", now=now).plots
    assert [values for _time, values in day.rows] == [("0.3 cores", "0.6 cores", "0.9 cores")]
    page = signed_in("viewer").get(JOB + "?usage=1d")
    assert 'class="plot-limit"' in page.text


def test_the_usage_of_a_large_job_is_an_estimate_from_some_tasks(world) -> None:
    """Of 401 tasks, every third is read. The plots leave out dead tasks, and the step whose windows still arrive."""
    job = rows.a_job(world.cell, world.tenant, "big", tasks=500)
    job.refresh_from_db()
    now = timezone.now()
    Task.objects.filter(job=job, index__lt=99).update(state="dead", since=now - 5 * HOUR)
    for index, ago in ((99 + 3 * 50, 2), (99 + 3 * 50, -1)):
        window = a_window(TaskKey(job.uid.hex, index, 1), ago=ago, cpu_milli=250, limit_cpu_milli=500)
        key = task_id(job.id, index)
        usage_windows.store([usage_windows.TaskWindow(world.cell.id, world.machine.id, key, window)])
    recent = job_history.recent_use(job, since=now - 3 * HOUR, until=now)
    assert (recent.sampled, recent.tasks, len(recent.steps)) == (134, 401, 1)
    assert recent.steps[0].used[0] == round(250 * 401 / 134)
    found = job_usage_plots(job, "3h", now=now)
    assert found.sampled == 134
    assert found.plots[0].lines[0].last == "0.748 cores"


def test_lists_show_use_reservation_and_limit(world) -> None:
    sums = np.zeros(1, job_usage.SUMS)
    sums[0] = (world.job.id, 2, 2, (1000, 2**30, 0), (600, 2**29, 0), (250, 2**28, 0))
    job_usage.publish(world.cell.id, job_usage.JobSums(time.time(), sums))
    cpu, ram = usage_meters([world.job])[world.job.id]
    assert (cpu.used_width, cpu.reserved_width, cpu.limit_x) == ("25.00%", "60.00%", "100.00%")
    assert ram.text == "256 MiB of 1 GiB"
    for path in ("/jobs/", JOB):
        assert "0.25 cores of 1 core" in signed_in("viewer").get(path).text, path


def test_a_large_job_has_a_grid_with_one_letter_per_task(world) -> None:
    job = rows.a_job(world.cell, world.tenant, "big", tasks=300)
    portal_world.place(job, 0, world.machine, port=21_000)
    portal_world.report(job, 0)
    portal_world.place(job, 1, world.machine, port=21_000)
    job.refresh_from_db()
    grid = task_grid(job, None)
    assert grid is not None
    assert grid.states == "rs298p"
    open_update = Update(job=job, from_version=1, to_version=2, state=Update.OPEN)
    marked = task_grid(job, open_update)
    assert marked is not None
    assert (marked.states, marked.old_count) == ("RS298P", 300)
    page = signed_in("viewer").get("/jobs/cc/ubar/big/")
    assert 'data-state-grid="rs298p"' in page.text
    assert len(page.content) < 300_000
    assert task_grid(world.job, None) is None


def test_events_are_filtered_by_task_and_repeats_are_folded(world) -> None:
    for number in range(8):
        portal_world.report(world.job, 0, phase="up" if number % 2 else "starting", up=bool(number % 2))
    portal_world.place(world.job, 1, world.machine)
    client = signed_in("viewer")
    page = client.get(JOB + "events/?task=0")
    assert {one.event.task_index for one in page.context["events"]} == {0}
    folds = page.context["folds"]
    assert (len(folds[0].rest), sum(1 + len(fold.rest) for fold in folds)) == (7, len(page.context["events"]))
    assert "7 more events like this" in page.text
    wrong = client.get(JOB + "events/?task=x")
    assert (wrong.status_code, "is not the index of a task" in wrong.text) == (200, True)
    assert client.get(JOB + "events/?task=2").context["events"] == []
    assert f"{JOB}events/?uid={world.job.uid}&amp;task=0" in client.get(JOB + "0/").text


def test_users_without_the_right_to_open_shells_can_ask_for_it(world) -> None:
    portal_world.report(world.job, 0)
    for name, link in (("operator", "/tenants/ubar/capabilities/"), ("viewer", "/tenants/ubar/")):
        page = signed_in(name).get(JOB + "0/").text
        assert "Ask for shell access" in page
        assert f'href="{link}"' in page, name
