"""Messages about locks between a machine whose messages the test writes and a real link shard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from borglet.messages import (
    PROTOCOL,
    LockAnswer,
    LockCall,
    LocksRenewed,
    Poll,
    RenewLocks,
    RunSession,
    TaskKey,
    TaskRun,
)
from scheduling.link import lock_relay
from scheduling.locks import locks
from scheduling.locks.sessions import Space
from scheduling.models import LockSession, Machine
from tests.integration import link_world, lock_rows, world
from tests.integration.link_world import Link, Played, running_link, until
from tests.integration.lock_rows import user

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def link(cell) -> Iterator[Link]:
    with running_link() as one:
        yield one


@pytest.fixture
def machine(link, cell) -> Iterator[Played]:
    with link.machine(cell, newest=PROTOCOL) as one:
        yield one


@pytest.fixture
def job(ann, cell, machine):
    return world.submit(ann, cell, lock_rows.using("shop", name="jfoo", tasks=1))


@pytest.fixture
def key(job, machine) -> TaskKey:
    return link_world.place(job, Machine.objects.get(hostname="m1").id)


@pytest.fixture
def space(cell, job):
    return Space(cell.id, job.tenant_id)


def hear(machine: Played, wanted: Callable[[Any], bool]) -> Any:
    """Return the next message that is wanted. Polls get a report meanwhile."""
    while True:
        message = machine.receive()
        if wanted(message):
            return message
        if isinstance(message, Poll):
            machine.report(message)


def answer(machine: Played, number: int) -> tuple[int, Any, LockAnswer]:
    found = hear(machine, lambda message: isinstance(message, LockAnswer) and message.number == number)
    return found.status, json.loads(found.body), found


def acquire(machine: Played, number: int, run: TaskRun, name: str = "shop/leader", wait_s: float = 0.0) -> None:
    machine.say(LockCall(number, run, "POST", "/v1/acquire", json.dumps({"name": name, "wait_s": wait_s})))


def renewed(machine: Played, number: int, *ended: TaskRun) -> LocksRenewed:
    machine.say(RenewLocks(number, list(ended)))
    found = hear(machine, lambda message: isinstance(message, LocksRenewed) and message.number == number)
    assert isinstance(found, LocksRenewed)
    return found


def test_a_session_has_an_id_and_ends_with_its_run(machine, key, space) -> None:
    run = TaskRun(key, 1)
    assert renewed(machine, 1).runs == []
    acquire(machine, 2, run)
    status, body, found = answer(machine, 2)
    assert (status, body["holder"], found.holds, found.lease_s) == (200, "jfoo/0", True, 15.0)
    (session,) = renewed(machine, 3).runs
    assert (session.run, session.session) == (run, found.session)
    locks.evict(space, "shop/leader")
    acquire(machine, 4, run, "shop/other")
    assert answer(machine, 4)[2].session != found.session, "the Borglet can tell them apart"
    assert renewed(machine, 5, run).runs == []
    assert not LockSession.objects.exists()


def test_messages_of_an_older_connection_change_nothing(machine, link, key, space, monkeypatch) -> None:
    """A shard may read them late, when the machine is connected to another shard already."""
    monkeypatch.setattr(link.shard, "supersede", lambda machine_id, session: None)
    run = TaskRun(key, 1)
    acquire(machine, 1, run)
    assert answer(machine, 1)[0] == 200
    with running_link() as other, other.dial("m1", machine.secret) as socket:
        newer = Played(socket, "m1", machine.secret)
        newer.hello(newest=PROTOCOL)
        acquire(newer, 1, run, "shop/second")
        session = answer(newer, 1)[2].session
        machine.say(LockCall(2, run, "POST", "/v1/release", '{"name": "shop/leader"}'))
        assert answer(machine, 2)[0] == 403
        assert renewed(machine, 3, run).runs == []
        assert [one.session for one in renewed(newer, 2).runs] == [session]
        assert locks.lock_named(space, "shop/leader").holder == "jfoo/0"


def test_only_the_session_ends_that_a_running_task_has_lost(machine, key, space) -> None:
    run = TaskRun(key, 1)
    acquire(machine, 1, run)
    lost = answer(machine, 1)[2].session
    locks.evict(space, "shop/leader")
    acquire(machine, 2, run)
    session = answer(machine, 2)[2].session
    machine.say(RenewLocks(3, [run], [RunSession(run, lost), RunSession(run, "x")]))
    found = hear(machine, lambda message: isinstance(message, LocksRenewed))
    assert [one.session for one in found.runs] == [session]
    machine.say(RenewLocks(4, [run], [RunSession(run, session)]))
    assert hear(machine, lambda message: isinstance(message, LocksRenewed)).runs == []


def test_requests_of_a_run_that_lost_its_locks_are_answered_and_watches_go_on(machine, key, space) -> None:
    run = TaskRun(key, 1)
    locks.acquire(space, "shop/leader", user("ann"))
    acquire(machine, 1, run, wait_s=60.0)
    machine.say(LockCall(2, run, "GET", "/v1/locks/shop/leader?after=0&wait_s=60"))
    machine.say(RenewLocks(3, [run], [RunSession(run, "a" * 32)]))
    status, body, _ = answer(machine, 1)
    assert (status, body["code"]) == (409, "session-ended")
    locks.write(space, "shop/leader", "x", actor="ann")
    assert answer(machine, 2)[0] == 200


def test_a_session_that_another_transaction_uses_delays_no_renewal(machine, key, space) -> None:
    first, second = TaskRun(key, 1), TaskRun(key, 2)
    for number, run in enumerate((first, second)):
        acquire(machine, number, run, f"shop/{number}")
        assert answer(machine, number)[0] == 200
    before = dict(LockSession.objects.values_list("run", "expires_at"))
    with transaction.atomic():
        LockSession.objects.select_for_update().get(run=1)
        found = renewed(machine, 3, first)
    assert ([one.run for one in found.runs], [one.run for one in found.kept]) == ([second], [first])
    after = dict(LockSession.objects.values_list("run", "expires_at"))
    assert after[1] == before[1]
    assert after[2] > before[2]
    assert [one.run for one in renewed(machine, 4, first).runs] == [second], "now it has ended"


def test_a_release_with_a_token_releases_only_this_acquisition(machine, key, space) -> None:
    run = TaskRun(key, 1)
    acquire(machine, 1, run)
    token = answer(machine, 1)[1]["token"]
    for number, given, status in ((2, token - 1, 409), (3, token, 200)):
        body = json.dumps({"name": "shop/leader", "token": given})
        machine.say(LockCall(number, run, "POST", "/v1/release", body))
        assert answer(machine, number)[0] == status


def test_a_run_that_has_ended_acquires_no_lock_for_which_it_waited(machine, key, space, link) -> None:
    held, _ = locks.acquire(space, "shop/leader", user("ann"))
    old, new = TaskRun(key, 1), TaskRun(key, 2)
    relay = link.server.config.loaded_app.locks
    acquire(machine, 1, old, wait_s=60.0)
    until(lambda: relay.waits.waiting == 1, what="the run waits")
    acquire(machine, 2, new, wait_s=60.0)
    until(lambda: len(next(iter(relay._open.values()))) == 2, what="the next run waits behind it")
    renewed(machine, 3, old)
    locks.release(space, "shop/leader", user("ann", held.session))
    assert answer(machine, 2)[1]["token"] == held.token + 1, "nobody had the lock in between"
    assert LockSession.objects.get().run == 2
    until(lambda: relay.waits.waiting == 0 and not relay._open, what="nothing is left behind")
    assert not relay._waiting


def test_numbers_of_no_run_stop_no_renewals(machine, key) -> None:
    run = TaskRun(key, 1)
    acquire(machine, 1, run)
    assert answer(machine, 1)[0] == 200
    wrong = [
        TaskRun(TaskKey("x", 0, 1), 1),
        TaskRun(TaskKey(key.job, 0, 1), 2**40),
        TaskRun(TaskKey(key.job, -1, 1), 1),
    ]
    assert [one.run for one in renewed(machine, 2, *wrong).runs] == [run]
    for number, one in enumerate(wrong, start=3):
        acquire(machine, number, one)
        assert answer(machine, number)[0] == 403


def test_requests_that_wait_are_limited_and_others_are_not(machine, key, space, monkeypatch) -> None:
    monkeypatch.setattr(lock_relay, "MAX_WAITING_OF_RUN", 2)
    held, _ = locks.acquire(space, "shop/leader", user("ann"))
    run = TaskRun(key, 1)
    for number in (1, 2, 3):
        acquire(machine, number, run, wait_s=60.0)
    status, body, _ = answer(machine, 3)
    assert (status, body["code"]) == (503, "locks-busy")
    acquire(machine, 4, run, "shop/other")
    assert answer(machine, 4)[0] == 200
    machine.say(LockCall(5, run, "POST", "/v1/release", '{"name": "shop/other"}'))
    assert answer(machine, 5)[0] == 200
    locks.release(space, "shop/leader", user("ann", held.session))
    assert {answer(machine, 1)[1]["again"], answer(machine, 2)[1]["again"]} == {False, True}


def test_a_watcher_gets_the_change(machine, key, space) -> None:
    lock = locks.write(space, "shop/config", "a", actor="ann")
    machine.say(LockCall(1, TaskRun(key, 1), "GET", f"/v1/locks/shop/config?after={lock.sequence}&wait_s=60"))
    machine.say(LockCall(2, TaskRun(key, 1), "GET", "/v1/locks/shop/config"))
    assert answer(machine, 2)[1]["content"] == "a"
    locks.write(space, "shop/config", "b", actor="ann")
    status, body, found = answer(machine, 1)
    assert (status, body["content"], body["sequence"], found.holds) == (200, "b", 2, None)
