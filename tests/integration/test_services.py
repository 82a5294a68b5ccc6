"""Tests of services: what a stop keeps and a start brings back, partial failures, limits, REST and pages.

The tests share one cell, and each test rolls back its own changes.
"""

from __future__ import annotations

import copy
import datetime as dt
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from portal.cli import output
from portal.cli.services import ServiceReference, _act
from quota.models import Quota
from quota.vocabulary.errors import Conflict, NotFound, Rejected
from quota.vocabulary.permissions import Role
from scheduling.access import selectors as access
from scheduling.autoscaling.rows import rows_repair
from scheduling.history.archive import ended_jobs
from scheduling.jobs import updates
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.journal import journal
from scheduling.models import Departure, Event, Job, JobAutoscaling, JobSpec, Machine, StoppedJob, Task, Update
from scheduling.packages.jobs_using_packages import in_use
from scheduling.policy import brake_rules
from scheduling.services import restarts, selectors, service_plans, starts, stopped_rows, stops
from scheduling.services.outcomes import Change, ServiceChange, ServiceState
from tests.integration import cron_rows, rows, world

pytestmark = pytest.mark.django_db
API = "/api/v1/cells/cc/services/"
VERBS = {
    "stop": stops.service_stop,
    "start": starts.service_start,
    "restart": restarts.service_restart,
    "forget": stops.service_forget,
}
SHOP = {"app": "shop", "service": "shop"}


class World:
    """The rows that the tests share. `ann` owns the tenant `ubar`, and `bob` owns another tenant."""

    def __init__(self) -> None:
        self.cell = rows.a_cell()
        self.tenant = rows.a_tenant("ubar")
        self.quota = rows.grant(self.tenant, self.cell, "production")
        self.machine = rows.a_machine(self.cell)
        self.ann = world.principal("ann", tenant=self.tenant)
        self.api = world.bearer(world.a_user("ann"))
        self.sre = world.bearer(world.a_user("root", sre=True))
        self.page = Client()
        self.page.force_login(world.a_user("ann"))
        other = rows.a_tenant("other")
        self.bob = world.principal("bob", tenant=other)
        self.viewer = world.principal("eve", tenant=self.tenant, role=Role.VIEWER)

    def submit(self, name: str, *, up: bool = True, **changes: Any) -> Job:
        changes.setdefault("labels", SHOP)
        job = world.submit(self.ann, self.cell, world.a_file(name, **changes))
        if up and job.kind == "job":
            world.bring_up(job, self.machine)
        return job

    def shop(self) -> selectors.Service:
        return selectors.service_named(self.ann, self.cell, "ubar", "shop")

    def act(self, verb: str, **given: Any) -> dict[str, str]:
        """Call a verb of the service, and return what it did with each job."""
        return {one.job: one.change.value for one in self.done(verb, **given).jobs}

    def done(self, verb: str, **given: Any) -> ServiceChange:
        service = {"principal": self.ann, "cell": self.cell, "tenant": "ubar", "name": "shop"}
        done: ServiceChange = VERBS[verb](**service | given)
        return done

    def live(self) -> dict[str, int]:
        """Return the number of tasks of each live job."""
        found = Job.objects.exclude(state="dead").order_by("name")
        return dict(found.values_list("name", "tasks_total"))


