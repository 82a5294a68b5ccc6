"""Tests of the pages about names: how a job, a task and a service are reached, and what is shown if no task serves."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from naming.table.names import ServiceName
from portal.live.page_changes import Behind, CellNews, Happened, news_of
from scheduling.journal import journal
from scheduling.models import Cell, Job, Task
from tests.integration import naming_rows, portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
JOB = "/jobs/cc/ubar/jfoo/"


@pytest.fixture
def world():
    return portal_world.make()


def shown(path: str, name: str = "viewer") -> str:
    """Return a page that user `name` opens, without the points inside names at which a browser may break the line."""
    answer = signed_in(name).get(path)
    assert answer.status_code == 200
    return answer.text.replace("<wbr>", "")


def test_a_job_page_says_how_its_job_is_reached(world) -> None:
    portal_world.report(world.job, 0)
    page = shown(JOB)
    for name in (
        '<code id="name-dns">jfoo.ubar.cc.borg.internal</code>',
        '<code id="name-bns">/bns/cc/ubar/jfoo</code>',
        '<code id="name-srv-1">_http._tcp.jfoo.ubar.cc.borg.internal</code>',
        "<code>0.jfoo.ubar.cc.borg.internal</code> to <code>2.jfoo.ubar.cc.borg.internal</code>",
        "borgctl resolve /bns/cc/ubar/jfoo --watch",
        "Clients may reuse a DNS answer for 5 seconds",
        "DNS stops returning a task 6 s before the task gets SIGTERM",
        "The only placed task is serving",
    ):
        assert name in page, name
    assert page.count('data-copy="name-dns"') == 1


@pytest.mark.parametrize(
    "given, dig",
    [
        ({"BORG_DNS_HOST": "127.0.0.1", "BORG_DNS_PORT": 5353}, ">dig @127.0.0.1 -p 5353 +short "),
        ({"BORG_DNS_HOST": "192.0.2.1", "BORG_DNS_PORT": 53}, ">dig @192.0.2.1 +short "),
        ({"BORG_DNS_RESOLVERS": ["192.0.2.7", "192.0.2.8@5353"]}, ">dig @192.0.2.7 +short "),
        ({"BORG_DNS_HOST": "0.0.0.0", "BORG_DNS_PORT": 53}, ">dig +short "),
        ({"BORG_DNS_HOST": "localhost"}, ">dig +short "),
        ({"BORG_DNS_RESOLVERS": ["no address"]}, ">dig +short "),
    ],
)
def test_the_command_asks_the_resolver_where_it_is(world, given, dig) -> None:
    with override_settings(**given, BORG_DNS_TTL=1):
        page = shown(JOB)
    assert f"{dig}_http._tcp.jfoo.ubar.cc.borg.internal SRV" in page
    assert "Clients may reuse a DNS answer for 1 second.<" in page


def test_a_job_none_of_whose_tasks_serves_says_that_its_name_fails_open(world) -> None:
    portal_world.place(world.job, 1, world.machine)
    assert "No task is serving, so DNS returns all 2 placed tasks." in shown(JOB)
    portal_world.report(world.job, 1)
    assert "1 of 2 placed tasks are serving" in shown(JOB)
    assert "No task is serving" not in shown(JOB)


def test_a_job_without_a_placed_task_and_one_that_has_ended_say_so(world) -> None:
    Job.objects.update(tasks_running=0)
    assert "No task is placed, so the DNS name exists but has no address." in shown(JOB)
    Job.objects.update(state="dead")
    page = shown(JOB)
    assert "its names no longer exist" in page
    assert "name-dns" not in page


def test_a_job_without_ports_explains_how_to_get_srv_names(world) -> None:
    Job.objects.update(port_names=[])
    page = shown(JOB)
    assert "Add ports to the job file" in page
    assert "+short jfoo.ubar.cc.borg.internal A<" in page


def test_a_task_page_says_how_the_task_is_reached(world) -> None:
    page = shown(JOB + "0/")
    for name in (
        "0.jfoo.ubar.cc.borg.internal",
        "/bns/cc/ubar/jfoo/0",
        "_http._tcp.0.jfoo.ubar.cc.borg.internal",
        "m1.machine.cc.borg.internal",
        ">127.0.0.1<",
        "port number 20000",
        "only if no other task is serving",
    ):
        assert name in page, name
    portal_world.report(world.job, 0)
    assert "The DNS name of the job returns this task." in shown(JOB + "0/")
    waiting = shown(JOB + "2/")
    assert "so the name of the task has no address yet" in waiting
    assert "machine.cc" not in waiting
    Task.objects.filter(index=2).update(state="dead")
    assert "The task has ended" in shown(JOB + "2/")


def test_a_task_page_tells_how_busy_the_task_is(world) -> None:
    assert "the Borglet has not reported the load" in shown(JOB + "0/")
    naming_rows.use(world.job, 0, cpu_milli=25)
    assert "25 % of the CPU limit" in shown(JOB + "0/")
    assert "CPU limit" not in shown(JOB + "1/")


def test_strangers_learn_no_names(world) -> None:
    for path in (JOB, JOB + "0/"):
        answer = signed_in("stranger").get(path)
        assert answer.status_code == 404
        assert "borg.internal" not in answer.text


@pytest.fixture
def service(world):
    """Return rows with the service web, which has two jobs. Task 0 of job jfoo and two tasks of job canary are up.
    Task 1 of jfoo is not.
    """
    Job.objects.update(labels={"service": "web"})
    portal_world.report(world.job, 0)
    portal_world.place(world.job, 1, world.machine)
    canary = rows.a_job(world.cell, world.tenant, "canary", tasks=4)
    Job.objects.filter(pk=canary.pk).update(
        labels={"service": "web"}, port_names=["admin"], published={"ttl_s": 2, "weights": [[0, 1, 3], [3, 3, 0]]}
    )
    for index in (0, 3):
        portal_world.place(canary, index, world.machine)
        portal_world.report(canary, index)
    return world


def test_a_service_page_tells_its_jobs_and_their_shares_of_the_clients(service) -> None:
    page = shown("/services/cc/ubar/web/")
    for said in (
        '<code id="name-dns">web.service.ubar.cc.borg.internal</code>',
        '<code id="name-bns">/bns/cc/ubar/service/web</code>',
        "_admin._tcp.web.service.ubar.cc.borg.internal",
        "_http._tcp.web.service.ubar.cc.borg.internal",
        "2 seconds (the shortest TTL of the jobs of this service)",
        "3 of 4 placed tasks are serving",
    ):
        assert said in page, said
    assert shares(page) == [
        ("jfoo", "all 3 tasks", 1, 2, 1, 25),
        ("canary", "0–1", 3, 1, 1, 75),
        ("canary", "3", 0, 1, 1, 0),
        ("canary", "all other tasks", 1, 0, 0, 0),
    ]


def test_a_service_none_of_whose_tasks_serves_fails_open(service) -> None:
    for job, index in Task.objects.filter(up=True).values_list("job", "index"):
        portal_world.report(Job.objects.get(pk=job), index, phase="starting", up=False)
    page = shown("/services/cc/ubar/web/")
    assert "No task is serving, so DNS returns all 4 placed tasks." in page
    assert [row[-1] for row in shares(page)] == [40, 60, 0, 0]


def shares(page: str) -> list[tuple]:
    """Return (job, tasks, weight, placed, serving, percent) of each row of the table in the page."""
    found = re.findall(
        r'<tr><th scope="row"><a [^>]*>([^<]*)</a></th><td [^>]*>([^<]*)</td><td [^>]*>(\d+)</td><td [^>]*>(\d+)</td>'
        r'<td [^>]*>(\d+)</td>.*?<span class="num">([\d.]+) %',
        page,
        re.S,
    )
    return [(job, tasks, *map(float, numbers)) for job, tasks, *numbers in found]


def test_jobs_and_services_lead_to_each_other_and_both_are_listed(service) -> None:
    assert '<a href="/services/cc/ubar/web/">' in shown(JOB)
    assert "tasks 0 to 1: weight 3; task 3: weight 0; other tasks: weight 1" in shown("/jobs/cc/ubar/canary/")
    assert "The task gets clients only if no other task is serving" in shown("/jobs/cc/ubar/canary/3/")
    page = shown("/names/")
    assert page.count('href="/services/cc/ubar/web/"') == 3
    assert "<code>jfoo.ubar.cc.borg.internal</code>" in page
    assert "1 of 2 placed" in page
    assert "jfoo" not in shown("/names/", "stranger")
    assert "so there are no names" in shown("/names/", "stranger")


def test_labels_that_can_be_no_name_and_alloc_sets_make_no_service(world) -> None:
    Job.objects.update(labels={"service": "Not_a_name"})
    assert "/services/cc/" not in shown("/names/")
    assert "Services</h2>" not in shown("/names/")
    Job.objects.update(labels={"service": "web"}, kind="alloc-set")
    assert "/services/cc/" not in shown("/names/")


@pytest.mark.parametrize(
    "text, leads",
    [
        ("/bns/cc/ubar/jfoo", JOB),
        ("bns/cc/ubar/jfoo/1/", f"{JOB}1/"),
        ("1.JFOO.ubar.cc.borg.internal.", f"{JOB}1/"),
        ("_http._tcp.jfoo.ubar.cc.borg.internal", JOB),
        ("http://user@jfoo.ubar.cc.borg.internal:8080/x?y", JOB),
        ("1.jfoo.ubar.cc", f"{JOB}1/"),
        ("web.service.ubar.cc.borg.internal", "/services/cc/ubar/web/"),
        ("/bns/cc/ubar/service/web", "/services/cc/ubar/web/"),
        ("cc/ubar/jfoo", JOB),
        ("ubar/jfoo", JOB),
        ("ubar/jfoo/2", f"{JOB}2/"),
        ("jfoo/2", f"{JOB}2/"),
        ("m1.machine.cc.borg.internal", "/cells/cc/machines/m1/"),
    ],
)
def test_any_spelling_of_a_name_leads_to_its_page(world, text, leads) -> None:
    answer = signed_in("viewer").get("/names/", {"q": text})
    assert (answer.status_code, answer.url) == (302, leads)


def test_a_service_is_found_without_its_cell(service) -> None:
    client = signed_in("viewer")
    assert client.get("/names/", {"q": "ubar/service/web"}).url == "/services/cc/ubar/web/"
    assert client.get("/names/", {"q": "ubar/service/none"}).status_code == 404
    assert signed_in("stranger").get("/names/", {"q": "ubar/service/web"}).status_code == 404
    rows.a_job(Cell.objects.create(name="dd"), service.tenant)
    Job.objects.filter(cell__name="dd").update(labels={"service": "web"})
    page = client.get("/names/", {"q": "ubar/service/web"}).text
    for cell in ("cc", "dd"):
        assert f'href="/services/{cell}/ubar/web/"' in page


@pytest.mark.parametrize(
    "text, status, cure",
    [
        ("jfoo.ubar.cc.example.org", 422, "is not below the zone &#x27;borg.internal&#x27;; write"),
        ("/bns/cc/ubar", 422, "write /bns/&lt;cell&gt;/&lt;tenant&gt;/&lt;job&gt;"),
        ("cc/ubar/j_foo", 422, "use hyphens, as in &#x27;j-foo&#x27;"),
        ("a" * 64, 422, "give at most 63, as in a DNS label"),
        ("ubar/none", 404, "no job &#x27;ubar/none&#x27;"),
        ("none/3", 404, "no job &#x27;none&#x27;"),
        ("x/../y", 422, "is not a DNS label"),
        ("jf", 200, "jfoo.ubar.cc.borg.internal"),
        ("nothing", 200, "No job matches this name and these filters."),
    ],
)
def test_a_wrong_spelling_is_explained_with_its_cure(world, text, status, cure) -> None:
    answer = signed_in("viewer").get("/names/", {"q": text})
    assert answer.status_code == status
    assert cure in answer.text.replace("<wbr>", "")


def test_a_name_that_several_cells_have_is_listed_with_all_of_them(world) -> None:
    other = Cell.objects.create(name="dd")
    rows.a_job(other, world.tenant)
    page = shown("/names/?q=ubar/jfoo")
    assert "jfoo.ubar.cc.borg.internal" in page
    assert "jfoo.ubar.dd.borg.internal" in page
    assert "jfoo.ubar.cc.borg.internal" not in shown("/names/?cell=dd")


def test_services_that_are_not_there_or_not_visible_are_not_found(service) -> None:
    for path, name in (("/services/cc/ubar/none/", "viewer"), ("/services/cc/ubar/web/", "stranger")):
        answer = signed_in(name).get(path)
        assert answer.status_code == 404
        assert "borg.internal" not in answer.text
    assert signed_in("viewer").get("/services/xx/ubar/web/").status_code == 404


@pytest.mark.parametrize("path", ["/names/", "/services/cc/ubar/web/", JOB])
def test_pages_of_names_ask_as_often_whatever_they_show(service, path) -> None:
    client = signed_in("viewer")

    def asked() -> int:
        client.get(path)
        with CaptureQueriesContext(connection) as queries:
            assert client.get(path).status_code == 200
        return len(queries)

    few = asked()
    for number in range(4):
        job = rows.a_job(service.cell, service.tenant, f"more-{number}")
        Job.objects.filter(pk=job.pk).update(
            labels={"service": f"web{number % 2 or ''}"}, published={"weights": [[0, 0, 7], [2, 2, 9]]}
        )
        portal_world.place(job, 0, service.machine)
    assert asked() == few
    assert few <= 25


def test_watchers_of_a_service_receive_changes_of_its_answers(service) -> None:
    topic = Behind(service.cell.id, ServiceName("cc", "ubar", "web"))
    before = journal.newest(service.cell.id)
    portal_world.report(service.job, 1)
    changes = topic.changes(news_of(service.cell.id, after=before, until=before + 1))
    assert not changes.resync
    assert [row[-1] for row in shares(changes.parts["service-answers"])] == [40, 60, 0, 0]
    before = journal.newest(service.cell.id)
    other = rows.a_job(service.cell, service.tenant, "other", tasks=1)
    until = journal.newest(service.cell.id)
    assert topic.changes(news_of(service.cell.id, after=before, until=until)) is None
    portal_world.place(other, 0, service.machine)
    assert topic.changes(news_of(service.cell.id, after=until, until=until + 1)) is None
    Job.objects.filter(pk=other.pk).update(labels={"service": "web"})
    assert topic.changes(news_of(service.cell.id, after=before, until=until)).resync, "it came to the service"
    Job.objects.filter(pk=other.pk).update(state="dead")
    ended = [Happened("job.ended", other.pk, None, None)]
    assert topic.changes(CellNews(until, ended)).resync, "it left the service"
    Job.objects.filter(pk=other.pk).update(labels={})
    assert topic.changes(CellNews(until, ended)) is None
    assert topic.changes(CellNews(until, [Happened("job.changed", other.pk, None, None)])).resync
