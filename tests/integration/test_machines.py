"""Tests of machines: they drain, go down, return and are removed. Only a bounded number is marked down for silence."""

from __future__ import annotations

import pytest

from quota.models import CellCapacity
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.core.vocabulary.states import Observation
from scheduling.journal import journal
from scheduling.machines import evacuation, last_contact, machines
from scheduling.machines.last_contact import Contacts
from scheduling.machines.silent_machines import Silence
from scheduling.models import Departure, Machine, Task
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import reported_states, transitions
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)
EVE = Principal("eve")


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def machine(cell):
    return rows.a_machine(cell)


def placed(cell, machine, *, tasks: int = 3, up: bool = True, name: str = "jfoo"):
    job = rows.a_job(cell, rows.a_tenant(), name, tasks=tasks)
    ids = [task_id(job.id, index) for index in range(tasks)]
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(
            entry,
            [Assignment(*split_task_id(identity), machine.id, ports=(20000 + n,)) for n, identity in enumerate(ids)],
        )
        if up:
            reported_states.tasks_observe(
                entry, [Observation(identity, 1, "up", "unknown", up=True, restarts=0) for identity in ids]
            )
    return job


def running(job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def newest(cell, kind):
    found = [record for record in journal.tail(cell.id, after=0) if isinstance(record.event, kind)]
    return found[-1]


def test_a_draining_machine_loses_no_more_of_a_job_than_its_max_down(cell, machine) -> None:
    job = placed(cell, machine, tasks=25)  # a tenth of the tasks may be down: 2
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
    machine.refresh_from_db()
    assert machine.state == "draining"
    assert evacuation.tasks_leave(cell.id, CellSettings(), seconds=1.0) == 2
    assert evacuation.tasks_leave(cell.id, CellSettings(), seconds=1.0) == 0
    evicted = newest(cell, events.TaskEvicted)
    assert (evicted.event.cause, evicted.event.detail) == ("machine-shutdown", "machine m1 is being drained: new disk")
    drain = newest(cell, events.MachineState)
    assert evicted.caused_by == journal.Cause(drain.revision, drain.seq)
    assert Departure.objects.filter(machine=machine).count() == 2
    assert running(job) == 23


def test_tasks_that_are_not_up_leave_a_draining_machine_freely(cell, machine) -> None:
    placed(cell, machine, tasks=5, up=False)
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
    assert evacuation.tasks_leave(cell.id, CellSettings(), seconds=1.0) == 5


def test_tasks_of_a_machine_that_is_down_are_evicted_at_once(cell, machine) -> None:
    rows.a_machine(cell, "m2")
    job = placed(cell, machine, tasks=12)
    rows.machine_down(machine)
    assert evacuation.tasks_leave(cell.id, CellSettings(), seconds=1.0) == 12
    assert evacuation.tasks_leave(cell.id, CellSettings(), seconds=1.0) == 0
    assert running(job) == 0
    evicted = newest(cell, events.TaskEvicted).event
    assert (evicted.cause, evicted.gone) == ("machine-failure", False)


def test_a_rate_of_nothing_stops_evictions(cell, machine) -> None:
    placed(cell, machine)
    rows.a_machine(cell, "m2")
    rows.machine_down(machine)
    assert evacuation.tasks_leave(cell.id, CellSettings(evictions_per_s=0.0), seconds=1.0) == 0


def test_the_same_wish_twice_is_one_event(cell, machine) -> None:
    for _ in range(2):
        machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
        before = journal.newest(cell.id)
    assert journal.newest(cell.id) == before
    machines.machine_undrain(principal=rows.ME, machine=machine)
    assert machine.state == "up"


def test_a_machine_that_was_draining_drains_on_when_it_comes_back(cell, machine) -> None:
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
    rows.machine_down(machine)
    rows.machine_up(machine)
    assert machine.state == "draining"
    rows.machine_down(machine)
    machines.machine_undrain(principal=rows.ME, machine=machine)
    assert machine.state == "down"
    assert newest(cell, events.MachineState).event.state == "down"
    rows.machine_up(machine)
    assert machine.state == "up"


def test_a_busy_machine_is_not_removed_and_a_dead_one_is(cell, machine) -> None:
    job = placed(cell, machine)
    with pytest.raises(Conflict, match="3 tasks run on m1; drain the machine"):
        machines.machine_remove(principal=rows.ME, machine=machine, reason="sold")
    rows.machine_down(machine)
    evacuation.tasks_evict_from(cell.id, 1)
    machines.machine_remove(principal=rows.ME, machine=machine, reason="sold")
    assert (machine.state, machine.secret_digest) == ("removed", "")
    assert (running(job), Departure.objects.count()) == (0, 0)
    assert newest(cell, events.MachineRemoved).event.machine_id == machine.id
    assert CellCapacity.objects.get(cell="cc").capacity == [0] * 6
    with pytest.raises(Conflict, match="machine m1 was removed"):
        machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="again")


