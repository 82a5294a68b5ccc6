"""Tests of the weights of services: verbs, gated switches by the master, restarts of masters, REST and pages.

The tests share one cell, and each test rolls back its own changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.plugin import DjangoDbBlocker

from naming.following import names_from_database as stored
from naming.table.names import ServiceName
from naming.table.table import NameTable
from portal.live import page_changes
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Role
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import plans
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.journal import journal
from scheduling.models import Event, Job, ServiceWeighting, StoppedJob, Task
from scheduling.policy import brake_rules
from scheduling.services import selectors, starts, stops, switch_turn, weights
from scheduling.services.switch_turn import switches_turn
from scheduling.services.weight_checks import weight_problems
from scheduling.services.weights import SwitchOptions, Traffic, service_switch, service_weigh
from scheduling.tasks import reported_states, transitions
from scheduling.tasks.reported_states import Observation
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
API = "/api/v1/cells/cc/services/ubar/shop/"
FEED = "/api/v1/feeds/traefik/?cell=cc&service=shop"
LONG_S = 3_600


class World:
    """The rows that the tests share: a service with the tracks `blue` and `green`, of which `green` is not up yet."""

    def __init__(self) -> None:
        self.cell = rows.a_cell()
        self.tenant = rows.a_tenant("ubar")
        rows.grant(self.tenant, self.cell, "production")
        self.machine = rows.a_machine(self.cell)
        self.ann = world.principal("ann", tenant=self.tenant)
        self.viewer = world.principal("eve", tenant=self.tenant, role=Role.VIEWER)
        self.bob = world.principal("bob", tenant=rows.a_tenant("other"))
        self.api = world.bearer(world.a_user("ann"))
        self.page = Client()
        self.page.force_login(world.a_user("ann"))
        self.blue = self.submit("shop-blue", "blue")
        world.bring_up(self.blue, self.machine)
        self.green = self.submit("shop-green", "green", tasks=2)

    def submit(self, name: str, track: str, **changes: Any) -> Job:
        return world.submit(self.ann, self.cell, world.a_file(name, labels=labels(track), **changes))

    def place(self) -> dict[str, Any]:
        return {"principal": self.ann, "cell": self.cell, "tenant": "ubar", "name": "shop"}

    def weigh(self, **weights: int) -> Traffic:
        return service_weigh(**self.place(), weights=weights)

    def switch(self, to: str = "green", *, confirm: int | None = None, **options: Any) -> Traffic:
        options.setdefault("every_s", LONG_S)
        return service_switch(**self.place(), to=to, options=SwitchOptions(**options), confirm=confirm)

    def turn(self, *, later: bool = False) -> dict[str, int]:
        """Let the master look at the switches, and return the weights. `later`: the time of the next step has come."""
        row = ServiceWeighting.objects.get()
        if later:
            row.switch["due"] -= LONG_S + 1
            row.save()
        switches_turn(self.cell.pk)
        return self.weights()

    def weights(self) -> dict[str, int]:
        found: dict[str, int] = ServiceWeighting.objects.get().weights
        return found

    def state(self) -> tuple[str, str]:
        row = ServiceWeighting.objects.get()
        return row.switch["state"], row.switch["reason"]

    def fail(self, job: Job) -> None:
        """Let a task of the job fail its health checks now."""
        task = Task.objects.filter(job=job, state="running").order_by("index")[0]
        seen = Observation(task.pk, task.incarnation, "up", "unhealthy", up=False)
        with journal.write(self.cell.pk, self.ann) as entry:
            reported_states.tasks_observe(entry, [seen])


def labels(track: str) -> dict[str, str]:
    return {"service": "shop", "track": track}


def changes() -> list[str]:
    found = Event.objects.filter(kind="service.weighed").order_by("revision")
    return [event.data["change"] for event in found]


@pytest.fixture(scope="module")
def kept(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    with django_db_blocker.unblock(), transaction.atomic():
        yield World()
        transaction.set_rollback(True)


@pytest.fixture
def shop(kept: World) -> World:
    cache.clear()
    return copy.copy(kept)


@pytest.fixture
def ready(shop: World) -> World:
    """Return the world with all clients at `blue`, and `green` up."""
    shop.weigh(blue=100)
    world.bring_up(shop.green, shop.machine)
    return shop


def test_weights_are_set_and_removed(shop) -> None:
    found = shop.weigh(blue=100)
    assert {one.name: (one.weight, one.share) for one in found.tracks} == {"blue": (100, 100.0), "green": (0, 0.0)}
    assert found.notes == ("Track green gets no clients, because the service has weights and this track has none.",)
    assert shop.weigh(**{"shop-blue": 90, "shop-green": 10}).weights == {"blue": 90, "green": 10}, "jobs name tracks"
    shop.weigh(blue=90, green=10)
    assert changes() == ["set", "set"], "the third call changes nothing"
    assert shop.weigh().tracks[0].weight is None
    assert changes()[-1] == "cleared"
    assert not weight_problems(shop.cell.pk)


@pytest.mark.parametrize(
    ("given", "field", "cure"),
    [
        ({"blue": 1, "red": 1}, "weights.red", "its tracks are blue, green"),
        ({"blue": -1}, "weights.blue", "from 0 to 1000"),
        ({"blue": 1_001}, "weights.blue", "from 0 to 1000"),
        ({"blue": 0, "green": 0}, "weights", "give one a weight above 0"),
        ({"blue": 1, "shop-blue": 2}, "weights.shop-blue", "name each track once"),
        ({"blue": 1, "log": 2}, "weights.log", "has no track or job 'log'"),
        ({f"t{number}": 1 for number in range(51)}, "weights", "at most 50"),
    ],
)
def test_wrong_weights_are_rejected_with_the_field_and_the_cure(shop, given, field, cure) -> None:
    world.submit(shop.ann, shop.cell, world.a_file("log"))
    events = Event.objects.count()
    with pytest.raises(Rejected, match=cure) as caught:
        shop.weigh(**given)
    assert list(caught.value.fields) == [field]
    assert (Event.objects.count(), ServiceWeighting.objects.count()) == (events, 0)


def test_a_track_without_live_tasks_gets_no_weight_and_no_switch(shop) -> None:
    shop.weigh(blue=1)
    stops.service_stop(**shop.place(), jobs=["shop-green"])
    with pytest.raises(Rejected, match="has no live task") as caught:
        shop.weigh(blue=1, green=1)
    assert list(caught.value.fields) == ["weights.green"]
    with pytest.raises(Rejected, match="no track or job 'green'; its tracks are blue") as caught:
        shop.switch()
    assert list(caught.value.fields) == ["to"]
    assert shop.weigh(blue=1, green=0).weights == {"blue": 1, "green": 0}


@pytest.mark.parametrize("options", [{"step": 0}, {"step": 101}, {"every_s": 0}, {"enough": 0}, {"within_s": 100_000}])
def test_wrong_options_of_a_switch_are_rejected(ready, options) -> None:
    with pytest.raises(Rejected, match="give a whole number from 1 to") as caught:
        ready.switch(**options)
    assert list(caught.value.fields) == list(options)
    assert changes() == ["set"]


def test_a_switch_needs_weights(shop) -> None:
    with pytest.raises(Conflict, match="`borgctl service weights shop blue=100`"):
        shop.switch()
    assert not ServiceWeighting.objects.exists()


def test_only_people_who_may_change_the_jobs_may_change_weights(shop) -> None:
    with pytest.raises(Forbidden):
        service_weigh(**shop.place() | {"principal": shop.viewer}, weights={"blue": 1})
    for act in (service_weigh, service_switch):
        what: dict[str, Any] = {"weights": {"blue": 1}} if act is service_weigh else {"to": "green"}
        with pytest.raises(NotFound):
            act(**shop.place() | {"principal": shop.bob}, **what)
    assert not ServiceWeighting.objects.exists()


def test_a_switch_waits_for_health_and_moves_step_by_step(shop) -> None:
    shop.weigh(blue=100, green=0)
    shop.switch(step=40)
    assert shop.turn() == {"blue": 100, "green": 0}, "no task of green is up"
    world.bring_up(shop.green, shop.machine)
    assert shop.turn() == {"blue": 60, "green": 40}
    assert shop.turn() == {"blue": 60, "green": 40}, "the next step is not due"
    switch_turn.switches_turn(shop.cell.pk)  # another master, or the same after a restart
    assert shop.turn(later=True) == {"blue": 20, "green": 80}
    assert shop.turn(later=True) == {"blue": 0, "green": 100}
    assert shop.turn() == {"blue": 0, "green": 100}
    assert shop.state() == ("switching", "")
    shop.turn(later=True)
    assert shop.state() == ("done", "")
    assert changes() == ["set", "begun", "moved", "moved", "moved", "done"]
    assert Job.objects.exclude(state="dead").count() == 2, "the old track keeps running"
    assert not weight_problems(shop.cell.pk)
    shop.switch("blue")
    assert shop.turn() == {"green": 0, "blue": 100}, "a switch back takes effect at once"


def test_a_failing_task_returns_the_weights_by_itself(ready) -> None:
    ready.switch(step=50)
    assert ready.turn() == {"blue": 50, "green": 50}
    ready.fail(ready.green)
    assert ready.turn() == {"blue": 100}
    assert ready.state() == ("returned", "a task of track green, shop-green/0, failed")
    assert changes() == ["set", "begun", "moved", "returned"]
    assert ready.turn() == {"blue": 100}
    assert not weight_problems(ready.cell.pk)
    ready.switch(step=50)
    assert ready.state()[0] == "switching"
    assert ready.turn() == {"blue": 100}, "the task fails since before the switch, so the switch waits for it"


def test_a_switch_returns_when_the_new_track_is_killed_or_is_late(ready) -> None:
    ready.switch(step=50)
    ready.turn()
    job_kill(principal=ready.ann, job=ready.green)
    assert ready.turn() == {"blue": 100}
    assert ready.state() == ("returned", "track green has no live task any more")
    ready.submit("shop-next", "green")
    ready.switch(within_s=60)
    assert ready.turn() == {"blue": 100}
    assert ready.state()[0] == "switching"
    assert ready.turn(later=True) == {"blue": 100}
    assert ready.state() == (
        "returned",
        "only 0 of 3 tasks of track green were up within 60 s, and the switch asks for 100 %",
    )


def test_weights_by_hand_end_a_switch(ready) -> None:
    ready.switch(step=50)
    ready.turn()
    assert not ready.weigh(blue=50, green=50).in_progress
    assert ready.state() == ("ended", "the weights were set by hand")
    ready.switch(step=50)
    assert ready.switch(step=50).weights == {"blue": 50, "green": 50}, "a repeated call changes nothing"
    with pytest.raises(Conflict, match="with another value of step, stop_old") as caught:
        ready.switch(step=100, stop_old=True)
    assert list(caught.value.fields) == ["step", "stop_old"]
    ready.turn()
    ready.switch("blue")
    assert ready.turn() == {"green": 0, "blue": 100}
    assert changes() == ["set", "begun", "moved", "set", "begun", "moved", "begun", "moved"]
    assert ServiceWeighting.objects.get().switch["before"] == {"blue": 50, "green": 50}, "as a person has set them"
    assert not weight_problems(ready.cell.pk)


def test_the_old_tracks_are_stopped_only_at_the_end_and_can_be_started_again(ready) -> None:
    worker = ready.submit("shop-worker", "worker")
    assert ready.switch(stop_old=True).stops == ("shop-blue",), "the worker has no clients"
    extra = ready.submit("shop-extra", "extra")
    ready.turn()
    assert ready.turn(later=True) == {"blue": 0, "green": 100}
    assert ready.state()[0] == "stopping"
    assert ready.switch(stop_old=True).in_progress, "a repeated call changes nothing"
    ready.turn()
    assert ready.state() == ("done", "")
    live = set(Job.objects.exclude(state="dead").values_list("name", flat=True))
    assert live == {"shop-green", worker.name, extra.name}
    assert StoppedJob.objects.get().job_id == ready.blue.pk
    assert changes()[-2:] == ["stopping", "done"]
    assert not weight_problems(ready.cell.pk)


def test_a_stop_and_a_start_of_the_service_during_a_switch_stop_nothing_more(ready) -> None:
    ready.switch(stop_old=True)
    ready.turn()
    ready.turn(later=True)
    assert ready.state()[0] == "stopping"
    stops.service_stop(**ready.place())
    starts.service_start(**ready.place())
    ready.turn()
    assert ready.state() == ("done", "")
    assert Job.objects.exclude(state="dead").count() == 2, "the jobs that were started again stay"
    world.bring_up(Job.objects.exclude(state="dead").get(name="shop-green"), ready.machine)
    ready.switch("green", step=50)
    stops.service_stop(**ready.place())
    before = ready.weights()
    assert (ready.turn(), ready.state()[0]) == (before, "returned")
    assert not weight_problems(ready.cell.pk)


def test_tasks_that_failed_for_good_do_not_open_the_gate(ready) -> None:
    ready.switch(step=50)
    with journal.write(ready.cell.pk, ready.ann) as entry:
        transitions.tasks_end(entry, [Ending(Task.objects.get(job=ready.green, index=1).pk, "failed")])
    assert ready.turn() == {"blue": 100}
    assert ready.state() == ("returned", "a task of track green, shop-green/1, failed")
    ready.switch(step=50)
    assert ready.turn() == {"blue": 100}, "it failed before the switch, so the switch waits for it"
    assert ready.state()[0] == "switching"


def test_more_tasks_than_were_confirmed_are_not_stopped(ready, monkeypatch) -> None:
    ready.switch(stop_old=True)
    ready.turn()
    ready.turn(later=True)
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 0)
    row = ServiceWeighting.objects.get()
    row.switch["confirmed"] = 1
    row.save()
    ready.turn()
    state, reason = ready.state()
    assert (state, "3 of the 5 running tasks" in reason) == ("done", True), reason
    assert Job.objects.exclude(state="dead").count() == 2


def test_a_row_that_disappears_or_cannot_be_read_does_not_stop_the_turn(ready, monkeypatch) -> None:
    ready.switch()
    broken = ServiceWeighting.objects.get()
    broken.pk, broken.service, broken.switch = None, "broken", {"of": "a later release"}
    broken.save()
    with monkeypatch.context() as patch:
        patch.setattr(switch_turn, "_act", lambda *_given: ServiceWeighting.objects.filter(service="shop").delete())
        switches_turn(ready.cell.pk)
    switch_turn._act(ready.cell.pk, [broken.pk, 999_999])
    switches_turn(ready.cell.pk)
    assert changes() == ["set", "begun"]


def test_the_number_of_switches_in_progress_is_limited(ready, monkeypatch) -> None:
    monkeypatch.setattr(weights, "MOST_SWITCHES", 0)
    with pytest.raises(Rejected, match="wait until some have ended"):
        ready.switch()
    assert changes() == ["set"]


def test_live_pages_and_watches_read_only_the_service_that_changed(ready) -> None:
    before = journal.newest(ready.cell.pk)
    ready.weigh(blue=3, green=1)
    news = page_changes.news_of(ready.cell.pk, after=before, until=journal.newest(ready.cell.pk))
    assert news.events is not None
    assert [one.service for one in news.events] == ["ubar/shop"]
    mine = page_changes.Behind(ready.cell.pk, ServiceName("cc", "ubar", "shop")).changes(news)
    assert mine is not None
    assert "75.0 %" in mine.parts["service-tracks"]
    assert page_changes.Behind(ready.cell.pk, ServiceName("cc", "other", "shop")).changes(news) is None


def test_a_stop_that_a_killed_master_has_begun_is_finished_by_the_next_one(ready, monkeypatch) -> None:
    ready.switch(stop_old=True)
    ready.turn()
    ready.turn(later=True)

    def killed(**_given: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(switch_turn, "service_stop", lambda **given: (stops.service_stop(**given), killed()))
        with pytest.raises(SystemExit):
            switches_turn(ready.cell.pk)
    assert ready.state()[0] == "stopping"
    ready.turn()
    assert (ready.state(), StoppedJob.objects.count()) == (("done", ""), 1)
    assert changes().count("done") == 1


def test_names_are_read_with_the_weights(ready) -> None:
    ready.weigh(blue=90, green=10)
    table, of = NameTable("cc"), ready.cell.pk
    for read in (stored._machines, stored._weights, stored._jobs, stored._placed):
        for event in read(of):
            table.apply(event, 1)
    service = table.service("ubar", "shop")
    assert service is not None
    weigh = service.weigh_in_answers()
    assert {task.job.name: weigh(task) for task in service.answering} == {"shop-blue": 180, "shop-green": 30}


def test_bns_and_feeds_have_the_weights_of_the_service(ready) -> None:
    ready.weigh(blue=90, green=10)
    answer = ready.api.get("/bns/cc/ubar/service/shop").json()
    assert answer["weights"] == {"blue": 90, "green": 10}
    assert {one["name"].split("/")[4]: one["weight"] for one in answer["endpoints"]} == {
        "shop-blue": 180,
        "shop-green": 30,
    }
    assert {one["weight"] for one in ready.api.get("/bns/cc/ubar/shop-blue").json()["endpoints"]} == {1}
    services = ready.api.get(FEED).json()["http"]["services"]
    servers = services["shop.service.ubar.cc"]["loadBalancer"]["servers"]
    assert sorted(one["weight"] for one in servers) == [30, 30, 180, 180, 180]
    ready.weigh(green=1)
    servers = ready.api.get(FEED).json()["http"]["services"]["shop.service.ubar.cc"]["loadBalancer"]["servers"]
    assert len(servers) == 2


def test_rest_sets_weights_and_switches(ready) -> None:
    def put(body: dict[str, Any], query: str = "") -> Any:
        return ready.api.put(f"{API}weights/{query}", body, content_type="application/json")

    assert put({"weights": {"blue": 1}}, "?dry_run=1").json()["weights"] == {"blue": 1}
    assert ready.weights() == {"blue": 100}
    rejected = put({"weights": {"blue": "x"}})
    assert (rejected.status_code, list(rejected.json()["fields"])) == (422, ["weights"])
    assert put({"weights": {"blue": 3, "green": 1}}).json()["tracks"][1] == {
        "name": "green",
        "jobs": ["shop-green"],
        "tasks_wanted": 2,
        "tasks_up": 2,
        "weight": 1,
        "share": 25.0,
    }
    begun = ready.api.post(f"{API}switch/", {"to": "shop-green", "step": 50}, content_type="application/json").json()
    assert begun["in_progress"]
    assert (begun["switch"]["to"], begun["switch"]["before"]) == ("green", {"blue": 3, "green": 1})
    ready.turn()
    shown = ready.api.get(API).json()["traffic"]
    assert shown["weights"] == {"blue": 25, "green": 75}
    assert shown == ready.api.get(f"{API}weights/").json()
    bad = ready.api.post(f"{API}switch/", {"to": "red"}, content_type="application/json")
    assert (bad.status_code, list(bad.json()["fields"])) == (422, ["to"])


def test_the_page_shows_tracks_and_changes_them(ready) -> None:
    path = "/services/cc/ubar/shop/"
    shown = ready.page.get(path).text
    assert "Track green gets no clients" in shown
    assert 'value="100.0"' in shown
    assert ready.page.post(f"{path}weights/", {"weight-blue": "70", "weight-green": "30"}).status_code == 302
    assert ready.weights() == {"blue": 70, "green": 30}
    assert ready.page.post(f"{path}weights/", {"weight-blue": "x"}).status_code == 422
    assert ready.page.post(f"{path}switch/", {"to": "green", "step": "y", "every_s": "60"}).status_code == 422
    assert ready.page.post(f"{path}switch/", {"to": "green", "step": "20", "every_s": "60"}).status_code == 302
    assert "20 % per step" in ready.page.get(path).text
    ready.turn()
    ready.fail(ready.green)
    ready.turn()
    assert "The switch to track green by ann failed" in ready.page.get(path).text
    assert ready.page.post(f"{path}weights/", {"weight-blue": ""}).status_code == 302
    assert ready.weights() == {}
    stranger = Client()
    stranger.force_login(world.a_user("bob"))
    assert stranger.post(f"{path}weights/", {"weight-blue": "1"}).status_code == 404
    assert stranger.post(f"{path}switch/", {"to": "blue", "step": "1", "every_s": "1"}).status_code == 404


def test_a_plan_says_which_share_of_the_clients_a_job_gets(ready) -> None:
    def names(track: str) -> str:
        spec = world.read(ready.cell, world.a_file("shop-new", labels=labels(track)))
        return " ".join(plans.job_plan(principal=ready.ann, cell=ready.cell, job_spec=spec).names)

    assert "Track blue gets 100 % of the clients of service shop." in names("blue")
    assert "track red has none, so the tasks get no clients" in names("red")
    ready.weigh()
    assert "clients of" not in names("blue")


def test_forget_removes_the_weights_of_a_service_without_live_jobs(ready) -> None:
    assert stops.service_forget(**ready.place()) == 0
    assert ready.weights() == {"blue": 100}
    for job in (ready.blue, ready.green):
        job_kill(principal=ready.ann, job=job)
    stops.service_forget(**ready.place())
    assert not ServiceWeighting.objects.exists()
    with pytest.raises(NotFound):
        stops.service_forget(**ready.place())


def test_the_turn_needs_one_query_without_a_switch_and_few_with_many(ready) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            switches_turn(ready.cell.pk)
        return len(seen)

    assert queries() == 1
    ready.switch()
    ready.turn()
    one = queries()
    row = ServiceWeighting.objects.get()
    for number in range(5):
        row.pk, row.service = None, f"other{number}"
        row.switch = {**row.switch, "gated": False}
        row.save()
        world.submit(ready.ann, ready.cell, world.a_file(f"other{number}", labels={"service": f"other{number}"}))
        Job.objects.filter(name=f"other{number}").update(labels={"service": f"other{number}", "track": "green"})
    assert queries() == one == 3


def test_validate_finds_weights_that_no_event_has_set(ready) -> None:
    ServiceWeighting.objects.update(weights={"green": 1})
    assert 'service ubar/shop has the weights {"green": 1}' in "".join(weight_problems(ready.cell.pk))
    assert selectors.service_named(**ready.place()).name == "shop"
