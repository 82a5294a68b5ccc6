"""Tests of the autoscaler through REST, the page of a job and borgctl."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import yaml
from django.test import Client
from django.utils import timezone

from quota.vocabulary.permissions import Role
from scheduling.autoscaling.rejections import LIMITS, TASKS
from scheduling.autoscaling.selectors import recommendation_of
from scheduling.jobs import updates
from scheduling.jobs.submission.revisions import revision_of
from scheduling.models import Job, JobAutoscaling
from tests.integration import cli_world, rows, world
from tests.integration.autoscaling_world import (
    HORIZONTAL,
    MIB,
    VERTICAL,
    a_file,
    again,
    loaded,
    submitter,
    turn,
    used,
    values,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


class TestDoors:
    @pytest.fixture
    def client(self, tenant):
        return world.bearer(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))

    def path(self, job: Job, verb: str = "autoscaling/") -> str:
        return f"/api/v1/cells/{job.cell.name}/jobs/ubar/{job.name}/{verb}"

    def test_a_file_from_git_keeps_the_number_of_tasks(self, submit, client) -> None:
        job = submit(HORIZONTAL)
        loaded(job, 900)
        turn(job)
        answer = client.put(self.path(job, ""), a_file(HORIZONTAL), content_type="application/json").json()
        assert answer["outcome"] == "unchanged"
        plan = client.post(self.path(job, "plan/"), a_file(HORIZONTAL), content_type="application/json").json()
        assert plan["outcome"] == "unchanged"
        answer = client.post(f"/api/v1/cells/{job.cell.name}/jobs/", a_file(HORIZONTAL), "application/json").json()
        assert answer["outcome"] == "unchanged"
        other = a_file(HORIZONTAL, labels={"a": "b"})
        assert client.put(self.path(job, ""), other, content_type="application/json").json()["outcome"] == "updated"
        assert values(job)[0] == 6
        answer = client.put(self.path(job, ""), a_file(HORIZONTAL, tasks=2), content_type="application/json").json()
        assert answer["outcome"] == "updated"
        assert values(job)[0] == 2, "a number that has changed in the file wins"

    def test_a_repeated_submission_with_a_key_gets_the_scaled_job(self, cell, client, machine) -> None:
        def submit() -> Any:
            path, key = f"/api/v1/cells/{cell.name}/jobs/", {"Idempotency-Key": "once"}
            return client.post(path, a_file(HORIZONTAL), "application/json", headers=key).json()

        assert submit()["outcome"] == "submitted"
        job = Job.objects.get()
        world.bring_up(job, machine)
        loaded(job, 900)
        assert turn(job) == 1
        assert submit()["outcome"] == "submitted"

    def test_a_file_from_git_keeps_the_limits(self, submit, client) -> None:
        job = submit(VERTICAL)
        used(job)
        turn(job)
        answer = client.put(self.path(job, ""), a_file(VERTICAL), content_type="application/json").json()
        assert answer["outcome"] == "unchanged"
        off = a_file({"vertical": {"mode": "off"}})
        assert client.put(self.path(job, ""), off, content_type="application/json").json()["outcome"] == "updated"
        assert values(job) == (3, 1000, 1024 * MIB), "without the autoscaler, the values of the file apply"

    def test_a_recommendation_is_shown_and_accepted(self, submit, client) -> None:
        job = submit({"vertical": {"history_s": 3600}})
        used(job)
        turn(job)
        found = client.get(self.path(job)).json()
        assert (found["vertical"], found["horizontal"], found["available"]) == ("recommend", "off", True)
        assert found["saves_per_month"] > 0
        rehearsed = client.post(self.path(job, "autoscaling/accept/?dry_run=true")).json()
        assert (rehearsed["outcome"], values(job)[1]) == ("updated", 1000)
        answer = client.post(self.path(job, "autoscaling/accept/")).json()
        assert answer["tasks"]["in_place"] == 3
        assert values(job)[1] == found["wanted"]["cpu"]

    def test_a_simulation_uses_the_recorded_usage(self, submit, client) -> None:
        job = submit({})
        used(job, hours=6)
        found = client.post(self.path(job, "autoscaling/simulate/"), {}, content_type="application/json").json()
        assert found["horizontal"] is None
        vertical = found["vertical"]
        assert vertical["slack"]["cpu"] == pytest.approx(0.8)
        assert vertical["slack_after"]["cpu"] < 0.7
        assert vertical["oom_task_days"] == 0
        assert vertical["saves_per_month"] > 0
        rules = {"autoscale": {"horizontal": {"max": 5, "cpu": 0.5}}}
        found = client.post(self.path(job, "autoscaling/simulate/"), rules, content_type="application/json").json()
        assert found["vertical"] is None
        assert found["horizontal"]["tasks_after"] < found["horizontal"]["tasks"]

    def test_a_simulation_with_wrong_rules_names_the_field(self, submit, client) -> None:
        job = submit({})
        used(job)
        rules = {"autoscale": {"horizontal": {"max": 5}}}
        answer = client.post(self.path(job, "autoscaling/simulate/"), rules, content_type="application/json")
        assert answer.status_code == 422
        assert "autoscale.horizontal" in answer.json()["fields"]

    def test_a_simulation_without_usage_is_rejected(self, submit, client) -> None:
        job = submit({})
        answer = client.post(self.path(job, "autoscaling/simulate/"), {}, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (409, "no-usage")

    def test_other_tenants_see_nothing(self, submit) -> None:
        job = submit(VERTICAL)
        eve = world.bearer(world.a_user("eve", tenant=rows.a_tenant("other")))
        for verb in ("autoscaling/", "autoscaling/accept/", "autoscaling/simulate/"):
            method = eve.get if verb == "autoscaling/" else eve.post
            assert method(self.path(job, verb)).status_code == 404


class TestPage:
    def test_the_page_of_the_job_shows_and_sets_the_recommendation(self, submit, tenant) -> None:
        job = submit({"vertical": {"history_s": 3600}})
        used(job)
        turn(job)
        client = Client()
        client.force_login(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
        url = f"/jobs/{job.cell.name}/ubar/{job.name}/"
        shown = client.get(url).content.decode()
        assert "Recommended limits of a task:" in shown
        assert "Saved per 30 days" in shown
        revision = revision_of(Job.objects.get(pk=job.pk))
        wanted = recommendation_of(Job.objects.select_related("cell").get(pk=job.pk)).wanted
        answer = client.post(f"{url}accept/", {"uid": job.uid, "revision": revision})
        assert answer.status_code == 302
        assert values(job) == wanted
        assert "Nothing else than the present values" in client.get(url).content.decode()

    def test_the_page_for_editing_keeps_what_the_autoscaler_sets_meanwhile(self, submit, tenant) -> None:
        job = submit(HORIZONTAL)
        client = Client()
        client.force_login(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
        url = f"/jobs/{job.cell.name}/ubar/{job.name}/update/"
        loaded(job, 900)
        assert turn(job) == 1

        def edit(**changes: Any) -> int:
            text = yaml.safe_dump(a_file(HORIZONTAL, **changes))
            form = {"uid": job.uid, "version": "1", "text": text, "do": "submit"}
            return client.post(url, form).status_code

        assert edit(labels={"a": "b"}) == 302
        assert updates.spec_of(again(job)).labels == {"a": "b"}
        assert values(job)[0] == 6
        assert edit(labels={"a": "c"}) == 409, "a user has changed it meanwhile"

    def test_the_page_of_another_job_has_no_panel(self, cell, ann, tenant) -> None:
        job = world.submit(ann, cell, world.a_file())
        client = Client()
        client.force_login(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
        shown = client.get(f"/jobs/{job.cell.name}/ubar/{job.name}/").content.decode()
        assert 'id="autoscaling"' not in shown


class TestCommands:
    @pytest.fixture
    def cli(self, shared_portal, tenant, tmp_path) -> cli_world.Cli:
        return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)

    def test_only_times_that_come_are_shown(self, submit, cli) -> None:
        job = submit(HORIZONTAL)
        past, soon = (timezone.now() + dt.timedelta(hours=hours) for hours in (-1, 1))
        held = {"version": 1, "tasks_held_until": past, "limits_held_until": soon}
        tasks, limits = TASKS.values("a", "No quota.", past, past), LIMITS.values("b", "No machine.", past, soon)
        JobAutoscaling.objects.filter(job=job).update(**held, **tasks, **limits)
        shown = cli.out("autoscale", "show", "web")
        assert "the number of tasks stays until" not in shown
        assert "the limits stay until" in shown
        assert "number of tasks: No quota; the next attempt is in the next turn" in shown
        assert "limits: No machine; the next attempt is at 2" in shown

    def test_a_recommendation_is_simulated_shown_and_accepted(self, submit, cli) -> None:
        job = submit({"vertical": {"history_s": 3600}, "horizontal": {"mode": "recommend", "max": 6, "cpu": 0.5}})
        used(job)
        simulated = cli.out("autoscale", "simulate", "web")
        assert "on 0 of 3 task-days" in simulated or "on 0 of 6 task-days" in simulated
        loaded(job, 900)
        turn(job)
        shown = cli.out("autoscale", "show", "web")
        assert "limits recommend, number of tasks recommend" in shown
        assert "recommended:  6 tasks" in shown
        assert "5.4 tasks are needed" in shown
        assert "Dry run" in cli.out("autoscale", "accept", "web", "--dry-run")
        assert "3 tasks: 3-5" in cli.out("autoscale", "accept", "web")
        assert values(job)[0] == 6