@pytest.fixture(scope="module")
def kept(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    with django_db_blocker.unblock(), transaction.atomic():
        yield World()
        transaction.set_rollback(True)


@pytest.fixture
def shop(kept: World) -> World:
    """Return the world with three jobs of one service: two tracks of web servers, and a worker."""
    cache.clear()
    found = copy.copy(kept)
    found.submit("web")
    found.submit("web-canary", tasks=1, labels=SHOP | {"track": "canary"})
    found.submit("orders", tasks=2)
    found.submit("log", labels={"app": "other"})
    return found


def update(shop: World, name: str, **changes: Any) -> None:
    job = Job.objects.get(name=name, state="running")
    spec = world.read(shop.cell, world.a_file(name, labels=SHOP, **changes))
    updates.job_update(principal=shop.ann, job=job, job_spec=spec)


def current_digest(name: str) -> str:
    job = Job.objects.exclude(state="dead").get(name=name)
    return updates.spec_of(job).digest()


def test_a_start_brings_back_the_versions_that_a_stop_has_ended(shop) -> None:
    update(shop, "web", tasks=4)
    before = {name: current_digest(name) for name in ("web", "web-canary", "orders")}
    assert shop.act("stop", reason="night") == dict.fromkeys(("orders", "web", "web-canary"), "stopped")
    assert shop.live() == {"log": 3}
    assert set(Job.objects.filter(state="dead").values_list("outcome", flat=True)) == {"killed"}
    stopped = shop.shop()
    assert stopped.state is ServiceState.STOPPED
    assert [(one.job.name, one.version, one.by) for one in stopped.stopped][0] == ("web", 2, "ann")
    assert shop.act("start") == dict.fromkeys(("orders", "web", "web-canary"), "started")
    assert shop.live() == {"log": 3, "orders": 2, "web": 4, "web-canary": 1}
    assert {name: current_digest(name) for name in before} == before
    assert not StoppedJob.objects.exists()
    told = Event.objects.filter(kind="service.set").order_by("revision")
    assert [(one.data["change"], one.data["jobs"], one.data["reason"]) for one in told] == [
        ("stopped", 3, "night"),
        ("started", 3, ""),
    ]


def test_stops_and_starts_are_idempotent(shop) -> None:
    shop.act("stop")
    events = Event.objects.count()
    assert set(shop.act("stop").values()) == {"unchanged"}
    assert (Event.objects.count(), StoppedJob.objects.count()) == (events, 3)
    shop.act("start")
    assert set(shop.act("start").values()) == {"unchanged"}
    assert Job.objects.exclude(state="dead").count() == 4


def test_a_dry_run_shows_jobs_and_quota_and_changes_nothing(shop) -> None:
    events = Event.objects.count()
    seen = shop.done("stop", dry_run=True)
    assert (len(seen.changed), seen.tasks) == (3, 6)
    assert "cpu: 0.9 cores used now, 0.3 cores afterwards" in seen.quota[0]
    assert (Event.objects.count(), StoppedJob.objects.count()) == (events, 0)
    shop.act("stop")
    events, seen = Event.objects.count(), shop.done("start", dry_run=True)
    assert (len(seen.changed), seen.tasks, len(seen.quota)) == (3, 6, 1)
    assert (Event.objects.count(), StoppedJob.objects.count()) == (events, 3)


def test_a_start_that_lacks_quota_starts_the_rest_when_it_is_repeated(shop) -> None:
    shop.act("stop")
    Quota.objects.filter(pk=shop.quota.pk).update(amounts=[700, *rows.LARGE[1:]])  # 300m for log, 300m for web, 100m
    done = shop.done("start")
    rejected = {one.job for one in done.problems}
    assert rejected == {"orders"}
    assert done.problems[0].problem.code == "quota-exceeded"
    assert set(StoppedJob.objects.values_list("job__name", flat=True)) == rejected
    assert shop.shop().state is ServiceState.PARTLY_STOPPED
    Quota.objects.filter(pk=shop.quota.pk).update(amounts=list(rows.LARGE))
    again = shop.act("start")
    assert {name for name, change in again.items() if change == "started"} == rejected
    assert not StoppedJob.objects.exists()


def test_canary_tasks_that_were_not_promoted_do_not_come_back(shop) -> None:
    update(shop, "web", update={"canary": 1}, task=world.with_task("web", env={"V": "2"})["task"])
    assert Update.objects.get(job__name="web", state="open").canary == 1
    shop.act("stop")
    shop.act("start")
    assert not updates.spec_of(Job.objects.exclude(state="dead").get(name="web")).base.env


def test_only_named_jobs_are_changed_and_unknown_names_are_rejected(shop) -> None:
    assert shop.act("stop", jobs=["web-canary"]) == {"web-canary": "stopped"}
    assert shop.shop().state is ServiceState.PARTLY_STOPPED
    with pytest.raises(Rejected, match="service shop has no job log; its jobs are orders, web, web-canary"):
        shop.act("stop", jobs=["log"])
    assert shop.act("start", jobs=["web-canary", "web"]) == {"web": "unchanged", "web-canary": "started"}


def test_a_later_job_of_the_same_name_replaces_the_stopped_one(shop) -> None:
    shop.act("stop")
    job = shop.submit("web", tasks=7)
    assert {one.job.name for one in shop.shop().stopped} == {"web-canary", "orders"}
    job_kill(principal=shop.ann, job=job)
    assert set(shop.act("start")) == {"web-canary", "orders"}, "a job that a person has killed does not come back"
    old = Job.objects.filter(name="web").earliest("id")
    Departure.objects.all().delete()  # the processes have ended
    assert old.pk in ended_jobs.next_jobs(shop.cell, now=timezone.now() + dt.timedelta(days=4_000)).jobs


def test_jobs_start_behind_the_jobs_and_alloc_sets_that_they_need(kept) -> None:
    kept.submit("alpha", labels={"app": "x"})  # the dependency is not a part of the service, and was reached
    kept.submit("shelf", kind="AllocSet", task={"limit": {"cpu": 1, "ram": "1Gi", "disk": "1Gi"}}, tasks=2)
    inner = world.with_task("inner", limit={"cpu": "100m", "ram": "64Mi", "disk": "64Mi"}, ports=[])["task"]
    kept.submit("inner", up=False, tasks=1, alloc_set="shelf", task=inner)
    kept.submit("zeta")
    late = kept.submit("beta", up=False, after={"zeta": "running", "alpha": "running"})
    Job.objects.filter(pk=late.pk).update(waiting=False)  # both have been reached
    assert set(kept.act("stop").values()) == {"stopped"}, "the alloc set ends after the job inside it"
    assert set(kept.act("start").values()) == {"started"}
    again = Job.objects.exclude(state="dead").get(name="beta")
    assert again.waiting
    assert updates.spec_of(again).after == {"zeta": "running"}
    assert Job.objects.exclude(state="dead").get(name="inner").alloc_set.name == "shelf"


def test_runs_of_cron_jobs_are_left_alone_and_labels_alone_mean_nothing(shop) -> None:
    cron_rows.apply(shop.ann, shop.cell, "nightly", tenant="ubar")
    shop.submit("nightly-20261128t0230z", labels=SHOP | {"cron": "nightly"})
    shop.submit("checkout", labels=SHOP | {"workflow": "checkout", "cron": "nightly"})
    assert shop.act("restart")["nightly-20261128t0230z"] == "unchanged"
    done = shop.act("stop")
    assert (done["nightly-20261128t0230z"], done["checkout"]) == ("unchanged", "stopped")
    assert shop.live() == {"log": 3, "nightly-20261128t0230z": 3}


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each stop of a job with more than two tasks be interrupted after the first two."""

    def interrupt(**_: Any) -> int:
        raise Conflict("boom", "the process has ended")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "CHUNK", 2)
        patch.setattr(stops, "job_kill", interrupt)
        yield


def test_an_interrupted_stop_of_a_large_job_keeps_the_version_without_canary(shop, monkeypatch) -> None:
    update(shop, "web", update={"canary": 1}, task=world.with_task("web", env={"V": "2"})["task"])
    with interrupted(monkeypatch):
        assert shop.act("stop", jobs=["web"]) == {"web": "refused"}
    assert not Update.objects.filter(state="open").exists(), "the first transaction has closed the update"
    assert shop.act("stop", jobs=["web"]) == {"web": "stopped"}
    assert StoppedJob.objects.get().version == 1


def test_an_interrupted_stop_does_not_bring_a_job_back_that_a_person_kills_later(shop, monkeypatch) -> None:
    shop.submit("feed")
    with interrupted(monkeypatch):
        assert shop.act("stop", jobs=["web", "feed"]) == {"web": "refused", "feed": "refused"}
    job_kill(principal=shop.ann, job=Job.objects.get(name="web"))
    assert shop.shop().stopped == ()
    forgotten = stops.service_forget(principal=shop.ann, cell=shop.cell, tenant="ubar", name="shop")
    assert (forgotten, StoppedJob.objects.count()) == (1, 0), "feed lives, and its stop is forgotten"
    monkeypatch.setattr(journal, "CHUNK", 2)
    assert shop.act("stop", jobs=["feed"]) == {"feed": "stopped"}
    submitted = shop.submit("web")
    assert shop.act("stop", jobs=["web"]) == {"web": "stopped"}
    job_kill(principal=shop.ann, job=submitted)
    assert {row.job.name for row in shop.shop().stopped} == {"feed", "web"}, "both had ended before this kill"


def test_packages_of_stopped_jobs_are_in_use(shop) -> None:
    JobSpec.objects.filter(job__name="web").update(packages={"sha256:1": {}})
    shop.act("stop")
    assert in_use(shop.cell.pk, {"sha256:1"}) == {(shop.tenant.pk, "sha256:1"): ["web"]}
    stops.service_forget(principal=shop.ann, cell=shop.cell, tenant="ubar", name="shop")
    assert in_use(shop.cell.pk, {"sha256:1"}) == {}


def test_old_labels_that_are_not_names_are_left_out(shop) -> None:
    for number, label in enumerate(("a/b", "", "x" * 200)):
        job = shop.submit(f"old-{number}", labels={"app": "old"}, up=False)
        Job.objects.filter(pk=job.pk).update(labels={"service": label})
        with pytest.raises(NotFound):
            shop.act("stop", name=label)
    assert [row.name for row in selectors.services_visible(shop.ann, shop.cell, most=10)] == ["shop"]
    assert shop.page.get("/services/").status_code == 200


def test_values_of_the_autoscaler_do_not_become_those_of_the_user(shop) -> None:
    scaled = world.a_file(
        "web", labels=SHOP, autoscale={"horizontal": {"mode": "auto", "min": 1, "max": 9, "cpu": 0.5}}
    )
    job = Job.objects.get(name="web")
    updates.job_update(principal=shop.ann, job=job, job_spec=world.read(shop.cell, scaled))
    JobAutoscaling.objects.update_or_create(job=job, defaults={"own_tasks": 2})
    shop.act("stop")
    rows_repair(shop.cell.pk)  # a master calls it every 15 minutes
    shop.act("start")
    assert JobAutoscaling.objects.get(job__state="pending", job__name="web").own_tasks == 2
    rows_repair(shop.cell.pk)
    assert JobAutoscaling.objects.count() == 1, "the row of the stopped job was needed only for the start"


def test_a_restart_replaces_running_tasks_and_is_not_begun_twice(shop) -> None:
    shop.submit("idle", up=False)
    done = shop.done("restart")
    assert {one.job: (one.change.value, one.tasks) for one in done.jobs} == {
        "idle": ("unchanged", 0),
        "orders": ("restarted", 2),
        "web": ("restarted", 3),
        "web-canary": ("restarted", 1),
    }
    again = shop.done("restart", jobs=["web"])
    assert (again.jobs[0].change, again.jobs[0].detail) == (Change.UNCHANGED, "its restart is in progress")


def test_a_job_that_cannot_be_changed_does_not_keep_the_others(shop) -> None:
    update(shop, "web", task=world.with_task("web", env={"V": "2"})["task"])
    done = shop.done("restart")
    assert [(one.job, one.problem.code) for one in done.problems] == [("web", "update-open")]
    assert len(done.changed) == 2


def test_stopping_many_tasks_must_be_confirmed(shop, monkeypatch) -> None:
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 10)
    shop.submit("wide", tasks=60)
    with pytest.raises(Conflict, match="stop service shop: 66 of the 69 running tasks"):
        shop.act("stop", confirm=65)
    assert not StoppedJob.objects.exists()
    assert set(shop.act("stop", confirm=66).values()) == {"stopped"}


def test_a_service_has_a_bounded_number_of_jobs(shop, monkeypatch) -> None:
    monkeypatch.setattr(selectors, "MOST_JOBS", 2)
    with pytest.raises(Rejected, match="has more than 2 jobs"):
        shop.act("stop")
    monkeypatch.undo()
    monkeypatch.setattr(stopped_rows, "MOST_STOPPED", 2)
    with pytest.raises(Rejected, match="has 0 stopped jobs in cell cc, and at most 2 are possible"):
        shop.act("stop")
    assert shop.live()["web"] == 3


def test_a_stopped_job_is_not_archived_and_goes_with_its_cell(shop) -> None:
    shop.act("stop", jobs=["web"])
    job_kill(principal=shop.ann, job=Job.objects.get(name="log"))
    Departure.objects.all().delete()  # the processes have ended
    late = timezone.now() + dt.timedelta(days=4_000)
    found = ended_jobs.next_jobs(shop.cell, now=late)
    assert found is not None
    assert list(Job.objects.filter(pk__in=found.jobs).values_list("name", flat=True)) == ["log"]
    assert stops.service_forget(principal=shop.ann, cell=shop.cell, tenant="ubar", name="shop") == 1
    assert len(ended_jobs.next_jobs(shop.cell, now=late).jobs) == 2
    shop.act("stop")
    stopped_rows.services_remove(shop.cell)
    assert not StoppedJob.objects.exists()


def test_other_tenants_and_viewers_cannot_use_a_service(shop) -> None:
    for verb in ("stop", "start", "restart", "forget"):
        with pytest.raises(NotFound):
            shop.act(verb, principal=shop.bob) if verb != "forget" else stops.service_forget(
                principal=shop.bob, cell=shop.cell, tenant="ubar", name="shop"
            )
        with pytest.raises(Rejected, match=r"viewer|may"):
            VERBS[verb](principal=shop.viewer, cell=shop.cell, tenant="ubar", name="shop")
    assert selectors.services_visible(shop.bob, shop.cell, most=10) == []
    assert len(selectors.service_named(shop.viewer, shop.cell, "ubar", "shop").jobs) == 3
    with pytest.raises(NotFound):
        shop.act("start", name="none")


def test_lists_have_counts_and_pages_and_no_query_per_job(shop) -> None:
    shop.submit("solo", labels={"service": "alone"}, tasks=3, max_running=2, up=False)
    shop.act("stop", jobs=["orders"])
    shop.api.get(API)  # the first request of a token also stores when it was used
    with CaptureQueriesContext(connection) as few:
        listed = shop.api.get(API, {"tenant": "ubar"}).json()["results"]
    assert [(one["name"], one["state"], one["jobs"], one["stopped"]) for one in listed] == [
        ("alone", "down", 1, 0),
        ("shop", "partly-stopped", 2, 1),
    ]
    assert [(one["tasks_up"], one["tasks_wanted"]) for one in listed] == [(0, 2), (4, 4)]
    first = shop.api.get(API, {"limit": 1}).json()
    assert [one["name"] for one in first["results"]] == ["alone"]
    second = shop.api.get(first["next"]).json()
    assert ([one["name"] for one in second["results"]], second["next"]) == (["shop"], None)
    with CaptureQueriesContext(connection) as one_service:
        shop.api.get(f"{API}ubar/shop/")
    for number in range(4):
        shop.submit(f"more-{number}", up=False)
        shop.submit(f"other-{number}", labels={"service": f"other-{number}"}, up=False)
    with CaptureQueriesContext(connection) as more:
        shop.api.get(API, {"tenant": "ubar"})
    assert len(more) == len(few)
    with CaptureQueriesContext(connection) as larger:
        assert len(shop.api.get(f"{API}ubar/shop/").json()["jobs"]) == 6
    assert len(larger) == len(one_service)


def test_rest_shows_what_each_job_did(shop) -> None:
    def post(verb: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        found = shop.api.post(
            f"{API}ubar/shop/{verb}/", body or {}, content_type="application/json", query_params=query
        )
        assert found.status_code == status, found.text
        return found.json()

    seen = shop.api.get(f"{API}ubar/shop/").json()
    assert (seen["state"], seen["tasks_up"], seen["tasks_wanted"]) == ("healthy", 6, 6)
    assert seen["requested"]["production"]["cpu"] == 600
    Task.objects.filter(job__name="web").update(up=False)
    Job.objects.filter(name="web").update(tasks_up=0)
    seen = shop.api.get(f"{API}ubar/shop/").json()
    assert [job["name"] for job in seen["jobs"]][0] == "web", "problems come first"
    rehearsed = post("stop", dry_run="1")
    assert (rehearsed["dry_run"], rehearsed["changed"], rehearsed["tasks"]) == (True, 3, 6)
    done = post("stop", {"jobs": ["web", "orders"], "reason": "x"})
    assert (done["dry_run"], done["changed"], done["refused"]) == (False, 2, 0)
    assert [one["name"] for one in shop.api.get(f"{API}ubar/shop/").json()["stopped"]] == ["web", "orders"]
    assert post("forget") == {"forgotten": 2}
    assert post("start")["changed"] == 0
    assert "jobs" in post("stop", {"jobs": ["none"]}, status=422)["fields"]
    assert post("stop", {"jobs": "web"}, status=422)["fields"]
    assert shop.api.get(API, {"cursor": "x"}).status_code == 422


def test_borgctl_changes_only_the_jobs_that_it_has_shown(shop, monkeypatch) -> None:
    def post(path: str, body: Any, **query: Any) -> Any:
        found = shop.api.post(path, body, content_type="application/json", query_params=query)
        assert found.status_code == 200, found.text
        return found.json()

    def confirmed(verb: str, new: str) -> None:
        """Call a verb. While its question waits for the answer, a job with the name `new` is submitted."""
        monkeypatch.setattr(output, "sure", lambda question: shop.submit(new))
        session: Any = SimpleNamespace(client=SimpleNamespace(post=post), json=False)
        _act(session, ServiceReference("cc", "ubar", "shop"), verb, {"jobs": []}, yes=False, dry_run=False)

    confirmed("restart", "web-new")
    restarted = Update.objects.filter(state="open").values_list("job__name", flat=True)
    assert set(restarted) == {"orders", "web", "web-canary"}
    confirmed("stop", "web-newer")
    assert shop.live() == {"log": 3, "web-newer": 3}


def test_a_plan_covers_all_jobs_and_sums_their_quota(shop) -> None:
    def plan(*files: Any) -> service_plans.ServicePlan:
        given = {"principal": shop.ann, "cell": shop.cell, "tenant": "ubar", "name": "shop"}
        return service_plans.service_plan(**given, files=list(files))

    files = [world.a_file("web", labels=SHOP, tasks=5), world.a_file("new", labels=SHOP, tasks=1)]
    found = plan(*files)
    assert [(one.name, one.action) for one in found.plans] == [("web", "update"), ("new", "submit")]
    assert found.unnamed == ("orders", "web-canary")
    assert len(found.quota) == 1
    assert "cpu: 0.9 cores used now, 1.2 cores afterwards" in found.quota[0].lower(), found.quota
    with pytest.raises(Rejected, match=r"files\.1\.labels\.service: the label is 'pay'; write service: shop"):
        plan(files[0], world.a_file("pay", labels={"service": "pay"}))
    with pytest.raises(Rejected) as caught:
        plan(files[0], world.a_file("pay", labels=SHOP, tasks=0))
    assert list(caught.value.fields) == ["files.1.tasks"]
    with pytest.raises(Rejected, match="send 1 to 50"):
        plan()


def test_pages_show_the_effect_before_a_stop_and_a_start(shop) -> None:
    path = "/services/cc/ubar/shop/"
    assert "shop" in shop.page.get("/services/").text
    shown = shop.page.get(path).text
    assert "6 of 6 tasks are running" in shown
    assert "track=canary" in shown
    seen = shop.page.get(f"{path}stop/").text
    assert "will stop" in seen
    assert 'name="confirm" value="6"' in seen
    assert shop.page.post(f"{path}stop/", {"confirm": "6"}).status_code == 302
    shown = shop.page.get(path).text
    assert "Stopped jobs" in shown
    assert "its DNS name does not exist now" in shown
    assert "will start" in shop.page.get(f"{path}start/").text
    Quota.objects.filter(pk=shop.quota.pk).update(amounts=[700, *rows.LARGE[1:]])
    partly = shop.page.post(f"{path}start/")
    assert "could not be changed" in partly.text
    Quota.objects.filter(pk=shop.quota.pk).update(amounts=list(rows.LARGE))
    assert shop.page.post(f"{path}start/").status_code == 302
    assert shop.page.post(f"{path}forget/").status_code == 302
    assert "will restart" not in shop.page.get(f"{path}restart/").text, "no task runs yet"
    stranger = Client()
    stranger.force_login(world.a_user("bob"))
    assert stranger.get(path).status_code == 404
    assert stranger.post(f"{path}stop/").status_code == 404


def form_of(shown: str) -> dict[str, str]:
    """Return the hidden fields `jobs` and `confirm` of the form of a page."""
    return dict(re.findall(r'name="(jobs|confirm)" value="([^"]*)"', shown))


def test_a_rejected_page_of_a_stop_can_be_confirmed_and_changes_only_shown_jobs(shop, monkeypatch) -> None:
    path = "/services/cc/ubar/shop/stop/"
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 10)
    shop.submit("wide", tasks=60)
    seen = form_of(shop.page.get(path).text)
    assert seen == {"jobs": "orders,web,web-canary,wide", "confirm": "66"}
    shop.submit("more", tasks=1)
    rejected = shop.page.post(path, seen | {"confirm": "0"})
    assert rejected.status_code == 409
    assert "66 of the 70 running tasks" in rejected.text
    again = form_of(rejected.text)
    assert again == {"jobs": "more,orders,web,web-canary,wide", "confirm": "67"}
    shop.submit("web-new")
    assert shop.page.post(path, again).status_code == 302
    assert shop.live() == {"log": 3, "web-new": 3}


def test_the_page_of_a_partly_rejected_stop_confirms_the_rest(shop, monkeypatch) -> None:
    path = "/services/cc/ubar/shop/stop/"
    with interrupted(monkeypatch):
        partly = shop.page.post(path, {"jobs": "web,web-canary", "confirm": "4"})
    assert form_of(partly.text) == {"jobs": "web", "confirm": "1"}, "one of its three tasks runs"
    assert shop.page.post(path, form_of(partly.text)).status_code == 302
    assert shop.live() == {"log": 3, "orders": 2}


def test_selectors_choose_machines_by_attributes_and_facts(shop) -> None:
    other = rows.a_machine(shop.cell, "m2", rack="r2")
    Machine.objects.filter(pk=other.pk).update(attributes={"flash": "true", "platform": "own"}, platform="x86")

    def found(selector: str) -> list[str]:
        return [one.hostname for one in access.machines_of(shop.cell, selector=selector)]

    assert found("flash=true,rack in (r1,r2)") == ["m2"]
    assert found("!flash") == found("flash!=true") == found("rack notin (r2)") == ["m1"]
    assert found("platform=own") == found("platform") == ["m2"], "an attribute comes before a fact, as in constraints"
    assert found("hostname in (m1,m2),flash,rack=r2") == ["m2"]
    drained = shop.sre.post(
        "/api/v1/cells/cc/machines:drain", {"selector": "flash", "reason": "x"}, content_type="application/json"
    )
    assert [one["machine"] for one in drained.json()] == ["m2"]
    assert shop.sre.get("/api/v1/cells/cc/machines/", {"selector": "("}).status_code == 422


def test_selectors_choose_tasks_by_the_labels_of_their_jobs(shop) -> None:
    def found(selector: str, **more: str) -> list[tuple[str, int]]:
        answer = shop.api.get("/api/v1/cells/cc/tasks/", {"selector": selector, **more})
        return [(one["job"], one["index"]) for one in answer.json()["results"]]

    assert found("track=canary") == [("web-canary", 0)]
    assert found("app in (shop,x),!track", state="running") == [
        ("web", 0),
        ("web", 1),
        ("web", 2),
        ("orders", 0),
        ("orders", 1),
    ]
    assert found("app!=shop") == [("log", 0), ("log", 1), ("log", 2)]
    assert found("app=shop", tenant="other") == []
