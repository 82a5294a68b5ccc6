"""Tests of kept allocs (§2.4, §4): files of a stopped alloc stay on its machine until a log saver has run."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone

from borglet.messages import AllocReport, Desired, EndCause, Exit, Phase, TaskKey, TaskReport
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import CPU, DISK
from scheduling.allocs import kept_allocs
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.jobs import submit_and_kill
from scheduling.journal import journal
from scheduling.link.shard.writer import MachineReportChanges, apply
from scheduling.link.views.desired import Specs, load
from scheduling.link.views.report_changes import ReportChanges, compare
from scheduling.machines import machines
from scheduling.master.invariants import validate
from scheduling.master.snapshot import load_state
from scheduling.models import Departure, Job, KeptAlloc, Machine, Task
from scheduling.tasks import transitions
from tests.integration import link_world, rows, world
from tests.integration.test_allocs import envelope, put

pytestmark = pytest.mark.django_db(transaction=True)

ME = system("test")
GIB = 2**30
DAY = 86400


def saver(name: str = "logsaver", **changed: Any) -> dict[str, Any]:
    file = world.with_task(name, tasks=1, command=["save"], limit={"cpu": "200m", "ram": "64Mi"})
    file["task"].pop("ports", None)
    file["task"].pop("health", None)
    return file | {"alloc_set": "shelf", "saves_for_s": 3 * DAY, **changed}


@pytest.fixture
def shelf(cell, ann, machine) -> Job:
    """Return an alloc set with one alloc, in which a server and a log saver are placed."""
    shelf = world.submit(ann, cell, envelope(tasks=1))
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(shelf.id, 0, machine.id)])
    put(world.submit(ann, cell, world.with_task("web", tasks=1) | {"alloc_set": "shelf"}), shelf, machine, 0)
    inside = task_id(world.submit(ann, cell, saver()).id, 0)
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(*split_task_id(inside), machine.id, alloc=task_id(shelf.id, 0))])
    return shelf


def leave(shelf: Job) -> KeptAlloc:
    """Preempt the alloc and all tasks in it. Return the row about the files that its machine keeps."""
    task = Task.objects.get(job=shelf)
    with journal.write(shelf.cell_id, ME) as entry:
        transitions.tasks_evict(
            entry, [Eviction(task.id, task.incarnation, EvictionCause.PREEMPTION.value, detail="higher")]
        )
    return KeptAlloc.objects.get()


def key_of(job: Job) -> TaskKey:
    task = Task.objects.get(job=job, index=0)
    return TaskKey(job.uid.hex, 0, task.incarnation)


def wanted(machine: Machine) -> Desired:
    return load(machine.cell_id, [machine.id], Specs())[machine.id].desired


def heard(machine: Machine, *tasks: TaskReport, allocs: list[AllocReport] | None = None) -> ReportChanges:
    """Write the changes from a report of a machine that has received its newest desired state, and return them."""
    loaded = load(machine.cell_id, [machine.id], Specs())[machine.id]
    report = link_world.Report(
        session=loaded.session,
        sequence=1,
        history_id=loaded.desired.history_id,
        generation=loaded.desired.generation,
        revision=loaded.desired.revision,
        tasks=list(tasks),
        allocs=allocs or [],
    )
    changes = compare(loaded.view, report)
    apply(machine.cell_id, [MachineReportChanges(machine.id, loaded.session, loaded.desired.history_id, changes)])
    return changes


def room(machine: Machine, resource: int) -> int:
    """Return the amount of a resource that the scheduler may allocate on the machine."""
    state = load_state(machine.cell_id)
    return int(state.machines.capacity[state.machines.slot[machine.id], resource])


def test_tasks_inside_know_their_alloc_and_the_machine_what_it_holds(machine, shelf) -> None:
    desired = wanted(machine)
    (alloc,) = desired.allocs
    assert (alloc.key, alloc.name, alloc.ended) == (key_of(shelf), "cc/ubar/shelf/0", False)
    assert alloc.limit["disk"] == GIB
    assert [task.alloc for task in desired.run] == [alloc.key, alloc.key]


def test_the_disk_of_an_alloc_that_left_is_kept_and_accounted(machine, shelf) -> None:
    before = room(machine, DISK), room(machine, CPU)
    kept = leave(shelf)
    assert kept.hold[DISK] == GIB
    assert (room(machine, DISK), room(machine, CPU)) == (before[0] - GIB, before[1] - 200)
    assert (kept.until - kept.since).total_seconds() == 3 * DAY
    validate(shelf.cell_id)


def test_its_saver_runs_again_when_the_others_are_gone(machine, shelf) -> None:
    inner = [task.key for task in wanted(machine).run]
    kept = leave(shelf)
    desired = wanted(machine)
    (again,) = desired.run
    assert again.key == TaskKey(kept.uid.hex, 0, 1)
    assert (again.command, again.env["BORG_ALLOC_ENDED"], again.name) == (["save"], "1", "cc/ubar/logsaver/0")
    assert sorted(again.waits_for) == sorted(inner)
    assert [(alloc.key, alloc.ended) for alloc in desired.allocs] == [(again.alloc, True)]
    assert {stop.key for stop in desired.stop} == {*inner, again.alloc}


def test_once_saved_the_folder_goes_and_the_room_comes_back(machine, shelf) -> None:
    before = room(machine, DISK)
    kept = leave(shelf)
    here = [AllocReport(link_world.TaskKey(*_parts(kept.key)), kept.name, 5)]
    again = TaskReport(TaskKey(kept.uid.hex, 0, 1), "cc/ubar/logsaver/0", Phase.UP)
    heard(machine, again, allocs=here)
    assert not Departure.objects.exists()  # the alloc is gone, but its folder may still exist
    assert not KeptAlloc.objects.get().released
    ended = TaskReport(again.key, again.name, Phase.ENDED, exit=Exit(EndCause.EXITED, 1.0, status=0))
    assert heard(machine, ended, allocs=here).saved == [(kept.id, 0)]
    assert KeptAlloc.objects.get().released
    assert room(machine, DISK) == before
    desired = wanted(machine)
    assert (desired.run, desired.allocs) == ([], [])
    assert [(str(stop.key), stop.cause) for stop in desired.stop] == [(kept.key, "released")]
    heard(machine, allocs=here)
    assert KeptAlloc.objects.exists()  # the Borglet still has it
    heard(machine)
    assert not KeptAlloc.objects.exists()
    kinds = [record.event.__struct_config__.tag for record in journal.tail(shelf.cell_id, after=0)]
    assert [kind for kind in kinds if kind.startswith("alloc.")] == ["alloc.kept", "alloc.released", "alloc.gone"]
    validate(shelf.cell_id)


def test_a_saver_that_fails_has_not_saved(machine, shelf) -> None:
    kept = leave(shelf)
    failed = Exit(EndCause.EXITED, 1.0, status=3)
    key = TaskKey(kept.uid.hex, 0, 1)
    assert not heard(machine, TaskReport(key, "x", Phase.BACKOFF, exit=failed)).saved
    assert not heard(machine, TaskReport(key, "x", Phase.ENDED, exit=failed)).saved
    assert not KeptAlloc.objects.get().released


def test_when_its_time_is_up_it_is_released_unsaved(machine, shelf) -> None:
    kept = leave(shelf)
    assert kept_allocs.release_late(shelf.cell_id) == 0
    KeptAlloc.objects.update(until=timezone.now() - dt.timedelta(seconds=1))
    assert kept_allocs.release_late(shelf.cell_id) == 1
    assert kept_allocs.release_late(shelf.cell_id) == 0
    (released,) = [
        record.event
        for record in journal.tail(shelf.cell_id, after=0)
        if record.event.__struct_config__.tag == "alloc.released"
    ]
    assert (released.how, released.job_id) == ("too-late", kept.job_id)


def test_an_alloc_set_that_is_killed_leaves_its_logs_to_the_saver(cell, ann, machine, shelf) -> None:
    for job in Job.objects.filter(cell=cell).exclude(pk=shelf.pk):
        if job.name == "web":
            submit_and_kill.job_kill(principal=ann, job=job)
    with pytest.raises(Conflict):
        submit_and_kill.job_kill(principal=ann, job=shelf)  # the saver runs in this alloc
    leave(shelf)
    submit_and_kill.job_kill(principal=ann, job=Job.objects.get(cell=cell, name="logsaver"))
    submit_and_kill.job_kill(principal=ann, job=shelf)
    assert [task.command for task in wanted(machine).run] == [["save"]]


def test_an_sre_may_drop_it_once(machine, shelf) -> None:
    kept = leave(shelf)
    kept_allocs.kept_release(principal=ME, kept=kept)
    with pytest.raises(Conflict, match="no longer kept"):
        kept_allocs.kept_release(principal=ME, kept=kept)


def test_without_a_saver_nothing_is_kept(cell, ann, machine) -> None:
    shelf = world.submit(ann, cell, envelope(tasks=1))
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(shelf.id, 0, machine.id)])
    put(world.submit(ann, cell, world.with_task("web", tasks=1) | {"alloc_set": "shelf"}), shelf, machine, 0)
    task = Task.objects.get(job=shelf)
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task.id, task.incarnation, EvictionCause.PREEMPTION.value)])
    assert not KeptAlloc.objects.exists()
    here = [AllocReport(TaskKey(shelf.uid.hex, 0, 1), "cc/ubar/shelf/0")]
    heard(machine, allocs=here)
    assert Departure.objects.filter(task__job=shelf).exists()  # its folder is still there
    heard(machine)
    assert not Departure.objects.exists()


def test_what_is_on_a_machine_leaves_with_it(machine, shelf) -> None:
    leave(shelf)
    rows.machine_down(machine)
    machines.machine_remove(principal=ME, machine=machine, reason="gone")
    assert not KeptAlloc.objects.exists()


@pytest.mark.parametrize(
    "changed, path, what",
    [
        ({"saves_for_s": 15 * DAY}, "saves_for_s", "out of range"),
        ({"saves_for_s": -1}, "saves_for_s", "out of range"),
        ({"alloc_set": ""}, "saves_for_s", "alloc_set"),
        ({"task": {"command": ["x"], "ports": ["http"]}}, "saves_for_s", "ports"),
    ],
)
def test_what_no_saver_can_be_is_refused(cell, ann, shelf, changed, path, what) -> None:
    with pytest.raises(Rejected) as caught:
        world.submit(ann, cell, saver("other", **changed))
    assert what in caught.value.fields[path]


def _parts(key: str) -> tuple[str, int, int]:
    job, index, incarnation = key.split("/")
    return job, int(index), int(incarnation)
