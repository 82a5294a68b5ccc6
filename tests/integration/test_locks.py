"""Tests of locks in the database: holders, fencing tokens, sequence numbers, leases, permissions and limits."""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from borglet.messages import TaskKey, TaskRun
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Role
from scheduling.cells.deletion import cell_delete
from scheduling.journal.sql import execute, query
from scheduling.locks import lock_rules, locks, sessions, task_calls
from scheduling.locks.sessions import Connected, Seeker, Space
from scheduling.models import Cell, LockFile, LockSession, Task
from tests.integration import lock_rows, rows, world
from tests.integration.lock_rows import connected, let_leases_end, user

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def space(cell, tenant):
    return Space(cell.id, tenant.id)


@pytest.fixture
def owner(tenant) -> Client:
    return world.bearer(world.a_user("olga", tenant=tenant, role=Role.OWNER))


def url(cell: Cell, rest: str = "", tenant: str = "ubar") -> str:
    return f"/api/v1/cells/{cell.name}/locks/{tenant}/{rest}"


def send(client: Client, method: str, path: str, status: int = 200, key: str = "", **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    answer = client.generic(method, path, json.dumps(body), content_type="application/json", headers=headers)
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else None


def test_only_one_session_holds_a_lock_and_tokens_grow(space) -> None:
    first, again = locks.acquire(space, "shop/leader", user("ann"))
    assert (first.holder, again) == ("ann", False)
    assert first.token > 0
    with pytest.raises(locks.Held, match="held by ann") as held:
        locks.acquire(space, "shop/leader", user("bob"))
    assert held.value.figures["holder"] == "ann"
    same, again = locks.acquire(space, "shop/leader", user("ann", first.session))
    assert (same.token, again) == (first.token, True), "a session that holds the lock keeps its token"
    assert locks.release(space, "shop/leader", user("ann", first.session)) is None
    assert not LockSession.objects.exists(), "a session that holds nothing has no row"
    second, _ = locks.acquire(space, "shop/leader", user("bob"))
    assert second.token > first.token
    with pytest.raises(Conflict, match="does not hold"):
        locks.release(space, "shop/leader", user("ann", first.session))


def test_a_lease_ends_without_a_renewal_and_never_comes_back(space) -> None:
    first, _ = locks.acquire(space, "leader", user("ann"))
    assert first.session is not None
    assert sessions.renew(space, "ann", first.session) == 15.0
    let_leases_end()
    assert locks.lock_named(space, "leader").holder is None
    with pytest.raises(Conflict) as ended:
        sessions.renew(space, "ann", first.session)
    assert ended.value.code == "session-ended"
    with pytest.raises(Conflict, match="has ended"):
        locks.acquire(space, "leader", user("ann", first.session))
    second, _ = locks.acquire(space, "leader", user("bob"))
    assert second.token > first.token
    assert list(LockSession.objects.values_list("owner", flat=True)) == ["bob"], "the expired one cannot come back"
    with pytest.raises(Conflict):
        locks.release(space, "leader", user("ann", first.session))


def test_a_write_with_an_old_token_is_rejected(space) -> None:
    first, _ = locks.acquire(space, "leader", user("ann"), content="ann:80")
    assert (first.content, first.sequence) == ("ann:80", 1)
    assert locks.write(space, "leader", "ann:81", actor="ann", token=first.token).sequence == 2
    let_leases_end()
    with pytest.raises(Rejected, match="the lock is free") as free:
        locks.write(space, "leader", "late", actor="ann", token=first.token)
    assert (free.value.code, free.value.status) == ("token-expired", 412)
    second, _ = locks.acquire(space, "leader", user("bob"))
    with pytest.raises(Rejected, match=f"the newest is {second.token}"):
        locks.write(space, "leader", "late", actor="ann", token=first.token)
    assert locks.lock_named(space, "leader").content == "ann:81"
    with pytest.raises(NotFound):
        locks.write(space, "other", "x", actor="ann", token=1)


def test_sequence_numbers_have_no_gaps_and_survive_a_deletion(space) -> None:
    assert locks.write(space, "config", "a", actor="ann", if_sequence=0).sequence == 1
    with pytest.raises(Rejected) as differs:
        locks.write(space, "config", "b", actor="ann", if_sequence=0)
    assert (differs.value.code, differs.value.figures) == ("sequence-differs", {"sequence": 1})
    assert locks.write(space, "config", "b", actor="ann", if_sequence=1).sequence == 2
    locks.delete(space, "config")
    with pytest.raises(NotFound):
        locks.lock_named(space, "config")
    assert locks.write(space, "config", "c", actor="ann").sequence == 4
    held, _ = locks.acquire(space, "config", user("ann"))
    with pytest.raises(locks.Held):
        locks.delete(space, "config")
    locks.release(space, "config", user("ann", held.session))
    locks.delete(space, "config")
    assert not LockSession.objects.exists()
    again, _ = locks.acquire(space, "config", user("bob"))
    assert again.token > held.token
    assert (again.sequence, again.content) == (5, "")
    locks.evict(space, "config")
    locks.delete(space, "config")
    assert locks.write(space, "config", "d", actor="ann", if_sequence=0).sequence == 7, "a new lock, with new numbers"


def test_tokens_grow_after_a_restore_from_a_backup(space) -> None:
    """A restore may bring back an earlier number of the sequence, and starts a new history of the cell."""
    first, _ = locks.acquire(space, "leader", user("ann"))
    query("SELECT setval('scheduling_lock_token', 1)")
    LockFile.objects.all().delete()
    Cell.objects.filter(pk=space.cell_id).update(history_ordinal=2)
    second, _ = locks.acquire(space, "leader", user("ann"))
    assert second.token > first.token
    assert second.token < 2**53, "programs in JavaScript can use it"


def test_contenders_in_many_threads_never_hold_a_lock_together(space) -> None:
    """A holder checks with its token, in another transaction, that it still is the only one."""
    wins: list[int] = []
    errors: list[BaseException] = []

    def contend(name: str) -> None:
        try:
            for _ in range(15):
                try:
                    lock, _ = locks.acquire(space, "leader", user(name))
                except locks.Held:
                    continue
                locks.write(space, "leader", name, actor=name, token=lock.token)
                wins.append(lock.token)
                assert locks.lock_named(space, "leader").content == name
                if len(wins) % 2:
                    locks.release(space, "leader", user(name, lock.session))
                else:
                    let_leases_end(name)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=contend, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert wins == sorted(set(wins))
    assert len(wins) >= 4
    assert locks.lock_named(space, "leader").sequence == len(wins)


# -- tasks


@pytest.fixture
def job(ann, cell, machine):
    job = world.submit(ann, cell, lock_rows.using("shop", "config/main", tasks=2))
    world.place(job, machine, 0, 1)
    return job


def call(machine, run, method: str, target: str, **body: Any) -> tuple[Any, bool | None]:
    request = task_calls.read_request(method, target, json.dumps(body) if body else "")
    caller = task_calls.caller_of(connected(machine), run)
    task_calls.check_use(caller, request)
    done = task_calls.perform(caller, request)
    return done.body, done.holds


def renewed(machine) -> list[TaskRun]:
    """Renew the sessions of a machine, and return the runs whose sessions continue."""
    return [one.run for one in sessions.renew_machines([connected(machine)]).sessions[machine.id]]


def test_a_task_uses_only_the_locks_of_its_job_file(job, machine, space) -> None:
    run = lock_rows.run_of(job)
    body, holds = call(machine, run, "POST", "/v1/acquire", name="shop/leader", content="here")
    assert (body["holder"], body["content"], body["again"], holds) == ("web/0", "here", False, True)
    call(machine, run, "PUT", "/v1/locks/config/main", content="x")
    for name in ("shopping", "config", "config/mainly", "other/shop"):
        with pytest.raises(Forbidden, match=r"task\.locks"):
            call(machine, run, "GET", f"/v1/locks/{name}")
    locks.write(space, "other", "secret", actor="ann")
    body, _ = call(machine, run, "GET", "/v1/locks")
    assert [row["name"] for row in body["results"]] == ["config/main", "shop/leader"]
    body, _ = call(machine, run, "GET", "/v1/locks?prefix=shop/")
    assert [row["name"] for row in body["results"]] == ["shop/leader"]
    body, holds = call(machine, run, "POST", "/v1/release", name="shop/leader")
    assert (body["released"], holds) == (True, False)


def test_a_machine_acts_only_for_tasks_that_it_should_run(job, machine, cell, space) -> None:
    run, elsewhere = lock_rows.run_of(job), rows.a_machine(cell, "m2")
    with pytest.raises(Forbidden, match="does not run task"):
        call(elsewhere, run, "GET", "/v1/locks")
    for strange in (TaskKey("x", 0, 1), TaskKey(run.key.job, -1, 1), TaskKey(run.key.job, 0, 2**40)):
        with pytest.raises(Forbidden, match="not a run"):
            call(machine, TaskRun(strange, 1), "GET", "/v1/locks")
    call(machine, run, "POST", "/v1/acquire", name="shop/leader")
    lock_rows.evict(job)
    with pytest.raises(Forbidden, match="is being stopped"):
        call(machine, run, "POST", "/v1/acquire", name="shop/other")
    body, _ = call(machine, run, "PUT", "/v1/locks/shop/leader", content="bye")
    assert body["held"], "a task that is being stopped keeps its locks until its processes have ended"
    assert renewed(machine) == [run]
    lock_rows.gone(job)
    assert renewed(machine) == [], "the master has replaced it"
    with pytest.raises(Forbidden):
        call(machine, run, "GET", "/v1/locks")


def test_one_statement_renews_all_sessions_of_many_machines(job, machine, space, django_assert_num_queries) -> None:
    runs = [lock_rows.run_of(job, index) for index in (0, 1)]
    for number, run in enumerate(runs):
        call(machine, run, "POST", "/v1/acquire", name=f"shop/{number}")
    locks.acquire(space, "shop/of-a-user", user("ann"))
    before = dict(LockSession.objects.values_list("owner", "expires_at"))
    both = [connected(machine), Connected(machine.id + 1, 0)]
    with django_assert_num_queries(1):
        found = sessions.renew_machines(both).sessions
    assert {machine: sorted(one.run for one in some) for machine, some in found.items()} == {machine.id: sorted(runs)}
    after = dict(LockSession.objects.values_list("owner", "expires_at"))
    assert {owner for owner in after if after[owner] > before[owner]} == {"web/0", "web/1"}
    let_leases_end("web/0")
    assert renewed(machine) == [runs[1]]
    sessions.end_runs({connected(machine): runs})
    assert locks.lock_named(space, "shop/1").holder is None
    assert locks.lock_named(space, "shop/of-a-user").holder == "ann"


def test_a_transaction_of_a_stopped_process_ends(space, monkeypatch) -> None:
    monkeypatch.setattr(sessions, "IDLE_TRANSACTION_S", 0.05)
    with pytest.raises(OperationalError), sessions.lock_transaction():  # noqa: PT012
        time.sleep(0.2)
        query("SELECT 1")
    connection.close()


def test_a_transaction_around_locks_keeps_its_own_limit(space) -> None:
    with transaction.atomic():
        with sessions.lock_transaction():
            assert query("SHOW idle_in_transaction_session_timeout") == [("5s",)]
        assert query("SHOW idle_in_transaction_session_timeout") == [("0",)]


def test_an_expired_run_does_not_hold_its_earlier_locks_again(job, machine, space) -> None:
    run = lock_rows.run_of(job)
    call(machine, run, "POST", "/v1/acquire", name="shop/a")
    let_leases_end()
    call(machine, run, "POST", "/v1/acquire", name="shop/b")
    assert locks.lock_named(space, "shop/a").holder is None
    assert locks.lock_named(space, "shop/b").holder == "web/0"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (("POST", "/v1/acquire", {"name": "Shop"}), "name"),
        (("POST", "/v1/acquire", {"name": "shop/"}), "name"),
        (("POST", "/v1/acquire", {}), "body"),
        (("POST", "/v1/acquire", {"name": "shop", "wait_s": 61}), "wait_s"),
        (("POST", "/v1/acquire", {"name": "shop", "wait_s": "x"}), "wait_s"),
        (("POST", "/v1/acquire?wait_s=3", {"name": "shop"}), "wait_s"),
        (("GET", "/v1/locks/shop?after=x", None), "after"),
        (("GET", "/v1/locks/shop?wait_s=1e9", None), "wait_s"),
        (("DELETE", "/v1/locks/shop?token=1", None), "token"),
        (("PUT", "/v1/locks/shop", {"content": "x", "if_sequence": "1"}), "if_sequence"),
        (("GET", "/v1/locks/" + "a/" * 10 + "a", None), "name"),
    ],
)
def test_bad_requests_name_the_field(request_, field) -> None:
    method, target, body = request_
    with pytest.raises(Rejected) as error:
        task_calls.read_request(method, target, "" if body is None else json.dumps(body))
    assert field in error.value.fields


