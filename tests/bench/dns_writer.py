"""Change names of a cell at a steady rate, with the functions of the link and the master, for
`tests.bench.dns_changes`.

    dns_writer.py PORT PART PARTS

PARTS processes run at the same time. Each has its own tasks, and makes its part of 1,000 changes per second. A
transaction changes ten unrelated tasks (BENCH_EVENTS). Each task goes through five changes, two seconds apart:
unhealthy, healthy, evicted, placed on another machine, up.

For about half of the transactions, the process sends one change as JSON to UDP port PORT of the loopback: when COMMIT
returned, the name to query, and what the answer will show. For each line on standard input it prints the number of
changes so far as JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

CHANGES = 1_000  # per second, over all parts
EVENTS = int(os.environ.get("BENCH_EVENTS", "10"))
EVERY_S = EVENTS / CHANGES
LAG_S = 2.0  # between two changes of one task
SAMPLED = 0.5  # share of the transactions of which one change is sent
STAGES = 5
PORT_LOW = 20_000


class Writer:
    """Make the changes of one part of the tasks.

    `tell(at, task id, record type, shows)` is called after a commit. `at`: seconds of the monotonic clock.
    """

    def __init__(self, cell_id: int, tell: Callable[[float, int, str, str], None], *, part: int, parts: int) -> None:
        from scheduling.models import Cell, Machine, Task

        self.cell_id = cell_id
        self.history = Cell.objects.get(pk=cell_id).history_id.hex
        machines = Machine.objects.filter(cell_id=cell_id).order_by("id")
        self.machines: list[tuple[int, str]] = list(machines.values_list("id", "address"))
        self.sessions: dict[int, int] = dict(machines.values_list("id", "session"))
        tasks = Task.objects.filter(cell_id=cell_id).order_by("id")
        self.incarnations: dict[int, int] = dict(tasks.values_list("id", "incarnation"))
        self.where: dict[int, int] = dict(tasks.values_list("id", "machine_id"))
        self.random = random.Random(7)
        order = sorted(self.incarnations)
        self.random.shuffle(order)
        self.blocks = [order[at : at + EVENTS] for at in range(0, len(order), EVENTS)][part::parts]
        self.every_s = EVERY_S * parts
        self.send_report = tell
        self.changes = self.transactions = 0
        self.late_s = 0.0

    def step(self, number: int) -> None:
        """Commit transaction `number`. Do nothing if the tasks of its block are not yet ready for their next change."""
        stage = number % STAGES
        block = number // STAGES - stage * round(LAG_S / self.every_s / STAGES)
        if block < 0:
            return
        ids = self.blocks[block % len(self.blocks)]
        change = (self._sick, self._well, self._evict, self._place, self._well)[stage]
        shows = self._committed(lambda: change(ids))
        if self.random.random() < SAMPLED:
            chosen = self.random.choice(ids)
            self.send_report(self.at, chosen, *shows(chosen))

    def _committed(self, change: Callable[[], Callable[[int], tuple[str, str]]]) -> Any:
        """Run `change` in a transaction and return its result. `self.at` is set when COMMIT returns."""
        from django.db import transaction

        with transaction.atomic():
            transaction.on_commit(self._note)
            result = change()
        self.transactions += 1
        self.changes += EVENTS
        return result

    def _note(self) -> None:
        self.at = time.monotonic()

    def _sick(self, ids: Sequence[int]) -> Callable[[int], tuple[str, str]]:
        self._report(ids, "unhealthy")
        return lambda _: ("TXT", "health=unhealthy")

    def _well(self, ids: Sequence[int]) -> Callable[[int], tuple[str, str]]:
        self._report(ids, "healthy")
        return lambda _: ("TXT", "serving=yes")

    def _report(self, ids: Sequence[int], health: str) -> None:
        """Write reports of ten machines about one task each, with the function of the link shard."""
        from scheduling.core.vocabulary.states import Observation
        from scheduling.link.shard import writer
        from scheduling.link.views.report_changes import ReportChanges

        up = health == "healthy"
        news = [
            writer.MachineReportChanges(
                self.where[one],
                self.sessions[self.where[one]],
                self.history,
                ReportChanges(seen=[Observation(one, self.incarnations[one], "up", health, up, 0)]),
            )
            for one in ids
        ]
        refused = writer.apply(self.cell_id, news)
        assert not refused, refused

    def _evict(self, ids: Sequence[int]) -> Callable[[int], tuple[str, str]]:
        from scheduling.core.vocabulary import task_events
        from scheduling.journal import journal
        from scheduling.link.shard.writer import ME
        from scheduling.tasks import transitions

        with journal.write(self.cell_id, ME) as entry:
            evictions = [task_events.Eviction(one, self.incarnations[one], "preemption") for one in ids]
            assert len(transitions.tasks_evict(entry, evictions)) == len(ids)
        return lambda _: ("A", "")

    def _place(self, ids: Sequence[int]) -> Callable[[int], tuple[str, str]]:
        """Place the tasks with the master's function, which checks the plan again and commits it."""
        from scheduling.core.vocabulary.plan import Assignment, Plan
        from scheduling.core.vocabulary.requirement import split_task_id
        from scheduling.journal import journal
        from scheduling.link.shard.writer import ME
        from scheduling.master import commit

        addresses = {}
        assignments = []
        for one in ids:
            machine, addresses[one] = self.random.choice(self.machines)
            job, index = split_task_id(one)
            assignments.append(Assignment(job, index, machine, ports=(PORT_LOW + index,)))
            self.where[one] = machine
            self.incarnations[one] += 1
        while assignments:
            # The commit rejects a placement if another part has used the capacity. Repeat those.
            plan = Plan(journal.newest(self.cell_id), tuple(assignments))
            assignments = commit.commit(self.cell_id, plan, principal=ME).refused
        return lambda one: ("A", addresses[one])


def main() -> None:
    import django

    django.setup()
    from scheduling.core.vocabulary.requirement import split_task_id
    from scheduling.models import Cell, Job

    told = socket.socket(type=socket.SOCK_DGRAM)
    told.connect(("127.0.0.1", int(sys.argv[1])))
    names = dict(Job.objects.values_list("id", "name"))

    def send_report(at: float, identity: int, rdtype: str, shows: str) -> None:
        job, index = split_task_id(identity)
        sample = {"at": at, "name": f"{index}.{names[job]}", "type": rdtype, "shows": shows}
        told.send(json.dumps(sample).encode())

    part, parts = int(sys.argv[2]), int(sys.argv[3])
    writer = Writer(Cell.objects.get().id, send_report, part=part, parts=parts)
    began = time.monotonic()
    for number in count():
        due = began + number * writer.every_s
        while select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            if not sys.stdin.readline():
                return
            done = {"changes": writer.changes, "transactions": writer.transactions, "late_s": writer.late_s}
            print(json.dumps(done), flush=True)
        writer.late_s = max(0.0, time.monotonic() - due)
        writer.step(number)


if __name__ == "__main__":
    main()
