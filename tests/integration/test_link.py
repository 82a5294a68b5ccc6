"""Tests of a link shard on real TLS, WebSockets, PostgreSQL and Redis. The tests write the messages of the machine."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.db import connection
from django.utils import timezone
from websockets.exceptions import ConnectionClosed, InvalidStatus

from borglet.messages import EndCause, Exit, Health, LogChunk, Phase, Refusal, Removal, TaskKey, Usage
from quota.models import CellCapacity
from scheduling.cells.cells import cell_new_history
from scheduling.core.vocabulary.events import TaskReported
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal, wakeups
from scheduling.link.shard.database import DatabaseAway
from scheduling.machines import joining, last_contact, log_requests, machines
from scheduling.master import metrics
from scheduling.models import Brake, Departure, Machine, Task
from scheduling.policy import brake_rules
from scheduling.tasks import transitions
from scheduling.usage import live_usage
from tests.integration import link_world, rows
from tests.integration.link_world import Link, a_job, exited, place, ran, running_link, task, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def link(cell):
    with running_link() as running:
        yield running


def machine_id(hostname: str = "m1") -> int:
    return Machine.objects.get(hostname=hostname).id


def test_a_machine_is_welcomed_and_told_what_to_run(cell, link: Link) -> None:
    job = a_job(cell, health={"http": "/", "port": "http"}, env={"A": "b"}, notice_s=3)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        (run,) = poll.desired.run
        assert (run.key, run.name, run.command, run.env) == (key, "cc/ubar/jfoo/0", ["run", "$(port.http)"], {"A": "b"})
        assert (run.ports, run.limit["cpu"], run.prod, run.notice_s) == ({"http": 20000}, 100, True, 3.0)
        assert poll.desired.history_id == cell.history_id.hex
        machine.report(poll, ran(key, health=Health.UNHEALTHY))
        machine.keep_answering(lambda: task(job).phase == "up")
        assert not task(job).up  # the task has a health check that has not passed yet
        machine.has(ran(key, health=Health.HEALTHY))
        machine.keep_answering(lambda: task(job).up)
    job.refresh_from_db()
    assert job.tasks_up == 1


def test_a_placement_reaches_the_machine_within_200_ms(cell, link: Link) -> None:
    """Of five placements, at least two reach the machine within 200 ms, which is before its next regular poll."""
    job = a_job(cell, tasks=5)
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        took = []
        for index in range(5):
            machine.poll()  # the test holds this poll, and nothing changes
            place(job, machine_id(), index, 20000 + index)
            committed = time.monotonic()
            poll = machine.poll_with_desired(lambda desired, n=index: len(desired.run) == n + 1)
            took.append(time.monotonic() - committed)
            machine.report(poll, *[ran(run.key) for run in poll.desired.run])
    assert sorted(took)[1] < 0.2, took


def test_a_desired_state_that_is_acknowledged_is_not_sent_again(cell, link: Link) -> None:
    link.shard.roster.settings[cell.id] = link.shard.roster.settings[cell.id].__class__(poll_interval_s=0.2)
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        for _ in range(4):
            poll = machine.poll()
            assert poll.desired is None
            assert 0.15 < poll.hold_s < 0.25
            machine.report(poll)


def test_a_shard_tells_its_figures(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        machine.report(machine.poll())
        machine.poll()
        status, told = link.request("GET", "/metrics")
    assert status == 200
    figures = dict(line.rsplit(" ", 1) for line in told.decode().splitlines() if not line.startswith("#"))
    assert float(figures["borg_link_connections"]) == 1
    assert float(figures["borg_link_reports_total"]) == 2
    assert float(figures["borg_link_handshakes_total"]) == 1
    assert float(figures['borg_link_poll_interval_seconds_bucket{le="+Inf"}']) == 2


def test_a_shard_goes_on_whatever_it_finds_in_redis(cell, link: Link) -> None:
    """Unknown values in Redis do not stop a shard. A stopped shard would make all its machines seem silent."""
    wakeups.client().hset("borg:link:loads", "another", "of a release to come")
    wakeups.client().publish("borg:link:sessions", "of a release to come")
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        shards = last_contact.key("shards", cell.id)
        ((_, before),) = wakeups.client().zrange(shards, 0, -1, withscores=True)
        until(
            lambda: wakeups.client().zrange(shards, 0, -1, withscores=True)[0][1] > before + 1.5, what="two heartbeats"
        )
        until(lambda: wakeups.client().publish("borg:link:sessions", "0 0"), what="it listens again")
    wakeups.client().delete("borg:link:loads")


def hung_up(machine: link_world.Played) -> int:
    """Read until the shard closes the connection of the machine, and return the close code."""
    while True:
        try:
            machine.socket.recv(5)
        except ConnectionClosed as error:
            return error.rcvd.code


def test_a_shard_that_serves_too_many_sends_some_away(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        until(lambda: link.shard.name.encode() in wakeups.client().hgetall("borg:link:loads"), what="a load told")
        link.shard._pump.get_loop().call_soon_threadsafe(link.shard.send_away, 1)
        assert hung_up(machine) == 1012
        with link.dial("m1", machine.secret) as socket:
            again = link_world.Played(socket, "m1", machine.secret)
            again.hello()
            again.report(again.poll_with_desired())


def test_an_unknown_machine_is_a_figure_by_reason(cell, link: Link) -> None:
    with pytest.raises(InvalidStatus):
        link.dial("nobody", "wrong")
    assert b'borg_link_refusals_total{code="unauthorized"} 1.0' in link.request("GET", "/metrics")[1]


def test_a_wrong_secret_and_an_unknown_machine_are_refused_alike(cell, link: Link) -> None:
    with link.machine(cell):
        for hostname in ("m1", "nobody"):
            with pytest.raises(InvalidStatus) as caught:
                link.dial(hostname, "wrong")
            response = caught.value.response
            assert response.status_code == 401
            assert b'"code":"unauthorized"' in response.body
            assert b"Authorization" in response.body


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ('{"type":"report","session":1,"seq', "message"),
        ('{"type":"report","session":1,"sequence":"x"}', "sequence"),
        ('{"type":"gossip"}', "type"),
    ],
)
def test_a_malformed_message_is_refused_with_its_field(cell, link: Link, frame: str, field: str) -> None:
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        before = journal.newest(cell.id)
        machine.socket.send(frame)
        refusal = machine.receive()
        while not isinstance(refusal, Refusal):
            refusal = machine.receive()
        assert (refusal.code, refusal.field) == ("malformed", field)
        with pytest.raises(ConnectionClosed):
            machine.socket.recv(5)
        assert journal.newest(cell.id) == before


@pytest.mark.parametrize(
    ("hello", "code", "field"),
    [
        ({"protocol": 99}, "protocol", "protocol"),
        ({"hostname": "m2"}, "other-machine", "hostname"),
        ({"capacity": {"cpu": -1}}, "invalid", "capacity.cpu"),
    ],
)
def test_a_hello_that_can_not_be_is_refused(cell, link: Link, hello, code: str, field: str) -> None:
    with link.machine(cell) as machine, link.dial("m1", machine.secret) as socket:
        refusal = link_world.Played(socket, "m1", machine.secret).hello(**hello)
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.field, refusal.retry) == (code, field, False)


def test_a_newer_session_supersedes_the_older_one(cell, link: Link) -> None:
    with link.machine(cell) as older, link.dial("m1", older.secret) as socket:
        older.poll()
        newer = link_world.Played(socket, "m1", older.secret)
        newer.hello()
        assert newer.session == older.session + 1
        refusal = older.receive()
        assert (refusal.code, refusal.field) == ("superseded", "session")
        newer.report(newer.poll_with_desired())


def test_what_an_older_session_says_at_another_shard_is_not_written(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        Machine.objects.update(session=machine.session + 1)
        machine.report(poll, ran(key))
        refusal = machine.receive()
        while not isinstance(refusal, Refusal):
            refusal = machine.receive()
        assert refusal.code == "superseded"
        assert task(job).phase == "assigned"


def test_a_report_of_another_history_changes_nothing(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        before = journal.newest(cell.id)
        machine.report(poll, ran(key), history_id="0" * 32)
        refusal = machine.receive()
        assert (refusal.code, refusal.field, refusal.retry) == ("other-history", "history_id", True)
        assert journal.newest(cell.id) == before
    with link.dial("m1", machine.secret) as socket:
        again = link_world.Played(socket, "m1", machine.secret)
        assert again.hello(history_id="0" * 32).history_id == cell.history_id.hex
        assert again.poll_with_desired().desired.run[0].key == key


def test_a_new_history_is_sent_at_once_with_a_higher_ordinal(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        old = machine.desired
        cell_new_history(principal=rows.ME, cell=cell)
        poll = machine.poll_with_desired()
        assert poll.desired.history_ordinal == old.history_ordinal + 1
        assert poll.desired.history_id != old.history_id
        assert poll.desired.revision > old.revision


def test_a_late_report_never_overwrites_a_newer_one(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        machine.report(poll, ran(key))
        machine.keep_answering(lambda: task(job).phase == "up")
        machine.report(poll, ran(key, Phase.STARTING))
        machine.has(ran(key))
        for _ in range(3):
            machine.report(machine.poll())
        assert task(job).phase == "up"
    said = [record.event for record in journal.tail(cell.id, after=0)]
    assert [event.phase for event in said if isinstance(event, TaskReported)] == ["up"]


@pytest.mark.parametrize(
    ("restart", "exit_", "state", "outcome", "crashed"),
    [
        ("failure", Exit(EndCause.EXITED, 5.0, status=0), "dead", "finished", 0),
        ("never", Exit(EndCause.EXITED, 5.0, status=3), "dead", "failed", 0),
        ("failure", Exit(EndCause.SIGNALED, 5.0, signal=11), "pending", "", 1),
        ("failure", Exit(EndCause.SUPERVISOR_LOST, 5.0), "pending", "", 1),
        ("failure", Exit(EndCause.MACHINE_SHORT, 5.0, signal=9), "pending", "", 1),
        ("failure", Exit(EndCause.TIME_LIMIT, 5.0, status=0), "dead", "failed", 0),
    ],
)
def test_an_ended_incarnation_becomes_one_transition(
    cell, link: Link, restart: str, exit_: Exit, state: str, outcome: str, crashed: int
) -> None:
    job = a_job(cell, restart={"on": restart})
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        machine.report(poll, exited(key, exit_))
        # It goes on reporting the end until a desired state no longer lists it.
        poll = machine.poll_with_desired(lambda desired: not desired.run)
        row = task(job)
        assert (row.state, row.outcome, row.crashed_pairs.count()) == (state, outcome, crashed)
        assert row.exit["cause"] == exit_.cause.value
        machine.report(poll)
        machine.report(machine.poll())
        machine.poll()
    kinds = [record.event.__struct_config__.tag for record in journal.tail(cell.id, after=0)]
    assert sum(kind in ("task.ended", "task.evicted") for kind in kinds) == 1
    assert not Departure.objects.exists()


def test_a_task_that_fails_everywhere_is_given_up(cell, link: Link) -> None:
    job = a_job(cell, restart={"on": "failure", "max_moves": 2})
    with link.machine(cell) as machine:
        for round_ in range(3):
            key = place(job, machine_id())
            poll = machine.poll_with_desired(lambda desired: bool(desired.run))
            machine.report(poll, exited(key, Exit(EndCause.EXITED, float(round_), status=1), restarts=5))
            machine.keep_answering(lambda: task(job).state != "running")
    row = task(job)
    assert (row.state, row.outcome, row.evictions) == ("dead", "failed", 2)
    assert row.detail == "exited with status 1, after 5 restarts; moved 2 times before"


def test_a_task_that_its_machine_no_longer_has_is_lost(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        machine.report(poll, ran(key))
        machine.keep_answering(lambda: task(job).up)
        machine.has()
        machine.keep_answering(lambda: task(job).state == "pending")
    event = journal.tail(cell.id, after=0)[-1].event
    assert (event.cause, event.gone) == ("lost", True)


def test_a_task_that_its_machine_asks_to_take_away_is_evicted(cell, link: Link) -> None:
    job = a_job(cell)
    figure = metrics.machine_evictions.labels(cell.name, "cpu-starved")._value
    counted = figure.get()
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
        # The machine asks in each report, because of two reports together the shard may read only the later one.
        asks = [Removal(key, "cpu-starved", "no CPU for 180 s")]
        machine.report(machine.poll(), ran(key), removals=asks)
        poll = machine.poll_with_desired(lambda desired: bool(desired.stop), removals=asks)
        assert [(stop.key, stop.cause) for stop in poll.desired.stop] == [(key, "out-of-resources")]
        machine.report(poll, exited(key, Exit(EndCause.STOPPED, 9.0, signal=15)))
        machine.keep_answering(lambda: not Departure.objects.exists())
    assert figure.get() == counted + 1
    row = task(job)
    assert (row.state, row.detail) == (
        "pending",
        "removed at the request of its machine (cpu-starved): no CPU for 180 s",
    )
    evicted = [e.event for e in journal.tail(cell.id, after=0) if getattr(e.event, "cause", "")]
    assert [(event.cause, event.gone) for event in evicted] == [("out-of-resources", False)]


def test_a_departed_incarnation_is_stopped_and_then_gone(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
        other = a_job(cell, "jbar")
        preemptor = task_id(other.id, 0)
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_evict(entry, [Eviction(task_id(job.id, 0), 1, "preemption", preemptor=preemptor)])
            transitions.tasks_place(entry, [Assignment(*split_task_id(preemptor), machine_id(), ports=(20001,))])
        poll = machine.poll_with_desired(lambda desired: bool(desired.stop))
        (stop,) = poll.desired.stop
        (run,) = poll.desired.run
        assert (stop.key, stop.cause, run.waits_for) == (key, "preemption", [key])
        waiting = ran(run.key, Phase.ASSIGNED)
        machine.report(poll, ran(key, Phase.STOPPING), waiting)
        machine.report(machine.poll())
        assert Departure.objects.exists()
        machine.has(exited(key, Exit(EndCause.STOPPED, 9.0, signal=15)), waiting)
        # The poll with the new desired state may come before or after the departure is gone.
        machine.keep_answering(lambda: not Departure.objects.exists() and not machine.desired.stop)
        assert machine.desired.run[0].waits_for == []
    assert task(job).exit["signal"] == 15


def test_a_departed_incarnation_that_never_arrived_is_gone_too(cell, link: Link) -> None:
    job = a_job(cell)
    machine_join = joining.join_token_issue(principal=rows.ME, cell=cell)
    status, answer = link.join(machine_join)
    assert status == 200
    place(job, machine_id())
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task_id(job.id, 0), 1, "preemption")])
    with link.dial("m1", answer["secret"]) as socket:
        machine = link_world.Played(socket, "m1", answer["secret"])
        machine.hello()
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.stop)))
        machine.keep_answering(lambda: not Departure.objects.exists())


def test_an_unknown_task_is_quarantined_and_released_by_an_sre(cell, link: Link) -> None:
    stranger = TaskKey("a" * 32, 0, 1)
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired(), ran(stranger, expected=False))
        row = machine.keep_answering(lambda: Machine.objects.exclude(quarantined=[]).first())
        assert [item["key"] for item in row.quarantined] == [str(stranger)]
        machine.report(machine.poll())
        assert machine.desired.stop == []
        machines.quarantine_release(principal=rows.ME, machine=row, keys=[str(stranger)], action="stop")
        poll = machine.poll_with_desired(lambda desired: bool(desired.stop))
        assert (poll.desired.stop[0].key, poll.desired.stop[0].cause) == (stranger, "quarantine")
        machine.report(poll, exited(stranger, Exit(EndCause.STOPPED, 1.0)))
        machine.keep_answering(lambda: Machine.objects.get().quarantined == [])


def test_a_task_known_to_be_over_is_stopped_without_a_question(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        Task.objects.filter(job=job).update(incarnation=3)
        old = TaskKey(job.uid.hex, 0, 2)
        machine.report(machine.poll_with_desired(), ran(old, expected=False))
        poll = machine.poll_with_desired(lambda desired: bool(desired.stop))
        assert (poll.desired.stop[0].key, poll.desired.stop[0].cause) == (old, "superseded")


def test_more_than_the_cell_may_stop_by_itself_waits_in_quarantine(cell, link: Link, monkeypatch) -> None:
    """A machine runs more unexpected tasks than the cell may stop by itself. They wait for an SRE (DESIGN §2.4)."""
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 2)
    job = a_job(cell, tasks=3)
    with link.machine(cell) as machine:
        Task.objects.filter(job=job).update(incarnation=3)
        old = [TaskKey(job.uid.hex, index, 2) for index in range(3)]
        machine.report(machine.poll_with_desired(), *[ran(key, expected=False) for key in old])
        row = machine.keep_answering(lambda: Machine.objects.exclude(quarantined=[]).first())
        assert [item["release"] for item in row.quarantined] == ["", "", ""]
        assert Brake.objects.get(cell=cell, kind="stops").state == "held"
        machine.report(machine.poll())
        assert machine.desired.stop == []


def test_a_machine_that_was_down_is_up_again_when_it_answers(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        row = Machine.objects.get()
        machine.report(machine.poll_with_desired())
        machines.machines_drain(principal=rows.ME, cell=row.cell, machines=[row], reason="new disk")
        rows.machine_down(row)
        machine.keep_answering(lambda: Machine.objects.get().state == "draining")


def test_a_removed_machine_is_turned_away(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        machines.machine_remove(principal=rows.ME, machine=Machine.objects.get(), reason="sold")
        refusal = machine.receive()
        while not isinstance(refusal, Refusal):
            refusal = machine.receive()
        assert (refusal.code, refusal.retry) == ("removed", False)
    with pytest.raises(InvalidStatus):
        link.dial("m1", machine.secret)


def test_what_a_machine_says_of_itself_is_taken_over_when_it_changes(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        before = journal.newest(cell.id)
    with link.dial("m1", machine.secret) as socket:
        link_world.Played(socket, "m1", machine.secret).hello(attributes={"kernel": "6.1"})
        row = Machine.objects.get()
        told = {"kernel": "6.1", "borglet.protocol": "1"}
        assert (row.attributes, row.boot_id, row.software) == (told, "b1", "test")
        assert journal.tail(cell.id, after=before)[0].event.attributes == told


def test_a_machine_that_says_it_has_grown_waits_for_an_sre(cell, link: Link) -> None:
    """Only an SRE can add the CPU that a machine reports beyond its capacity: its secret may have been stolen."""
    with link.machine(cell) as machine:
        before = Machine.objects.get().capacity
    said = {"cpu": 64_000, "ram": 2**32, "disk": 2**40}
    with link.dial("m1", machine.secret) as socket:
        link_world.Played(socket, "m1", machine.secret).hello(capacity=said)
        row = Machine.objects.get()
        assert row.capacity[:3] == [before[0], 2**32, 2**40]
        assert row.attributes == {"capacity.claimed": "cpu 64000", "borglet.protocol": "1"}
        machines.machine_grow(principal=rows.ME, machine=row, capacity={"cpu": 64})
        assert (row.capacity[:3], set(row.attributes)) == ([64_000, 2**32, 2**40], {"borglet.protocol"})
        assert CellCapacity.objects.get(cell=cell.name).capacity[0] == 64_000
    with link.dial("m1", machine.secret) as socket:
        link_world.Played(socket, "m1", machine.secret).hello(capacity=said)
        assert Machine.objects.get().capacity == row.capacity


def test_a_machine_that_says_less_for_a_while_counts_whole_again_by_itself(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        whole = Machine.objects.get().capacity
    for cpu, counts in ((1000, 1000), (500, 500), (2000, 2000), (64_000_000, whole[0])):
        with link.dial("m1", machine.secret) as socket:
            link_world.Played(socket, "m1", machine.secret).hello(capacity={"cpu": cpu, "ram": whole[1]})
            row = Machine.objects.get()
            assert (row.capacity[0], row.granted) == (counts, whole)
    assert row.attributes["capacity.claimed"] == "cpu 64000000"


def test_a_busy_loop_loses_no_machine(cell, link: Link) -> None:
    """Polls that became due while the event loop was busy are sent when it is free again."""
    link.shard.roster.settings[cell.id] = link.shard.roster.settings[cell.id].__class__(poll_interval_s=0.05)
    loop = link.shard._pump.get_loop()
    with link.machine(cell, "m1") as one, link.machine(cell, "m2") as two:
        for machine in (one, two):
            machine.report(machine.poll_with_desired())
        for _ in range(5):
            for machine in (one, two):
                machine.report(machine.poll())
            busy_until = time.monotonic() + 0.3
            loop.call_soon_threadsafe(_busy, busy_until)
        for machine in (one, two):
            for _ in range(3):
                machine.report(machine.poll())


def _busy(until_s: float) -> None:
    while time.monotonic() < until_s:
        pass


def test_a_database_that_went_away_costs_nothing_once_it_is_back(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        key = place(job, machine_id())
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        loop = link.shard._pump.get_loop()
        for _ in range(2):
            broken = asyncio.run_coroutine_threadsafe(link.shard._database(_break_connection), loop)
            with pytest.raises(DatabaseAway):
                broken.result(5)
        _next_call_fails(link)
        machine.report(poll, ran(key))
        machine.keep_answering(lambda: task(job).up)


def _break_connection() -> None:
    """End this thread's session from the side of PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def _next_call_fails(link: Link) -> None:
    """Make the shard's next write of changes fail, because its database connection has just been broken."""
    real = link.shard._turns._database

    async def once(function, *args):
        if function.__name__ == "apply":
            link.shard._turns._database = real
            return await real(_break_connection)
        return await real(function, *args)

    link.shard._turns._database = once


