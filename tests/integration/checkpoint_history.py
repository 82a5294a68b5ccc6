"""A random history of a real cell: submissions, updates, allocs, reservations, packages, drains and failures."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.machines.machines import machine_remove, machines_down
from scheduling.models import Machine, Task
from scheduling.tasks.reservations import reservations_set
from tests.integration import rows, world
from tests.integration.test_allocs import envelope, inside
from tests.integration.test_scenarios import CAPACITY, PRIORITIES, Cell

SRE = system("sre")


class History(Cell):
    """The random cell of `tests.integration.test_scenarios`, with more kinds of steps such as `reserve`.

    The order of the steps depends only on the seed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.begin(self._wanted(), self._wanted())
        for band in ("production", "batch"):
            rows.grant(self.tenant, self.row, band)
        shelf = {**envelope(), "task": {"limit": {"cpu": "200m", "ram": "200Mi", "disk": "200Mi"}}}
        world.submit(SRE, self.row, shelf, tenant=self.tenant.name)
        world.submit(SRE, self.row, inside("inner", tasks=2), tenant=self.tenant.name)

    def step(self) -> None:
        """Make one random change of the cell, for example update a job, end a task, or let a machine fail."""
        number = self.random.randrange(3)
        name = self.random.choice(("web", "db"))
        choices: list[Callable[[], object]] = [
            lambda: self.apply(name, self._wanted()),
            lambda: self.undo(name),
            lambda: self.kill(name, self.random.randrange(4)),
            lambda: self.kill_one(name, self.random.randrange(5)),
            lambda: self.drain(number, self.random.random() < 0.7),
            lambda: self.ends(number, self.random.randrange(10), self.random.randrange(2)),
            lambda: self.falls_silent(number),
            lambda: self.drain(number, out=True),
            self.reserve,
            self.install,
            self.replace_machine,
            *[self.work] * 6,
            *[self.roll, self.leave, self.pass_] * 2,
        ]
        self.random.choice(choices)()

    def reserve(self) -> None:
        """Change the reservations of up to four running tasks."""
        running = list(Task.objects.filter(cell=self.row, state="running").values_list("id", "incarnation")[:4])
        with journal.write(self.row.id, SRE) as entry:
            reservations_set(
                entry,
                np.array([task for task, _ in running], dtype=np.int64),
                np.array([incarnation for _, incarnation in running], dtype=np.int32),
                np.array([[self.random.randrange(100), 2**20, 2**20] for _ in running], dtype=np.int64).reshape(-1, 3),
            )

    def install(self) -> None:
        """Change the set of packages that a random machine holds."""
        machine = self.random.choice(self.cell.machines).row
        before = set(Machine.objects.get(pk=machine.pk).packages)
        after = {f"sha256:{n}" for n in range(3) if self.random.random() < 0.5}
        with journal.write(self.row.id, SRE) as entry:
            Machine.objects.filter(pk=machine.pk).update(packages=sorted(after))
            came = dict.fromkeys(after - before, (machine.pk,))
            went = dict.fromkeys(before - after, (machine.pk,))
            if came or went:
                entry.append(events.PackagesHeld(came=came, went=went))

    def replace_machine(self) -> None:
        """Add a machine without a Borglet, and remove the machine that the last call added."""
        old = Machine.objects.filter(cell=self.row, hostname__startswith="spare").exclude(state="removed").first()
        if old is not None:
            machines_down(principal=SRE, cell_id=self.row.id, machine_ids=[old.id], reason="old")
            old.refresh_from_db()
            machine_remove(principal=SRE, machine=old, reason="old")
        rows.a_machine(self.row, f"spare{self.random.randrange(10**9)}", capacity=CAPACITY, rack="spare")

    def _wanted(self) -> dict[str, object]:
        return {
            "priority": self.random.choice(PRIORITIES),
            "tasks": self.random.randint(1, 5),
            "command": self.random.choice(("serve", "serve --faster")),
            "cpu": self.random.choice((100, 300, 600)),
            "restart": self.random.choice(("failure", "never")),
            "max_down": self.random.randint(0, 2),
            "leave_s": None,
        }
