"""Tests of the maintenance calendar: people write windows, the master drains their machines and returns them."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from django.utils import timezone

from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import PROTOCOL
from scheduling.history.checkpoints.rows import load_recorded
from scheduling.history.checkpoints.tables import state_of, tables_of
from scheduling.journal import journal
from scheduling.machines import cordons, machines
from scheduling.machines.drain_progress import drains_of, progress_of
from scheduling.maintenance import preview, selectors, windows
from scheduling.maintenance.window_keeper import WindowKeeper
from scheduling.master.loop import Master
from scheduling.master.snapshot import load_state
from scheduling.models import Drain, Machine, MaintenanceWindow, Repacking, Task
from scheduling.policy import brake_rules
from scheduling.policy.cell_settings import CellSettings
from tests.integration import rows, world
from tests.integration.repack_rows import answer, on, scattered

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = CellSettings()


def written(cell, *, begin_s: float = 7_200.0, length_s: float = 3_600.0, **given: Any) -> MaintenanceWindow:
    """Write a window that begins `begin_s` seconds from now."""
    starts = timezone.now() + dt.timedelta(seconds=begin_s)
    given.setdefault("reason", "new power supplies")
    return windows.window_write(
        principal=rows.ME, cell=cell, starts_at=starts, ends_at=starts + dt.timedelta(seconds=length_s), **given
    )


def after(window: MaintenanceWindow, seconds: float) -> dt.datetime:
    """Return the time this many seconds after the start of the window."""
    return window.starts_at + dt.timedelta(seconds=seconds)


def turn(cell, now: dt.datetime | None = None) -> bool:
    """Do what a master does in one second, at the time `now`."""
    return WindowKeeper(cell.id).turn(SETTINGS, now=now)


def states(*fleet: Machine) -> list[str]:
    return [Machine.objects.get(pk=one.pk).state for one in fleet]


def journaled(cell) -> list[str]:
    tail = journal.tail(cell.id, after=0)
    return [record.event.state for record in tail if isinstance(record.event, events.MaintenanceSet)]


def test_a_window_drains_its_machines_before_its_start_and_returns_them_at_its_end(cell, ann) -> None:
    _job, fleet = scattered(ann, cell, machines=3, disruption_budget=2)
    window = written(cell, machines=["m1", "m0"])
    assert window.machines == ["m0", "m1"]
    assert not turn(cell)
    assert states(*fleet) == ["up"] * 3
    assert turn(cell, after(window, -60.0))
    assert not turn(cell, after(window, -59.0)), "it begins once"
    assert states(*fleet) == ["draining", "draining", "up"]
    (drain, _) = Drain.objects.order_by("id")
    assert (drain.window, drain.deadline, drain.only, drain.tasks) == (window, window.starts_at, None, 2)
    assert drain.reason == f"maintenance window {window.pk}: new power supplies"
    master = Master(cell.id)
    for _ in range(6):
        master.run(0.0)
        answer(cell)
    assert [on(machine) for machine in fleet] == [0, 0, 4], "the others find no place"
    (progress,) = selectors.progress_of([window], now=timezone.now())
    assert (progress.covered, progress.busy, progress.overdue) == (2, 0, False)
    assert turn(cell, window.ends_at)
    assert not turn(cell, window.ends_at)
    assert states(*fleet) == ["up"] * 3
    assert not Drain.objects.exists()
    assert journaled(cell) == ["planned", "draining", "ended"]


def test_a_window_that_passed_without_a_master_ends_without_a_drain(cell, machine) -> None:
    window = written(cell, rack="r1")
    assert turn(cell, after(window, 86_400.0))
    assert journaled(cell) == ["planned", "ended"]
    assert states(machine) == ["up"]


def test_a_drain_of_a_person_stays_after_the_window(cell, ann) -> None:
    _, fleet = scattered(ann, cell, machines=4)
    machines.machines_drain(principal=rows.ME, cell=cell, machines=fleet[:1], reason="broken fan")
    window = written(cell, rack="r1")
    turn(cell, after(window, -60.0))
    assert states(*fleet) == ["draining"] * 4
    assert sorted(Drain.objects.values_list("machine__hostname", "window")) == [
        ("m0", None),
        ("m1", window.pk),
        ("m2", window.pk),
        ("m3", window.pk),
    ]
    machines.machines_drain(principal=rows.ME, cell=cell, machines=fleet[1:2], reason="this one too")
    machines.machine_undrain(principal=rows.ME, machine=fleet[2])
    assert not turn(cell, after(window, -50.0)), "what a person has returned early is not drained again"
    windows.window_cancel(principal=rows.ME, cell=cell, number=window.pk, reason="the supplier is late")
    assert states(*fleet) == ["draining", "draining", "up", "up"]
    window.refresh_from_db()
    assert (window.state, window.detail) == ("cancelled", f"cancelled by {rows.ME.name}: the supplier is late")
    with pytest.raises(Conflict, match="is cancelled"):
        windows.window_cancel(principal=rows.ME, cell=cell, number=window.pk)


def test_a_window_drains_machines_that_join_that_are_down_or_whose_other_drain_ends(cell, ann) -> None:
    _, (own, down, packed) = scattered(ann, cell, machines=3)
    machines.machines_drain(principal=rows.ME, cell=cell, machines=[own], reason="broken fan")
    rows.machine_down(down)
    repacking = Repacking.objects.create(
        cell=cell, goal="machines", most_moves=1, job_share=1.0, most_priority=1, at_once=1, created_at=timezone.now()
    )
    with journal.write(cell.id, rows.ME) as entry:
        cordons.machines_cordon(entry, [packed.pk], repacking, "a re-packing")
    cordons.cordon_open(repacking, packed.pk, only=None, tasks=2)
    window = written(cell, rack="r1")
    turn(cell, after(window, -60.0))
    assert states(own, down, packed) == ["draining", "down", "draining"]
    late = rows.a_machine(cell, "late")
    machines.machine_undrain(principal=rows.ME, machine=own)
    rows.machine_up(down)
    assert turn(cell, after(window, -50.0))
    revision = type(cell).objects.get(pk=cell.pk).revision
    assert not turn(cell, after(window, -49.0))
    assert type(cell).objects.get(pk=cell.pk).revision == revision
    assert states(own, down, packed, late) == ["draining"] * 4
    assert set(Drain.objects.values_list("window", "repacking")) == {(window.pk, None)}


def test_of_windows_that_overlap_the_first_start_decides(cell, ann, machine) -> None:
    short = world.submit(ann, cell, world.with_task("short", tasks=1, max_run_s=600, restart={"on": "never"}))
    world.bring_up(short, machine)
    later = written(cell, machines=["m1"], begin_s=3_000.0, lead_s=3_000.0)
    turn(cell)
    assert (Drain.objects.get().window, Drain.objects.get().only) == (later, []), "the task ends before"
    now = written(cell, rack="r1", begin_s=0.0, length_s=6_000.0, reason="network", break_budgets=True)
    assert turn(cell, after(now, 1.0))
    drain = Drain.objects.get()
    assert (drain.window, drain.deadline, drain.only, drain.break_budgets) == (now, now.starts_at, None, True)
    assert not turn(cell, after(now, 2.0))
    windows.window_cancel(principal=rows.ME, cell=cell, number=now.pk)
    drain.refresh_from_db()
    assert (drain.window, drain.deadline, drain.break_budgets) == (later, later.starts_at, False)
    assert states(machine) == ["draining"]
    assert Machine.objects.get().reason == f"maintenance window {later.pk}: new power supplies"
    machines.machine_undrain(principal=rows.ME, machine=machine)
    again = written(cell, rack="r1", begin_s=60.0)
    assert turn(cell), "another window that begins after the return"
    windows.window_cancel(principal=rows.ME, cell=cell, number=again.pk)
    assert states(machine) == ["up"], "a person has returned it for the first window"


def test_only_tasks_with_a_certain_end_stay_until_the_start(cell, ann, machine) -> None:
    short = world.submit(ann, cell, world.with_task("short", tasks=2, max_run_s=600, restart={"on": "never"}))
    again = world.submit(ann, cell, world.with_task("again", tasks=3, max_run_s=600, restart={"on": "always"}))
    world.bring_up(short, machine)
    world.place(again, machine, 2)  # another port than the other tasks
    world.report(again, 2)
    window = written(cell, rack="r1", begin_s=7_000.0)
    found = preview.preview_of(rows.ME, window)
    assert (found.tasks, found.leaving, [one.job for one in found.jobs]) == (3, 1, ["ubar/again"])
    turn(cell, after(window, -60.0))
    drain = Drain.objects.get()
    assert drain.only == [Task.objects.get(job=again, machine=machine).pk]
    (progress,) = progress_of(rows.ME, cell, list(drains_of(cell)))
    assert (progress.left, progress.staying) == (3, 2)
    assert turn(cell, window.starts_at)
    drain.refresh_from_db()
    assert drain.only is None


def test_the_drains_begin_as_early_as_the_budgets_need(cell, ann) -> None:
    scattered(ann, cell, machines=10)
    first, second = written(cell, machines=["m0", "m1"]), written(cell, rack="r1", begin_s=7_300.0)
    found = preview.preview_of(rows.ME, second)
    (job,) = found.jobs
    assert (found.machines, job.tasks, job.may) == (10, 20, 1)
    leads = preview.leads_of([first, second], SETTINGS)
    assert leads[first.pk] == SETTINGS.maintenance_lead_s
    assert leads[second.pk] > job.needs_s > SETTINGS.maintenance_lead_s, "windows share the budgets"
    assert found.drains_at == second.starts_at - dt.timedelta(seconds=leads[second.pk])
    windows.window_cancel(principal=rows.ME, cell=cell, number=first.pk)
    keeper = WindowKeeper(cell.id)
    lead_s = preview.leads_of([second], SETTINGS)[second.pk]
    assert not keeper.turn(SETTINGS, now=after(second, -lead_s - 1.0))
    small = windows.window_change(principal=rows.ME, cell=cell, number=second.pk, machines=["m0"])
    assert not keeper.turn(SETTINGS, now=after(second, -lead_s)), "the estimate follows the change"
    assert keeper.turn(SETTINGS, now=after(small, -SETTINGS.maintenance_lead_s))
    own = written(cell, machines=["m5"], begin_s=7_000.0, lead_s=7_100.0)
    turn(cell)
    own.refresh_from_db()
    assert own.state == "draining"


def test_two_masters_begin_and_end_a_window_once(cell, machine, monkeypatch) -> None:
    window = written(cell, rack="r1")
    (seen,) = MaintenanceWindow.objects.all()
    first, second = WindowKeeper(cell.id), WindowKeeper(cell.id)
    assert first._begin(seen, after(window, -60.0))
    assert not second._begin(seen, after(window, -60.0)), "it has read the window before the other master began"
    assert first._end(seen, window.ends_at)
    assert not second._end(seen, window.ends_at)
    assert journaled(cell) == ["planned", "draining", "ended"]

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    again = written(cell, rack="r1")
    monkeypatch.setattr(WindowKeeper, "_settle", killed)
    with pytest.raises(RuntimeError):
        turn(cell, after(again, -60.0))
    monkeypatch.undo()
    assert states(machine) == ["up"]
    assert turn(cell, after(again, -60.0))
    assert states(machine) == ["draining"]
    assert journaled(cell)[-2:] == ["planned", "draining"]


def test_rows_checkpoint_and_journal_agree_about_windows(cell, machine) -> None:
    written(cell, machines=["m1"])
    written(cell, rack="r1", begin_s=60.0)
    turn(cell)
    state, recorded = load_state(cell.id), load_recorded(cell.id)
    assert sorted(one.state for one in state.calendar.windows.values()) == ["draining", "planned"]
    tables = tables_of(recorded)
    again = state_of(tables, extra_resources=(), revision=recorded.revision)
    assert (state.diff(recorded), state.diff(again)) == ([], [])
    del tables["windows"]
    assert state_of(tables, extra_resources=(), revision=recorded.revision).calendar.windows == {}, "an older file"


def test_a_master_places_a_long_task_elsewhere_and_why_names_the_window(cell, ann, machine) -> None:
    rows.machine_set(machine, attributes={PROTOCOL: "99"})
    window = written(cell, rack="r1")
    long = world.with_task("long", tasks=1, max_run_s=9_000)
    job = world.submit(ann, cell, long | {"priority": 110})
    master = Master(cell.id)
    master.run(0.0)
    assert Task.objects.get(job=job).state == "pending"
    sre = world.bearer(world.a_user("eve", sre=True))
    (found,) = sre.get(f"/api/v1/cells/{cell.name}/jobs/ubar/long/why/").json()["verdicts"]
    assert (found["code"], found["ruled_out"][0]["until"]) == ("maintenance", window.ends_at.timestamp())
    assert "The first maintenance of machines that could hold the task ends at" in " ".join(found["told"]["notes"])
    windows.window_cancel(principal=rows.ME, cell=cell, number=window.pk)
    master.run(0.0)
    assert Task.objects.get(job=job).state == "running"


def test_wrong_windows_are_rejected_and_change_nothing(cell, machine, ann) -> None:
    before = type(cell).objects.get(pk=cell.pk).revision
    for given, field in (
        ({}, "machines"),
        ({"machines": ["m1"], "rack": "r1"}, "rack"),
        ({"machines": ["m1", "nobody"]}, "machines"),
        ({"rack": "r9"}, "rack"),
        ({"power_domain": "p9"}, "power_domain"),
        ({"rack": "r1", "begin_s": -4_000.0, "length_s": 9_000.0}, "starts_at"),
        ({"rack": "r1", "begin_s": 500 * 86_400.0}, "starts_at"),
        ({"rack": "r1", "length_s": -1.0}, "ends_at"),
        ({"rack": "r1", "length_s": 100 * 86_400.0}, "ends_at"),
        ({"rack": "r1", "lead_s": -1.0}, "lead_s"),
    ):
        with pytest.raises(Rejected) as caught:
            written(cell, **given)
        assert field in caught.value.fields, (given, caught.value.fields)
    assert type(cell).objects.get(pk=cell.pk).revision == before
    with pytest.raises(Forbidden):
        windows.window_write(principal=ann, cell=cell, ends_at=timezone.now(), reason="x", rack="r1")


def test_a_window_can_be_changed_until_its_drains_begin(cell, machine) -> None:
    window = written(cell, machines=["m1"])

    def change(**given: Any) -> MaintenanceWindow:
        return windows.window_change(principal=rows.ME, cell=cell, number=window.pk, **given)

    assert change(rack="r1").machines == []
    assert change(lead_s=60.0, reason="later").changed_by == rows.ME.name
    count = len(journaled(cell))
    change(lead_s=60.0)
    assert len(journaled(cell)) == count, "nothing has changed"
    with pytest.raises(Rejected):
        change(rack="r9")
    turn(cell, after(window, -30.0))
    later = timezone.now() + dt.timedelta(days=1)
    assert change(ends_at=later).ends_at == later
    with pytest.raises(Conflict, match="only ends_at and reason"):
        change(lead_s=600.0)


def test_a_late_window_is_counted_until_its_machines_are_empty(cell, ann, machine) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    window = written(cell, rack="r1", begin_s=-200.0)
    assert selectors.overdue_machines() == {}
    turn(cell)
    window = MaintenanceWindow.objects.get()
    assert selectors.overdue_machines() == {cell.pk: 1}
    (progress,) = selectors.progress_of([window], now=timezone.now())
    assert (progress.busy, progress.overdue) == (1, True)
    (coming,) = selectors.maintenance_of(job)
    assert (coming.tasks, coming.begun) == (3, True)
    assert selectors.windows_of_machines(cell.pk, [machine.pk]) == {machine.pk: window}
    machines.machine_undrain(principal=rows.ME, machine=machine)
    assert selectors.overdue_machines() == {}
    assert (selectors.maintenance_of(job), selectors.windows_of_machines(cell.pk, [machine.pk])) == ([], {})


def test_a_very_large_window_must_be_confirmed_with_the_windows_that_overlap(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 2)
    scattered(ann, cell, machines=4)
    first = written(cell, machines=["m0"])
    with pytest.raises(Conflict) as caught:
        written(cell, machines=["m1"])
    assert caught.value.figures["tasks"] == 4
    second = written(cell, machines=["m1"], confirm=4)
    assert written(cell, machines=["m2"], begin_s=90_000.0).pk > second.pk, "at another time"
    later = first.ends_at + dt.timedelta(minutes=5)
    windows.window_change(principal=rows.ME, cell=cell, number=first.pk, ends_at=later, confirm=4)
    windows.window_change(principal=rows.ME, cell=cell, number=first.pk, machines=["m0"], reason="the same machines")


def test_after_any_sequence_of_requests_and_turns_drains_and_states_agree(cell) -> None:
    random = Random(17)
    fleet = [rows.a_machine(cell, f"m{number}", rack=f"r{number // 2}") for number in range(4)]
    now = timezone.now()

    def write() -> None:
        begin_s = random.choice((60.0, 300.0, 5_000.0))
        scope = random.choice(({"rack": "r0"}, {"rack": "r1"}, {"machines": ["m0", "m3"]}))
        written(cell, begin_s=begin_s, length_s=600.0, break_budgets=random.random() < 0.5, **scope)

    def request(act) -> None:
        with suppress(Conflict, Rejected):
            act()

    def number() -> int:
        open_ones = MaintenanceWindow.objects.filter(state__in=MaintenanceWindow.OPEN)
        return random.choice([*open_ones.values_list("pk", flat=True), 0])

    acts = (
        write,
        lambda: windows.window_cancel(principal=rows.ME, cell=cell, number=number()),
        lambda: windows.window_change(
            principal=rows.ME, cell=cell, number=number(), ends_at=now + dt.timedelta(seconds=9_000)
        ),
        lambda: machines.machine_undrain(principal=rows.ME, machine=random.choice(fleet)),
        lambda: machines.machines_drain(principal=rows.ME, cell=cell, machines=[random.choice(fleet)], reason="x"),
    )
    for _ in range(30):
        request(random.choice(acts))
        now += dt.timedelta(seconds=random.choice((1, 50, 200)))
        turn(cell, now)
        drained = set(Drain.objects.values_list("machine_id", flat=True))
        assert {one.pk for one in fleet if Machine.objects.get(pk=one.pk).state == "draining"} == drained
        begun = MaintenanceWindow.objects.filter(state="draining")
        covered = {one.pk for one in fleet for window in begun if selectors._includes(window, one)}
        assert covered <= drained, "no machine of a window that has begun is up"
        assert set(Drain.objects.filter(window__isnull=False).values_list("machine_id", flat=True)) <= covered
    assert {"draining", "ended", "cancelled"} <= set(journaled(cell)), "the sequence is long enough"