def test_a_steady_state_writes_nothing(cell, link: Link) -> None:
    link.shard.roster.settings[cell.id] = link.shard.roster.settings[cell.id].__class__(poll_interval_s=0.05)
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
        machine.report(machine.poll())
        before = journal.newest(cell.id)
        until(lambda: link.shard._turns._seen.get(cell.id) == before, what="nothing is left to be read")
        statements = _statements_of(link)
        began = time.monotonic()
        reports = 0
        while time.monotonic() - began < 2.5:
            machine.report(machine.poll())
            reports += 1
        assert reports > 20
        written = [sql for sql in statements if not sql.startswith("SELECT")]
        assert written == []
        assert len(statements) <= 8, statements  # the shard reads the cells once per second
        assert journal.newest(cell.id) == before


def _statements_of(link: Link) -> list[str]:
    """Return a list that receives each SQL statement of the shard's database thread from now on."""
    seen: list[str] = []

    def watch(execute, sql, params, many, context):
        seen.append(str(sql).strip())
        return execute(sql, params, many, context)

    def install() -> None:
        connection.execute_wrappers.append(watch)

    loop = link.shard._pump.get_loop()
    asyncio.run_coroutine_threadsafe(link.shard._database(install), loop).result(5)
    return seen


def test_contact_and_usage_are_left_in_redis(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        used = Usage(cpu_milli=42, ram_bytes=7, processes=1, throttled_milli=3)
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key, usage=used), usage=used)
        rows = machine.keep_answering(lambda: live_usage.read_machines(cell.id, [machine_id()]).rows[1:].tolist())
        assert len(rows) == 1
        whole, row = live_usage.read_cell(cell.id).rows
        assert (row["task_id"], row["incarnation"], row["cpu_milli"]) == (task_id(job.id, 0), 1, 42)
        assert whole["task_id"] == -machine_id()
        assert (row["task_id"], row["throttled_milli"], row["ram_bytes"]) == (task_id(job.id, 0), 3, 7)
        contacts = last_contact.read(cell.id)
        assert contacts.shards == 1
        assert abs(contacts.last[machine_id()] - timezone.now().timestamp()) < 60
        assert last_contact.heard_within(cell.id, [machine_id()]) == {machine_id()}


