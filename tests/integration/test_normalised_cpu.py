"""Tests of normalised CPU (§5.4): machines of two platforms, whose cores do different amounts of work."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from borglet.identity.join import join_request
from borglet.machine_specs import read_fleet
from borglet.messages import Hello, RunTask, Usage, UsageWindow
from borglet.usage_windows import QUANTILES, TAIL
from quota.models import CellCapacity
from quota.vocabulary.errors import Rejected
from scheduling.cells.cells import cell_change
from scheduling.journal.sql import query
from scheduling.link.shard import writer
from scheduling.machines import machines
from scheduling.machines.joining import join_token_issue, machines_join
from scheduling.master.invariants import replay_journal, validate
from scheduling.master.loop import Master
from scheduling.master.snapshot import load_state
from scheduling.models import Event, Machine, Task
from scheduling.usage import live_usage
from scheduling.usage.usage_windows import TABLE
from tests.integration import cli_world, rows, world
from tests.integration.link_world import Played, a_join, place, ran, running_link, task, until
from tests.integration.link_world import a_job as a_played_job
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)
PLATFORMS = {"m-fast": "skylake", "m-slow": "atom", "m-plain": "haswell"}


def factors(cell, text: str | None) -> None:
    cell_change(principal=rows.ME, cell=cell, changes={"cpu_factors": text})


def join(cell, *names: str, **changed) -> None:
    token = join_token_issue(principal=rows.ME, cell=cell, uses=len(names))
    machines_join([a_join(token, name, platform=PLATFORMS[name], **changed) for name in names])


def hello(name: str, cpu: int) -> None:
    machine = Machine.objects.get(hostname=name)
    capacity = {"cpu": cpu, "ram": machine.capacity[1], "disk": machine.capacity[2]}
    answer = writer.greet(machine.cell_id, {machine.id: Hello(1, name, "boot", "1", capacity=capacity)})
    assert isinstance(answer[machine.id], int)


def cpu_of(*names: str) -> list[tuple[int, int | None]]:
    found = {one.hostname: (one.capacity[0], one.machine_cpu) for one in Machine.objects.all()}
    return [found[name] for name in names]


def test_the_cpu_of_machines_is_counted_with_the_factor_of_their_platform(cell) -> None:
    factors(cell, "skylake=1.25, atom=0.5")
    join(cell, *PLATFORMS)
    assert cpu_of(*PLATFORMS) == [(5000, 4000), (2000, 4000), (4000, None)]
    assert CellCapacity.objects.get(cell="cc").capacity[0] == 11_000
    hello("m-fast", 4000)
    hello("m-fast", 2000)
    assert cpu_of("m-fast") == [(2500, 2000)]
    hello("m-fast", 4000)
    assert cpu_of("m-fast") == [(5000, 4000)], "this much was accepted before"
    hello("m-fast", 8000)
    fast = Machine.objects.get(hostname="m-fast")
    assert (cpu_of("m-fast"), fast.attributes["capacity.claimed"]) == ([(5000, 4000)], "cpu 8000")
    machines.machine_grow(principal=rows.ME, machine=fast, capacity={"cpu": 8})
    assert cpu_of("m-fast") == [(10_000, 8000)]
    with pytest.raises(Rejected, match="platform atom is named twice"):
        factors(cell, "atom=1, atom=2")
    cell.study_of = {"cell": "other"}
    factors(cell, "skylake=3")
    assert cpu_of("m-fast") == [(10_000, 8000)], "a study cell keeps the capacities of its checkpoint"
    factors(cell, "skylake=1.25, atom=0.5")


def test_a_change_of_factors_counts_machines_again_and_stops_no_task(cell, tenant, ann) -> None:
    join(cell, *PLATFORMS)
    before = {one.hostname: (one.capacity, one.machine_cpu, one.cpu_factor) for one in Machine.objects.all()}
    slow = Machine.objects.get(hostname="m-slow")
    job = world.submit(ann, cell, world.with_task(tasks=2, limit={"cpu": "1800m", "ram": "64Mi", "disk": "64Mi"}))
    world.place(job, slow, 0, 1)
    factors(cell, "atom=0.5, skylake=2")
    assert cpu_of(*PLATFORMS) == [(8000, 4000), (2000, 4000), (4000, None)]
    changed = Event.objects.filter(cell_id=cell.id, kind="machine.set", data__reason__icontains="CPU factor")
    assert sorted(event.machine_id for event in changed) == sorted(
        Machine.objects.filter(hostname__in=["m-fast", "m-slow"]).values_list("id", flat=True)
    )
    assert Task.objects.filter(machine=slow, state="running").count() == 2, "they ask for more than the machine has now"
    assert validate(cell.id) == [
        f"machine {slow.id}: prod tasks have limits of 3600 cpu, its capacity is 2000: it shrank, or was over-committed"
    ]
    world.submit(ann, cell, world.with_task("more", tasks=5, limit={"cpu": "800m", "ram": "64Mi", "disk": "64Mi"}))
    Master(cell.id).run(0.0)
    assert not Task.objects.filter(job__name="more", machine=slow).exists()
    assert Task.objects.filter(job__name="more", state="running").count() == 5
    state, replayed = load_state(cell.id), replay_journal(cell.id)
    assert replayed is not None
    assert state.diff(replayed) == []
    # A process of the release before has written a machine without its factor.
    Machine.objects.filter(hostname="m-fast").update(cpu_factor=1000, machine_cpu=None)
    assert any(
        "m-fast has the CPU factor 1, but the factor of its platform is 2" in problem for problem in validate(cell.id)
    )
    Machine.objects.filter(hostname="m-fast").update(capacity=[4000, *slow.capacity[1:]])
    factors(cell, "atom=0.5, skylake=2")
    assert cpu_of("m-fast") == [(8000, 4000)], "the same text repairs it"
    factors(cell, None)
    after = {one.hostname: (one.capacity, one.machine_cpu, one.cpu_factor) for one in Machine.objects.all()}
    assert after == before


def test_a_machine_gets_limits_and_reports_usage_in_its_own_cores() -> None:
    cell = rows.a_cell()
    factors(cell, "skylake=1.25")
    job = a_played_job(cell)
    with running_link() as link:
        token = join_token_issue(principal=rows.ME, cell=cell)
        status, answer = link.join(token, "m1", platform="skylake")
        assert status == 200
        with link.dial("m1", answer["secret"]) as socket:
            machine = Played(socket, "m1", answer["secret"])
            machine.hello()
            row = Machine.objects.get()
            key = place(job, row.id)
            poll = machine.poll_with_desired(lambda desired: bool(desired.run))
            (run,) = poll.desired.run
            assert isinstance(run, RunTask)
            assert run.limit["cpu"] == 80
            now = int(time.time()) // 300 * 300 - 300
            window = UsageWindow(
                key, now, 300, 60, 400, 400, 400, [400] * len(QUANTILES), [400] * len(TAIL), 7, 8, 80, 9
            )
            machine.report(
                poll, ran(key, usage=Usage(cpu_milli=200, processes=1)), usage=Usage(cpu_milli=800), windows=[window]
            )
            found = machine.keep_answering(lambda: usage_of(row))
            assert found == {-row.id: 1000, Task.objects.get().id: 250}
            stored = machine.keep_answering(windows_stored)
            assert stored == [(0.5, 0.1)]
            factors(cell, "skylake=2")
            again = machine.poll_with_desired(lambda desired: bool(desired.run))
            assert again.desired.run[0].limit["cpu"] == 50, "the limit changes in place"


def test_the_control_group_of_a_task_has_the_cores_of_the_machine(tmp_path) -> None:
    cell = rows.a_cell()
    factors(cell, "skylake=2")
    (folder := tmp_path / "out").mkdir(mode=0o777)
    folder.chmod(0o777)
    tmp_path.chmod(0o711)
    command = ["sh", "-c", f"cat /proc/self/cgroup > {folder}/groups; exec sleep 3600"]
    job = a_played_job(cell, command=command, slack={"cpu": False})
    with running_link() as link, contextlib.closing(Borglet(tmp_path / "home", link, platform="skylake")) as borglet:
        borglet.start(join_token_issue(principal=rows.ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        machine = Machine.objects.get()
        assert machine.capacity[0] == 2 * machine.machine_cpu
        place(job, machine.id)
        until(lambda: task(job).up, what="up")
        if machine.attributes["isolation.cpu_quota"] == "none":
            pytest.skip("the kernel limits no CPU here")
        groups = until(lambda: (folder / "groups").exists() and (folder / "groups").read_text(), what="its groups")
        assert until(lambda: quota_of(groups) == 50, what="half of 100 milli-cores") is True
        factors(cell, "skylake=0.5")
        until(lambda: quota_of(groups) == 200, what="twice 100 milli-cores, without a restart")
        assert task(job).restarts == 0


def quota_of(groups: str) -> int:
    """Return the CPU quota of a task in milli-cores. `groups`: the control groups of one of its processes."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for folder in Path("/sys/fs/cgroup").glob("*cpu*"):
            if controllers in ("cpu", "cpu,cpuacct") and (found := folder / path[1:] / "cpu.cfs_quota_us").exists():
                period = found.with_name("cpu.cfs_period_us").read_text()
                return 1000 * int(found.read_text()) // int(period)
        if not controllers and (found := Path("/sys/fs/cgroup") / path[1:] / "cpu.max").exists():
            quota, period = found.read_text().split()
            return 0 if quota == "max" else 1000 * int(quota) // int(period)
    return 0