def test_facts_are_changed_checked_and_published(cell, machine) -> None:
    rows.machine_set(machine, capacity={"cpu": 8000, "ram": 2**34}, rack="r9")
    assert (machine.capacity[:2], machine.rack) == ([8000, 2**34], "r9")
    assert CellCapacity.objects.get(cell="cc").capacity[0] == 8000
    before = journal.newest(cell.id)
    rows.machine_set(machine, rack="r9")
    assert journal.newest(cell.id) == before
    for wrong, field in (({"capacity": {"cpu": -1}}, "capacity.cpu"), ({"hostname": "m2"}, "hostname")):
        with pytest.raises(Rejected) as caught:
            rows.machine_set(machine, **wrong)
        assert field in caught.value.fields


@pytest.mark.parametrize(
    "change",
    [
        lambda machine: machines.machines_drain(principal=EVE, cell=machine.cell, machines=[machine], reason="x"),
        lambda machine: machines.machine_undrain(principal=EVE, machine=machine),
        lambda machine: machines.machine_remove(principal=EVE, machine=machine, reason="x"),
        lambda machine: machines.quarantine_release(principal=EVE, machine=machine, keys=[], action="stop"),
    ],
)
def test_only_sres_change_machines(cell, machine, change) -> None:
    before = journal.newest(cell.id)
    with pytest.raises(Forbidden):
        change(machine)
    assert journal.newest(cell.id) == before


def test_only_what_is_in_quarantine_can_be_released(cell, machine) -> None:
    key = "a" * 32 + "/0/1"
    Machine.objects.update(quarantined=[{"key": key, "name": "x", "since": "", "release": ""}])
    with pytest.raises(Rejected, match="tasks other are not in quarantine on m1"):
        machines.quarantine_release(principal=rows.ME, machine=machine, keys=["other"], action="stop")
    with pytest.raises(Rejected, match="give stop or keep"):
        machines.quarantine_release(principal=rows.ME, machine=machine, keys=[key], action="burn")
    machines.quarantine_release(principal=rows.ME, machine=machine, keys=[key], action="keep")
    assert machine.quarantined[0]["release"] == "keep"
    assert newest(cell, events.MachineState).event.reason == "keep 1 in quarantine"


# -- silence


SETTINGS = CellSettings(down_after_s=12.0, suspect_share=0.5, suspect_hold_s=60.0)


def watch(silence: Silence, ids, last, *, start: float, seconds: int, shards: int = 1) -> list[tuple[float, list[int]]]:
    """Judge once per second which machines are down. Return (second, ids) of each time that machines were judged down.

    `last`: for each machine the time of its last contact, or None if it has contact all the time.
    """
    found = []
    for second in range(seconds):
        now = start + second
        known = {machine: now if at is None else at for machine, at in last.items()}
        if down := silence.judge(Contacts(now, known, shards), ids, SETTINGS):
            found.append((second, down))
    return found


def test_a_silent_machine_is_down_after_its_time_and_not_before() -> None:
    silence = Silence()
    ((second, down), *_) = watch(silence, [1, 2, 3, 4], {1: 1000.0, 2: None, 3: None, 4: None}, start=1000, seconds=20)
    assert (second, down) == (13, [1])


