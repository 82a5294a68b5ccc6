"""A full-size cell as a folder for `make up`: 10,000 machines, 5,000 jobs, 150,000 running tasks, one million events.

The cell is created once and kept in `build/full-cell`, until a migration is added or this file changes. Each benchmark
gets a copy. The master places the tasks. The machines are rows without Borglets.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.bench.commit import Bench
from tests.bench.installation import Installation, installation

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "full-cell"
MACHINES, JOBS, TASKS, EVENTS = 10_000, 5_000, 150_000, 1_000_000
TENANTS = 20
SEED = 14
BULK = 250
_WITHIN_S = 900.0


@contextmanager
def full_cell(*, standbys: int = 0) -> Iterator[Installation]:
    """Start an installation on a copy of the full-size cell, and yield it. `users` returns its users. `standbys`: the
    number of standby masters.
    """
    home = FOLDER / _stamp() / "home"
    if not home.is_dir():
        shutil.rmtree(FOLDER, ignore_errors=True)
        print("making the full-size cell; this takes minutes", file=sys.stderr)
        _in_a_process(_make, home)
    with tempfile.TemporaryDirectory(prefix="borg-bench-") as folder:
        Path(folder).chmod(0o711)
        copy = Path(folder) / "home"
        subprocess.run(["cp", "-a", "--reflink=auto", str(home), str(copy)], check=True)
        with installation(home=copy, standbys=standbys) as where:
            yield where


def users(where: Installation) -> list[dict[str, str]]:
    """Return `{"name", "tenant", "token", "session"}` of each user. The last user is an SRE."""
    found: list[dict[str, str]] = json.loads((where.home / "users.json").read_text())
    return found


def _stamp() -> str:
    migrations = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/migrations/*.py"))
    return hashlib.sha256(Path(__file__).read_bytes() + "\n".join(migrations).encode()).hexdigest()[:16]


def _make(home: Path) -> None:
    home.parent.mkdir(parents=True)
    unfinished = home.with_name("unfinished")
    with installation(home=unfinished) as where:
        bench = Bench(where, machines=MACHINES)
        bench.clear()
        submit_jobs(bench, JOBS, TASKS)
        fill_journal(bench, EVENTS)
        create_users(where)
        vacuum()
    unfinished.rename(home)


def _in_a_process(work: Callable[[Path], None], home: Path) -> None:
    """Run `work(home)` in a process of its own, because Django takes the address of its database only once."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=(home,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the full-size cell was not made: its process ended with {process.exitcode}")


def submit_jobs(bench: Bench, jobs: int, tasks: int) -> None:
    """Submit `jobs` jobs with `tasks` tasks in total, and wait until all tasks run."""
    rng = np.random.default_rng(SEED)
    # Most jobs are small, and few have most of the tasks (§5.1).
    sizes = np.maximum(1, rng.pareto(1.05, jobs) * 5).clip(max=2_000)
    sizes = np.maximum(1, (sizes * tasks / sizes.sum()).astype(int))
    sizes[int(sizes.argmax())] += tasks - int(sizes.sum())
    client = bench.client
    for number in range(TENANTS):
        tenant = f"t{number:02d}"
        client.post("/api/v1/tenants/", {"name": tenant})
        for band in ("production", "batch"):
            amounts = {"cpu": 10**8, "ram": 2**50, "disk": 2**52}
            grant = {"tenant": tenant, "cell": bench.cell, "band": band, "amounts": amounts, "reason": "bench"}
            client.post("/api/v1/quota/grants/", grant | {"beyond_capacity": True})
    files = [_file(number, int(size), rng) for number, size in enumerate(sizes)]
    for first in range(0, jobs, BULK):
        answer = client.post(f"/api/v1/cells/{bench.cell}/jobs:bulk", files[first : first + BULK])
        if answer["refused"]:
            raise RuntimeError(str(answer["results"][0]))
    bench.wait_for_running(tasks, within_s=_WITHIN_S)


def _file(number: int, tasks: int, rng: np.random.Generator) -> dict[str, object]:
    cpu, ram = int(rng.integers(1, 9)) * 50, int(rng.integers(1, 9)) * 64
    server = bool(rng.random() < 0.5)
    return {
        "name": f"job{number}" if not server else f"web{number}",
        "tenant": f"t{number % TENANTS:02d}",
        "priority": 200 if server else 100,
        "tasks": tasks,
        "labels": {"team": f"team{number % 50}"},
        "task": {
            "command": ["/bin/server", *(["--port=$(port.http)"] if server else [])],
            "limit": {"cpu": f"{cpu}m", "ram": f"{ram}Mi", "disk": "64Mi"},
            **({"ports": ["http"]} if server else {}),
        },
    }


def fill_journal(bench: Bench, wanted: int, *, restarts: int = 0) -> int:
    """Write events of restarting tasks until the journal has at least `wanted` events. All tasks are up afterwards.

    `restarts`: the number of restarts of each task before. Return the new number.
    """
    from quota.vocabulary.permissions import system
    from scheduling.journal import journal
    from scheduling.models import Event, Task
    from scheduling.tasks.reported_states import Observation, tasks_observe

    rows = list(Task.objects.filter(state="running").order_by("id").values_list("id", "incarnation"))
    while True:
        missing = wanted - Event.objects.count()
        last = missing <= len(rows)
        for first in range(0, len(rows), journal.CHUNK):
            with journal.write(bench.cell_id, system("bench")) as entry:
                tasks_observe(
                    entry,
                    [
                        Observation(identity, incarnation, "up", "healthy", up=True, restarts=restarts)
                        for identity, incarnation in rows[first : first + journal.CHUNK]
                    ],
                )
        restarts += 1
        if last:
            return restarts


def create_users(where: Installation) -> None:
    """Create one owner per tenant and one SRE, and write their tokens and sessions to `users.json` in the home
    folder."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    from quota.models import Membership, Tenant
    from quota.tenancy.tokens import token_issue
    from quota.vocabulary.permissions import system

    made = []
    for number in range(TENANTS + 1):
        sre = number == TENANTS
        user = get_user_model().objects.create(username=f"user{number}", is_staff=sre)
        user.set_unusable_password()
        user.save()
        tenant = Tenant.objects.get(name=f"t{number % TENANTS:02d}")
        Membership.objects.create(user=user, tenant=tenant, role="owner")
        scopes = ["read", "write", *(["admin"] if sre else [])]
        _, secret = token_issue(principal=system("bench"), user=user, name="bench", scopes=scopes)
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        session = client.cookies["sessionid"].value
        made.append({"name": user.username, "tenant": tenant.name, "token": secret, "session": session})
    (where.home / "users.json").write_text(json.dumps(made))


def vacuum() -> None:
    """Run VACUUM ANALYZE on all tables, and write a checkpoint of PostgreSQL."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


if __name__ == "__main__":
    os.environ.setdefault("BORG_LOG_LEVEL", "WARNING")
    with full_cell() as up:
        print(up.home, up.port, file=sys.stderr)
        input("Enter ends it. ")