def usage_of(machine: Machine) -> dict[int, int]:
    _, samples = live_usage.read_machines(machine.cell_id, [machine.id])
    found = {int(row["task_id"]): int(row["cpu_milli"]) for row in samples}
    return found if len(found) == 2 else {}


def windows_stored() -> list[tuple[float, float]]:
    return query(f"SELECT average_usage_cpus, assigned_cpus FROM {TABLE}")


def test_the_surfaces_show_normalised_cores_and_those_of_the_machine(cell, tenant, tmp_path, shared_portal) -> None:
    sre = cli_world.of(tmp_path, shared_portal, "sre", sre=True)
    fleet = read_fleet(Path("examples/two-platforms.csv"))
    token = join_token_issue(principal=rows.ME, cell=cell, uses=len(fleet))
    machines_join([join_request(spec, {}, token, ports=(20000, 29999)) for spec in fleet])
    assert "factor" not in sre.out("machine", "show", "new-0")
    message, _ = sre.failing("cell", "set", "cpu_factors=skylake=fast")
    assert "the factor of platform skylake is 'fast'; give a number from 0.1 to 10" in message
    shown = sre.out("cell", "set", "cpu_factors=haswell=1, skylake=1.25, skylke=2", "--dry-run")
    assert "platform skylake, factor 1.25: 2 machines; 16 cores count as 20" in shown
    assert "platform skylke, factor 2: no machine has this platform" in shown
    assert Machine.objects.filter(cpu_factor=1000).count() == 4
    sre.out("cell", "set", "cpu_factors=haswell=1, skylake=1.25")
    assert "(cpu of the machine: 8; the factor of its platform is 1.25)" in sre.out("machine", "show", "new-0")
    shown = sre.json("machine", "show", "new-0")
    assert (shown["capacity"]["cpu"], shown["machine_cpu"], shown["cpu_factor"]) == (10_000, 8_000, 1.25)
    shown = sre.json("machine", "show", "old-0")
    assert (shown["capacity"]["cpu"], shown["machine_cpu"], shown["cpu_factor"]) == (8_000, 8_000, 1.0)
    assert "(cpu of the machine: 12; the factor" in sre.out("machine", "grow", "new-1", "--cpu", "12")
    browser = Client()
    browser.force_login(world.a_user("sre", sre=True))
    page = browser.get(reverse("sigma:machine", args=[cell.name, "new-0"])).text
    assert '<dt>CPU of the machine</dt><dd>8 cores <span class="soft">platform factor 1.25</span></dd>' in page
    assert "platform factor" not in browser.get(reverse("sigma:machine", args=[cell.name, "old-0"])).text
    stored = reverse("admin:scheduling_machine_change", args=[Machine.objects.get(hostname="new-0").pk])
    assert "8 cores × 1.25" in browser.get(stored).text