def test_contents_and_the_number_of_locks_are_limited(space, monkeypatch) -> None:
    with pytest.raises(Rejected, match="65537 bytes"):
        locks.write(space, "big", "x" * 65_537, actor="ann")
    with pytest.raises(Rejected, match="NUL"):
        locks.write(space, "big", "a\0b", actor="ann")
    assert locks.write(space, "big", "é" * 32_768, actor="ann").sequence == 1
    execute(
        "INSERT INTO scheduling_lockfile (cell_id, tenant_id, name, content, sequence, changed_by, changed_at, token)"
        " SELECT %s, %s, 'n' || n, '', 0, 'ann', now(), 0 FROM generate_series(2, %s) AS n",
        [space.cell_id, space.tenant_id, lock_rules.MAX_LOCKS],
    )
    with pytest.raises(Conflict, match="1000 locks") as full:
        locks.write(space, "one-more", "", actor="ann")
    assert full.value.code == "too-many-locks"
    locks.delete(space, "n2")
    assert locks.write(space, "one-more", "", actor="ann").sequence == 1


# -- REST


def test_users_acquire_renew_write_and_release_over_rest(cell, owner) -> None:
    lock = send(owner, "POST", url(cell, "acquire/shop/leader/"), content="olga", lease_s=5)
    assert (lock["holder"], lock["content"], lock["again"]) == ("olga", "olga", False)
    assert 0 < lock["left_s"] <= 5
    session = lock["session"]
    assert send(owner, "POST", url(cell, f"sessions/{session}/"))["lease_s"] == 5
    busy = send(owner, "POST", url(cell, "acquire/shop/leader/"), status=409)
    assert busy["code"] == "lock-held"
    second = send(owner, "POST", url(cell, "acquire/shop/second/"), session=session)
    assert second["session"] == session
    written = send(owner, "PUT", url(cell, "files/shop/leader/"), content="new", token=lock["token"])
    assert written["sequence"] == 2
    listed = send(owner, "GET", url(cell) + "?prefix=shop/&limit=1")
    assert [row["name"] for row in listed["results"]] == ["shop/leader"]
    assert "content" not in listed["results"][0]
    assert [row["name"] for row in send(owner, "GET", listed["next"])["results"]] == ["shop/second"]
    assert send(owner, "POST", url(cell, "release/shop/leader/"), session=session)["session_continues"] is True
    send(owner, "DELETE", url(cell, f"sessions/{session}/"), status=204)
    assert send(owner, "GET", url(cell, "files/shop/second/"))["held"] is False
    send(owner, "DELETE", url(cell, "files/shop/second/"), status=204)
    send(owner, "GET", url(cell, "files/shop/second/"), status=404)
    missing = send(owner, "POST", url(cell, f"sessions/{uuid.uuid4()}/"), status=409)
    assert missing["code"] == "session-ended"
    assert send(owner, "PUT", url(cell, "files/x/") + "?dry_run=1", content="a")["sequence"] == 1
    send(owner, "GET", url(cell, "files/x/"), status=404)


