"""Names in Sigma: how a job, a task and a service are reached, and what the pages say when nobody serves."""

from __future__ import annotations

import pytest
from django.test import override_settings

from scheduling.models import Job, Task
from tests.integration import portal_world
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
JOB = "/jobs/cc/ubar/jfoo/"


@pytest.fixture
def world():
    return portal_world.make()


def shown(path: str, name: str = "viewer") -> str:
    """The page as people read it: names may break after their dots."""
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
        "5 seconds: so long clients may go on with an answer",
        "1 of 1 placed task serves",
    ):
        assert name in page, name
    assert page.count('data-copy="name-dns"') == 1


@pytest.mark.parametrize(
    "host, port, dig",
    [
        ("127.0.0.1", 5353, ">dig @127.0.0.1 -p 5353 +short "),
        ("192.0.2.1", 53, ">dig @192.0.2.1 +short "),
        ("0.0.0.0", 53, ">dig +short "),
    ],
)
def test_the_command_asks_the_resolver_where_it_is(world, host, port, dig) -> None:
    with override_settings(BORG_DNS_HOST=host, BORG_DNS_PORT=port, BORG_DNS_TTL=1):
        page = shown(JOB)
    assert f"{dig}_http._tcp.jfoo.ubar.cc.borg.internal SRV" in page
    assert "1 second: so long" in page


def test_a_job_none_of_whose_tasks_serves_says_that_its_name_fails_open(world) -> None:
    portal_world.place(world.job, 1, world.machine)
    assert "No task serves, so the name answers with all 2 placed tasks." in shown(JOB)
    portal_world.report(world.job, 1)
    assert "1 of 2 placed tasks serve" in shown(JOB)
    assert "No task serves" not in shown(JOB)


def test_a_job_without_a_placed_task_and_one_that_has_ended_say_so(world) -> None:
    Job.objects.update(tasks_running=0)
    assert "No task is placed, so the names exist and answer with no address." in shown(JOB)
    Job.objects.update(state="dead")
    page = shown(JOB)
    assert "its names are gone" in page
    assert "name-dns" not in page


def test_a_job_without_ports_is_told_how_to_get_srv_names(world) -> None:
    Job.objects.update(port_names=[])
    page = shown(JOB)
    assert "Name its ports in the job file" in page
    assert "+short jfoo.ubar.cc.borg.internal A<" in page


def test_a_task_page_says_how_the_task_is_reached(world) -> None:
    page = shown(JOB + "0/")
    for name in (
        "0.jfoo.ubar.cc.borg.internal", "/bns/cc/ubar/jfoo/0", "_http._tcp.0.jfoo.ubar.cc.borg.internal",
        "m1.machine.cc.borg.internal", ">127.0.0.1<", "port 20000", "unless no other task serves",
    ):  # fmt: skip
        assert name in page, name
    portal_world.report(world.job, 0)
    assert "Its job's name answers with it" in shown(JOB + "0/")
    waiting = shown(JOB + "2/")
    assert "its name exists and holds no address" in waiting
    assert "machine.cc" not in waiting
    Task.objects.filter(index=2).update(state="dead")
    assert "The task has ended" in shown(JOB + "2/")


def test_strangers_learn_no_names(world) -> None:
    for path in (JOB, JOB + "0/"):
        answer = signed_in("stranger").get(path)
        assert answer.status_code == 404
        assert "borg.internal" not in answer.text