def test_counting_starts_again_after_redis_came_back_empty_or_a_standstill() -> None:
    silence = Silence()
    assert watch(silence, [1, 2], {}, start=1000, seconds=12) == []
    # This process stood still for a minute. Contacts that it has missed do not count as silence.
    assert watch(silence, [1, 2], {}, start=1072, seconds=12) == []
    ((second, down), *_) = watch(silence, [1, 2], {}, start=1084, seconds=3)
    assert (second, down) == (1, [1, 2])


def test_counting_starts_again_when_redis_forgot_and_shards_were_quick_to_beat_again() -> None:
    silence = Silence()
    assert watch(silence, [1, 2], {1: None, 2: None}, start=1000, seconds=60) == []
    assert watch(silence, [1, 2], {}, start=1060, seconds=12) == []
    ((_, down), *_) = watch(silence, [1, 2], {}, start=1072, seconds=3)
    assert down == [1, 2]


def test_nobody_is_silent_while_no_shard_is_alive() -> None:
    silence = Silence()
    assert watch(silence, [1], {1: 1000.0}, start=1000, seconds=100, shards=0) == []
    assert watch(silence, [1], {1: 1000.0}, start=1100, seconds=12) == []


def overloaded(silence: Silence, *, start: int, seconds: int) -> list[list[int]]:
    """Decide once per second which machines are down, while link shard `a` is overloaded and two machines are silent.

    Return the ids of the machines that were found down, for each second.
    """
    last = {1: 1000.0, 2: 1000.0}
    return [
        silence.judge(
            Contacts(float(now), last, 1, beats={"a": float(now)}, overloaded=frozenset({"a"})), [1, 2], SETTINGS
        )
        for now in range(start, start + seconds)
    ]


def test_nobody_is_silent_while_the_link_is_overloaded_nor_soon_after() -> None:
    silence = Silence()
    watch(silence, [1, 2], {1: None, 2: None}, start=995, seconds=5)
    assert overloaded(silence, start=1000, seconds=300) == [[]] * 300
    assert silence.late == 0
    assert watch(silence, [1, 2], {1: 1000.0, 2: 1000.0}, start=1300, seconds=12) == []


def test_a_shard_that_is_overloaded_for_ten_minutes_is_not_believed_for_ever() -> None:
    silence = Silence()
    watch(silence, [1, 2], {1: None, 2: None}, start=995, seconds=5)
    found = overloaded(silence, start=1000, seconds=700)
    assert [1, 2] in found
    assert all(down == [] for down in found[:600])


def test_a_machine_that_has_just_joined_gets_its_time() -> None:
    silence = Silence()
    watch(silence, [1], {1: None}, start=1000, seconds=60)
    assert watch(silence, [1, 2], {1: None}, start=1060, seconds=12) == []


def test_when_most_fall_silent_together_the_link_is_suspected_first() -> None:
    silence = Silence()
    ids = list(range(10))
    watch(silence, ids, dict.fromkeys(ids), start=1000, seconds=5)
    gone = {machine: 1004.0 if machine < 6 else None for machine in ids}
    ((second, down), *_) = watch(silence, ids, gone, start=1005, seconds=90)
    assert second > 60
    assert down == [0, 1, 2, 3, 4, 5]


