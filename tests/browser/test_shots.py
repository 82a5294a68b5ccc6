"""Tests that no page of Sigma is wider than the screen, and that pages of Sigma and of the SRE console have no script
errors. With SHOTS=1, they save pictures.
"""

from __future__ import annotations

import msgspec
import pytest

from borglet.messages import TaskKey
from quota import records
from quota.models import NoticeChannel
from quota.notifications import delivery_attempts
from quota.notifications.channels import channel_add
from quota.notifications.notices import notify
from quota.vocabulary.permissions import system
from scheduling.brakes.stored_brakes import stops_pass
from scheduling.cells.cells import cell_set
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import Observation
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.machines.evacuation import tasks_drain
from scheduling.machines.machines import machines_drain
from scheduling.master import lease, pass_log
from scheduling.master.snapshot import load_state
from scheduling.models import Task
from scheduling.tasks import pending_verdicts, reported_states, transitions
from scheduling.usage import usage_windows
from scheduling.usage.cell_view import ViewPublisher
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import portal_world, rows
from tests.integration.simulated_cell import SimulatedCell
from tests.integration.test_usage_history import a_window

PAGES = {
    "home": "/",
    "cells": "/cells/",
    "cell": "/cells/cc/",
    "machine": "/cells/cc/machines/rack1-node-04/",
    "find": "/find/?q=jfoo",
    "moment": "/cells/cc/at/",
    "event": "/cells/cc/events/3.0/",
    "jobs": "/jobs/",
    "job": "/jobs/cc/ubar/jfoo/",
    "job-steady": "/jobs/cc/ubar/steady/",
    "job-pending": "/jobs/cc/ubar/greedy/",
    "job-failing": "/jobs/cc/ubar/crashing/",
    "job-events": "/jobs/cc/ubar/jfoo/events/",
    "job-update": "/jobs/cc/ubar/jfoo/update/",
    "task-used": "/jobs/cc/ubar/crashing/1/",
    "task": "/jobs/cc/ubar/jfoo/0/",
    "task-placed": "/jobs/cc/ubar/steady/4/",
    "task-pending": "/jobs/cc/ubar/greedy/0/",
    "specs": "/jobs/cc/ubar/jfoo/specs/?version=2",
    "submit": "/submit/",
    "settings": "/settings/",
    "tokens": "/tokens/",
    "quota": "/quota/",
    "notices": "/notices/",
    "channels": "/notices/channels/",
    "channel": "/notices/channels/{channel}/",
    "packages": "/packages/",
    "sql": "/sql/?ready=evictions-by-cause",
    "missing": "/cells/nowhere/",
    "password": "/accounts/password/change/",
    "admin": "/admin/",
    "admin-tables": "/admin/tables/",
    "admin-cell": "/admin/scheduling/cell/",
    "admin-passes": "/admin/scheduling/cell/{cell}/change/",
    "admin-machines": "/admin/scheduling/machine/",
    "admin-drains": "/admin/scheduling/drain/",
    "admin-brakes": "/admin/scheduling/brake/",
    "admin-jobs": "/admin/scheduling/job/",
    "admin-events": "/admin/scheduling/event/",
    "admin-grant": "/admin/quota/quota/add/",
    "admin-sql": "/admin/sql/?ready=evictions-by-cause",
}


@pytest.fixture
def furnished(world):
    """Fill a cell with at least one row of each kind that the pages show."""
    for number in range(2, 9):
        machine = rows.a_machine(world.cell, f"rack{number % 3}-node-{number:02}", rack=f"rack{number % 3}")
        if number == 4:
            world.machine = machine
    portal_world.place(world.job, 1, world.machine)
    portal_world.report(world.job, 0)
    portal_world.report(world.job, 1, phase="installing", up=False)
    wanted = updates.spec_of(world.job).to_json()
    wanted["task"]["command"] = ["sleep", "1000"]
    read = submit_and_kill.spec_for(principal=system("test"), cell=world.cell, file=wanted, tenant="ubar")
    updates.job_update(principal=system("test"), job=world.job, job_spec=read)
    steady = rows.a_job(world.cell, world.tenant, "steady", tasks=5, limit=(13_000, 2**36, 2**34, 0, 0, 1))
    for index in range(4):
        portal_world.place(steady, index, world.machine)
        portal_world.report(steady, index)
    rows.a_job(world.cell, world.tenant, "greedy", tasks=4, limit=(90_000, 2**30, 2**30, 0, 0, 1))
    rows.a_job(
        world.cell, rows.a_tenant("other"), "first", tasks=7, limit=(99_000, 2**30, 2**30, 0, 0, 1), priority=300
    )
    _crash(world)
    pending_verdicts.store(world.cell.id, SimulatedCell(world.cell).decide())
    spare = rows.a_job(world.cell, world.tenant, "spare", tasks=1, priority=110)
    portal_world.place(spare, 0, world.machine)
    _preempt(spare, steady, world.machine)
    with journal.write(world.cell.id, rows.ME) as entry:
        drained = entry.append(events.MachineState(machine_id=1, state="draining", reason="new disk"))
        transitions.tasks_evict(
            entry, [task_events.Eviction(task_id(world.job.id, 0), 1, "machine-shutdown", caused_by=drained)]
        )
    _drain(world)
    _notices()
    cell_set(principal=system("test"), cell=world.cell, settings={"schedulers": "by-workload"})
    lease.take(world.cell.id, scheduler="service", holder="node-1:4711:0123abcd", ttl_s=600)
    a_pass = pass_log.Pass(
        at=1.79e9,
        revision=7,
        pending=1_200,
        classes=50,
        placed=1_000,
        conflicts=0,
        preempted=2,
        unplaced=200,
        cache_hits=900,
        cache_misses=100,
        pass_ms=9.4,
        commit_ms=70.2,
    )
    for number in range(120):
        one = msgspec.structs.replace(
            a_pass,
            at=a_pass.at + number,
            revision=7 + number,
            conflicts=12 * (number % 40 == 39),
            pass_ms=5 + number * 37 % 11,
            commit_ms=40 + number * 53 % 61,
        )
        pass_log.record(world.cell.id, "cc", "service", one)
    return world