def test_a_repeated_acquisition_keeps_the_session_of_the_first(cell, owner, tenant) -> None:
    first = send(owner, "POST", url(cell, "acquire/shop/leader/"), key="k1")
    again = send(owner, "POST", url(cell, "acquire/shop/leader/"), key="k1")
    assert (again["session"], again["token"], again["again"]) == (first["session"], first["token"], True)
    bob = world.bearer(world.a_user("bob", tenant=tenant, role=Role.OPERATOR))
    other = send(bob, "POST", url(cell, "acquire/shop/leader/"), status=409, key="k1")
    assert other["code"] == "lock-held"
    let_leases_end()
    later = send(owner, "POST", url(cell, "acquire/shop/leader/"), key="k1")
    assert (later["again"], later["token"] > first["token"]) == (False, True)
    ended = send(owner, "POST", url(cell, f"sessions/{first['session']}/"), status=409)
    assert ended["code"] == "session-ended", "the session that ended does not come back"


def test_a_session_belongs_to_its_user_and_owners_end_sessions(cell, owner, tenant) -> None:
    ann = world.bearer(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
    viewer = world.bearer(world.a_user("vera", tenant=tenant, role=Role.VIEWER))
    lock = send(ann, "POST", url(cell, "acquire/leader/"))
    for method, rest, body in (
        ("POST", f"sessions/{lock['session']}/", {}),
        ("POST", "release/leader/", {"session": lock["session"]}),
        ("POST", "acquire/leader/", {"session": lock["session"]}),
    ):
        send(owner, method, url(cell, rest), status=409, **body)
    send(owner, "DELETE", url(cell, f"sessions/{lock['session']}/"), status=204)
    assert send(viewer, "GET", url(cell, "files/leader/"))["holder"] == "ann"
    send(viewer, "POST", url(cell, "acquire/other/"), status=403)
    send(ann, "POST", url(cell, "evict/leader/"), status=403)
    assert send(owner, "POST", url(cell, "evict/leader/"))["held"] is False
    assert send(owner, "POST", url(cell, "evict/leader/"), status=409)["code"] == "lock-free"
    send(ann, "POST", url(cell, f"sessions/{lock['session']}/"), status=409)


def test_locks_of_other_tenants_are_not_found(cell, owner) -> None:
    rows.a_tenant("other")
    for method, rest in (("GET", ""), ("GET", "files/a/"), ("POST", "acquire/a/"), ("PUT", "files/a/")):
        send(owner, method, url(cell, rest, "other"), status=404, content="x")


def test_a_deleted_cell_has_no_locks(tenant) -> None:
    cell = rows.a_cell("gone")
    locks.acquire(Space(cell.id, tenant.id), "leader", user("ann"))
    cell_delete(principal=rows.ME, cell=cell, confirm="gone")
    assert not LockFile.objects.filter(cell=cell).exists()
    assert not LockSession.objects.filter(cell=cell).exists()


def test_a_job_file_with_wrong_locks_is_rejected_with_the_field(ann, cell) -> None:
    with pytest.raises(Rejected) as error:
        world.submit(ann, cell, lock_rows.using("ok", "Not/ok"))
    assert "task.locks[1]" in error.value.fields
    job = world.submit(ann, cell, lock_rows.using("b", "a", "a"))
    assert Task.objects.filter(job=job).count() == 3
    assert Seeker("x").ids == (None, None, None, None)