def test_a_log_is_fetched_from_its_machine(cell, link: Link) -> None:
    key = TaskKey("b" * 32, 0, 1)
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        until(lambda: last_contact.holder_of(cell.id, machine_id()), what="holder known")
        answers: list[LogChunk] = []
        row = Machine.objects.get()
        asking = threading.Thread(target=lambda: answers.append(log_requests.fetch(row, key, timeout_s=30)))
        asking.start()
        poll = machine.poll()
        while not poll.logs:
            machine.report(poll)
            poll = machine.poll()
        (request,) = poll.logs
        assert (request.key, request.stream) == (key, "stdout")
        machine.report(poll, logs=[LogChunk(request.request_id, 0, 5, "hello")])
        asking.join(30)
        assert answers[0].text == "hello"
    until(lambda: not link.shard.connections, what="disconnected")
    assert log_requests.fetch(row, key, timeout_s=5).error == "the machine has just disconnected; try again"


def test_logs_of_a_machine_never_connected_say_so(cell) -> None:
    row = rows.a_machine(cell)
    with pytest.raises(log_requests.LogUnavailable, match="machine m1 is not connected to a link shard"):
        log_requests.fetch(row, TaskKey("b" * 32, 0, 1))


def test_a_returning_borglet_gets_its_desired_state_only_if_it_lacks_it(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, machine_id())
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: Task.objects.get(job=job).up)
    before = journal.newest(cell.id)
    with link.dial("m1", machine.secret) as socket:
        again = link_world.Played(socket, "m1", machine.secret)
        again.desired, again.tasks = machine.desired, machine.tasks
        again.hello(history_id=cell.history_id.hex)
        first = again.poll()
        assert (first.sequence, first.hold_s, first.desired) == (1, 0.0, None)
        again.report(first)
        second = again.poll()
        assert second.desired is None
        assert second.hold_s > 0
    assert journal.newest(cell.id) == before
    with link.dial("m1", machine.secret) as socket:
        again = link_world.Played(socket, "m1", machine.secret)
        again.hello(history_id=cell.history_id.hex)
        poll = again.poll_with_desired(history_id=cell.history_id.hex, generation="old")
        assert poll.sequence > 1
        assert poll.desired.run == machine.desired.run