def _crash(world) -> None:
    """Create a job whose tasks crash again and again, with measured usage of one task."""
    job = rows.a_job(world.cell, world.tenant, "crashing", tasks=2)
    for index in range(2):
        portal_world.place(job, index, world.machine, port=21_000)
        task = Task.objects.get(job=job, index=index)
        ended = {"cause": "exited", "status": 3, "signal": None}
        seen = Observation(task.id, task.incarnation, "backoff", "unknown", False, 4, ended)
        with journal.write(world.cell.id, rows.ME) as entry:
            reported_states.tasks_observe(entry, [seen])
    window = a_window(TaskKey(job.uid.hex, 1, 1), limit_cpu_milli=100, cpu_milli=40)
    usage_windows.store([usage_windows.TaskWindow(world.cell.id, world.machine.id, task.id, window)])


def _drain(world) -> None:
    """Drain three machines: one waits for a disruption budget, one is empty, one is past its deadline.

    Also set the brake that stops further preemptions in the cell.
    """
    held = rows.a_job(world.cell, world.tenant, "database", tasks=6)
    here = rows.a_machine(world.cell, "rack9-node-01", rack="rack9")
    late = rows.a_machine(world.cell, "rack9-node-02", rack="rack9")
    empty = rows.a_machine(world.cell, "rack9-node-03", rack="rack9")
    for index in range(6):
        portal_world.place(held, index, here if index < 4 else late)
        portal_world.report(held, index)
    machines_drain(
        principal=rows.ME,
        cell=world.cell,
        machines=[here, empty],
        reason="new switch",
        deadline_s=5400.0,
        break_budgets=True,
    )
    machines_drain(principal=rows.ME, cell=world.cell, machines=[late], reason="new disk", deadline_s=0.0)
    tasks_drain(world.cell.id, 1, patience_s=600.0)
    with journal.write(world.cell.id, rows.ME) as entry:
        assert not stops_pass(entry, 4_000, what="preemption")


def _notices() -> None:
    """Create notices for the SREs, and a channel to which notices cannot be sent."""
    channel = channel_add(principal=rows.ME, tenant=None, kind="webhook", target="https://hooks.example/borg/in")
    channel_add(principal=rows.ME, tenant=None, kind="email", target="on-call@portal.example", level="urgent")
    with records.write(rows.ME) as entry:
        notify(
            entry, None, "order.placed", "Tenant ubar orders 200 cores in cc", "It waits for approval.", url="/quota/"
        )
        notify(
            entry,
            None,
            "shortfall.found",
            "Cell cc has less than what is sold",
            "12 machines left. Sold are 400 cores more than there are.\n\nNothing more is sold.",
            level="urgent",
        )
    delivery_attempts.spread()
    ((claimed, waiting),) = (found for found in delivery_attempts.claim(2) if found[0] == channel)
    delivery_attempts.settle(
        claimed,
        [
            delivery_attempts.DeliveryOutcome(waiting[0].pk),
            delivery_attempts.DeliveryOutcome(waiting[1].pk, "hooks.example answers 503"),
        ],
    )


def _preempt(victim, winner, machine) -> None:
    """Evict task 0 of `victim`, and place task 4 of `winner` on the machine as its preemptor."""
    loser = task_id(victim.id, 0)
    with journal.write(victim.cell_id, rows.ME) as entry:
        evicted = task_events.Eviction(loser, 1, "preemption", preemptor=task_id(winner.id, 4))
        transitions.tasks_evict(entry, [evicted])
        placed = Assignment(
            winner.id,
            4,
            machine.id,
            (20_009,),
            score={"packing": -0.31, "spread-machine": -0.24, "mixing": -0.01, "preemption": -21.0},
            victims=((victim.id, 0),),
            runners_up=((machine.id + 1, -21.9), (machine.id + 2, -22.05)),
        )
        transitions.tasks_place(entry, [placed])


def test_pages_look_right(page, furnished) -> None:
    page.goto("/accounts/login/")
    look_at(page, "login")
    sign_in(page, "sre")
    for name, path in PAGES.items():
        page.goto(path.format(cell=furnished.cell.pk, channel=NoticeChannel.objects.first().pk))
        look_at(page, name, fits=not name.startswith("admin"))
        if name == "submit":
            ViewPublisher(furnished.cell.pk).publish(load_state(furnished.cell.pk))  # as the master does
            page.get_by_role("button", name="Show the plan").click()
            page.get_by_text("Do the tasks fit on the machines?").wait_for()
            look_at(page, "submit-plan")
        if name == "admin-machines":
            page.locator("input[name=_selected_action]").first.check()
            page.locator("select[name=action]").select_option("drain")
            page.locator("button[name=index]").click()
            page.get_by_text("Minutes until the deadline").wait_for()
            look_at(page, "admin-drain-form", fits=False)
