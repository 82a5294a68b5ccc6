"""The example `examples/blue-green` through the real path: `borgctl`, the web process, masters, and a resolver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from borglet.messages import Health
from scheduling.journal import journal
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.models import Job, ServiceWeighting, Task
from scheduling.services.switch_turn import switches_turn
from scheduling.tasks import reported_states
from scheduling.tasks.reported_states import Observation
from tests.integration import cli_world, rows, world
from tests.integration.test_naming_process import BOUND_S
from tests.integration.test_naming_process import Process as Resolver
from tests.ports import free_port

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "store.service.ubar.cc"


def turn(master: Master) -> None:
    """Let a master place the pending tasks, and report all tasks that are not up as up."""
    master.run(0.0)
    for job in Job.objects.exclude(state="dead"):
        world.report(job, *Task.objects.filter(job=job, state="running", up=False).values_list("index", flat=True))


def become_unhealthy(job: str) -> None:
    """Let the first task of the job fail its health checks now."""
    task = Task.objects.get(job__name=job, index=0)
    with journal.write(task.cell_id, rows.ME) as entry:
        seen = Observation(task.pk, task.incarnation, "up", Health.UNHEALTHY.value, up=False)
        reported_states.tasks_observe(entry, [seen])


def weights_in_dns(resolver: Resolver) -> dict[str, int]:
    """Return the weight per task in the SRV answer, by job."""
    response = resolver.ask(f"_http._tcp.{NAME}", "SRV", patience_s=2.0)  # it may not listen yet
    return {rdata.target.to_text().split(".")[1]: rdata.weight for rrset in response.answer for rdata in rrset}


def until(wanted: Callable[[], bool], cell_id: int) -> None:
    """Let a master look at the switches, until the condition is true."""
    deadline = time.monotonic() + BOUND_S
    while not wanted():
        assert time.monotonic() < deadline, "not within the bound"
        switches_turn(cell_id)
        time.sleep(0.05)


def test_a_store_is_switched_returns_by_itself_and_is_switched_again(
    cell, tenant, tmp_path: Path, shared_portal
) -> None:
    for number in range(2):
        rows.a_machine(cell, f"m{number}")
    ann = cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)
    folder = Path("examples/blue-green").absolute()
    ann.out("submit", os.fspath(folder / "blue.jsonnet"))
    turn(Master(cell.id))
    ann.out("service", "weights", "store", "blue=100")
    ann.out("submit", os.fspath(folder / "green.jsonnet"))
    resolver = Resolver(free_port())
    try:
        resolver.until(lambda: weights_in_dns(resolver) == {"store-blue": 100})
        assert "Track green gets no clients" in ann.out("service", "show", "store")
        assert "its tracks are blue, green" in ann.failing("service", "weights", "store", "red=1")[0]
        assert "is not a track with a weight" in ann.failing("service", "weights", "store", "blue", status=2)[0]

        # The switch waits for the health of green, and a task that fails takes the clients back.
        begun = ann.out("service", "switch", "store", "--to", "green", "--step", "25", "--every", "1h")
        assert "The next step is at" in begun
        switches_turn(cell.id)
        assert ServiceWeighting.objects.get().weights == {"blue": 100}, "green is not up"
        turn(Master(cell.id))
        until(lambda: ServiceWeighting.objects.get().weights == {"blue": 75, "green": 25}, cell.id)
        resolver.until(lambda: weights_in_dns(resolver) == {"store-blue": 75, "store-green": 25})
        become_unhealthy("store-green")
        until(lambda: ServiceWeighting.objects.get().weights == {"blue": 100}, cell.id)
        resolver.until(lambda: set(weights_in_dns(resolver)) == {"store-blue"})
        assert "a task of track green, store-green/0, failed" in ann.out("service", "weights", "store")

        # The next try moves all clients, and each step is done by another master.
        turn(Master(cell.id))
        ann.out("service", "switch", "store", "--to", "green", "--step", "50", "--every", "1s", "--stop-old")
        until(lambda: ServiceWeighting.objects.get().switch["state"] == "done", cell.id)
        resolver.until(lambda: set(weights_in_dns(resolver)) == {"store-green"})
        assert [one["name"] for one in ann.json("service", "show", "store")["stopped"]] == ["store-blue"]
        assert "is done" in ann.out("service", "weights", "store")

        # Blue comes back without clients, and a switch to it takes effect at once.
        ann.out("service", "start", "store", "--yes")
        turn(Master(cell.id))
        resolver.until(lambda: set(weights_in_dns(resolver)) == {"store-green"})
        ann.out("service", "switch", "store", "--to", "store-blue")
        until(lambda: ServiceWeighting.objects.get().weights == {"green": 0, "blue": 100}, cell.id)
        resolver.until(lambda: set(weights_in_dns(resolver)) == {"store-blue"})
        assert validate(cell.id) == []
    finally:
        assert resolver.stop() == 0