def test_machines_that_attach_one_after_another_are_waited_for() -> None:
    """Machines that connect slowly, one after another, are not marked down while they still arrive.

    This once happened to half of 10,000 machines that connected to one shard on a busy host.
    """
    silence = Silence()
    ids = list(range(100))
    for second in range(200):  # one machine every two seconds
        now = 1000.0 + second
        last = dict.fromkeys(ids[: second // 2], now)
        assert silence.judge(Contacts(now, last, 1), ids, SETTINGS) == []


def test_machines_that_never_attach_are_down_when_no_other_comes_any_more() -> None:
    silence = Silence()
    ids = list(range(100))
    watch(silence, ids, dict.fromkeys(ids[:30]), start=1000, seconds=20)
    attached = dict.fromkeys(ids[:60])
    ((second, down), *_) = watch(silence, ids, attached, start=1020, seconds=90)
    assert 60 <= second <= 65
    assert down == ids[60:]


def test_a_suspicion_ends_when_they_answer_again() -> None:
    silence = Silence()
    ids = list(range(10))
    watch(silence, ids, dict.fromkeys(ids), start=1000, seconds=5)
    assert watch(silence, ids, dict.fromkeys(ids, 1004.0), start=1005, seconds=50) == []
    assert watch(silence, ids, dict.fromkeys(ids), start=1055, seconds=30) == []


def test_three_machines_may_always_be_dead() -> None:
    silence = Silence()
    assert watch(silence, [1, 2, 3], {}, start=1000, seconds=14)[0][1] == [1, 2, 3]


def watch_shards(silence: Silence, last, holders, beats, *, start: int, seconds: int):
    """Judge once per second as `watch` does, with link shards.

    `holders`: the shard of each machine. `beats`: for each shard the time of its last heartbeat, or None if it goes on.
    """
    found = []
    for second in range(seconds):
        now = float(start + second)
        known = {machine: now if at is None else at for machine, at in last.items()}
        beaten = {shard: now if at is None else at for shard, at in beats.items()}
        contacts = Contacts(now, known, shards=len(beaten), beats=beaten)
        if down := silence.judge(contacts, list(last), SETTINGS, holders=lambda: holders):
            found.append((second, down))
    return found


def test_a_shard_that_loses_most_of_its_machines_is_suspected_and_no_other() -> None:
    silence = Silence()
    holders = {machine: "a" if machine < 10 else "b" for machine in range(40)}
    beats = {"a": None, "b": None}
    watch_shards(silence, dict.fromkeys(holders), holders, beats, start=1000, seconds=5)
    last = dict.fromkeys(holders) | dict.fromkeys(range(8), 1004.0) | {39: 1004.0}
    found = watch_shards(silence, last, holders, beats, start=1005, seconds=90)
    assert found[0] == (12, [39])
    assert [second for second, down in found if 0 in down][0] > 60


def test_machines_of_a_shard_that_died_have_time_to_find_another() -> None:
    silence = Silence()
    holders = {1: "a", 2: "a", 3: "b", 4: "b"}
    watch_shards(silence, dict.fromkeys(holders), holders, {"a": None, "b": None}, start=1000, seconds=5)
    last = {1: 1004.0, 2: 1004.0, 3: 1004.0, 4: None}
    beats = {"a": 1004.0, "b": None}
    assert watch_shards(silence, last, holders, beats, start=1005, seconds=30)[0] == (12, [3])
    # One machine has contact again. The other one is marked down in the end.
    last |= {1: None}
    found = watch_shards(silence, last, holders | {1: "b"}, beats, start=1035, seconds=60)
    assert [down for _, down in found if 2 in down][0] in ([2], [2, 3])
    assert not any(1 in down for _, down in found)
    assert min(second for second, down in found if 2 in down) >= 29


def test_those_of_a_partition_are_late_together_when_the_first_is_silent() -> None:
    silence = Silence()
    ids = list(range(3000))  # polled every five seconds
    watch(silence, ids, dict.fromkeys(ids), start=1000, seconds=5)
    cut = {machine: 1000.0 + machine % 5 if machine < 900 else None for machine in ids}
    ((second, down), *_) = watch(silence, ids, cut, start=1005, seconds=10)
    assert (second, len(down)) == (8, 180)
    silence = Silence()
    watch(silence, ids, cut, start=1000, seconds=14)
    assert silence.late == 900


def test_a_sweep_marks_the_silent_down(cell, machine) -> None:
    silence = Silence()
    key, shards = last_contact.key("contact", cell.id), last_contact.key("shards", cell.id)
    redis = last_contact.wakeups.client()
    now = redis.time()[0]
    redis.zadd(shards, {"s": now + 60})
    assert silence.sweep(cell.id, SETTINGS) == []
    assert silence.sweep(cell.id, CellSettings(down_after_s=0.0)) == [machine.id]
    machine.refresh_from_db()
    assert (machine.state, machine.reason) == ("down", "no report for more than 0 s")
    assert silence.sweep(cell.id, SETTINGS) == []
    redis.delete(key, shards)
