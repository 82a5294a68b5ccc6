"""`cron`: how late the runs of 10,000 cron jobs are submitted, also while the processes that submit them are killed.

Two processes of a master run, as `make up` starts them: the scheduler of the cell, which works, and its idle second
scheduler. PostgreSQL has durable commits. Lateness is the time from the due time of a run until another session of the
database sees the run, so it includes up to 50 ms between two looks of that session.

Cases:

    minute     all runs are due at the same moment: seconds until the last one is submitted (target: 10)
    spread     the due times are spread over ten minutes: p99 of the lateness in seconds (target: 1). Each process is
               killed with SIGKILL once, and started again after two seconds; `after_kill` is the worst lateness in the
               ten seconds after a kill (target: 5)

The cron jobs have different jobs, so each job is parsed. Each result counts the runs that are `lost` or submitted
`twice`. `load`: the load average before.

    BENCH_ENTRIES=1000 BENCH_SPREAD_S=60 BENCH_CASES=spread     a shorter bench
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.databases import databases

CELL, TENANTS = "clock", 10
_POLL_S, _WAIT_S, _RESTART_S, _READY_S = 0.05, 120.0, 2.0, 20.0
_AFTER_KILL_S = 10.0
_TARGETS = {"minute": 10.0, "spread": 1.0, "after_kill": 5.0}


def measure() -> Iterator[dict[str, Any]]:
    entries, spread_s = int(os.environ.get("BENCH_ENTRIES", "10000")), float(os.environ.get("BENCH_SPREAD_S", "600"))
    with databases() as home:
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        cell_id = _make_cell(entries)
        with ExitStack() as cleanup:
            masters = _Masters(home, cleanup)
            time.sleep(_READY_S)  # the masters load the state
            for case, seconds in (("minute", 0.0), ("spread", spread_s)):
                if case in os.environ.get("BENCH_CASES", "minute,spread").split(","):
                    yield _measure(case, cell_id, seconds, masters)


class _Masters:
    """The processes of the cell's master."""

    def __init__(self, home: Path, cleanup: ExitStack) -> None:
        self._log = cleanup.enter_context((home / "masters.log").open("ab"))
        self._env = {**os.environ, "DJANGO_SETTINGS_MODULE": "portal.settings.test"}
        self.names = [f"{CELL}.batch", CELL]
        self._running = {name: self._start(name) for name in self.names}
        cleanup.callback(lambda: [self.kill(name) for name in self.names])

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def restart(self, name: str) -> None:
        self._running[name] = self._start(name)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "scheduling.master", name]
        return subprocess.Popen(command, env=self._env, stdout=self._log, stderr=self._log)


def _make_cell(entries: int) -> int:
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from quota.admission.band_changes import bands_ensure
    from quota.models import Membership, Tenant
    from quota.vocabulary.permissions import system
    from scheduling.cron import cron_spec
    from scheduling.models import Cell, CronJob
    from scheduling.spec.parser import CellLimits

    bands_ensure(principal=system("bench"))
    cell = Cell.objects.create(name=CELL)
    user = get_user_model().objects.create(username="ann")
    tenants = [Tenant.objects.create(name=f"t{number}", max_jobs=10**6) for number in range(TENANTS)]
    Membership.objects.bulk_create(Membership(user=user, tenant=tenant, role="operator") for tenant in tenants)
    task = {"command": ["report"], "limit": {"cpu": "100m", "ram": "64Mi"}, "env": {"FORMAT": "pdf"}}
    file = {"name": "n", "kind": "CronJob", "schedule": "0 0 1 1 *", "job": {"task": task}}
    spec, now = cron_spec.parse(file, limits=CellLimits()), timezone.now()
    CronJob.objects.bulk_create(
        CronJob(
            cell=cell,
            tenant=tenants[number % TENANTS],
            name=f"report-{number}",
            schedule=spec.schedule,
            time_zone="Europe/Berlin",
            overlap="allow",
            catch_up_s=600.0,
            keep_runs=100,
            template={**spec.template, "task": {**spec.template["task"], "env": {"REPORT": str(number)}}},
            tasks=1,
            digest=spec.digest(),
            owner=user,
            owner_name="ann",
            created_at=now,
            changed_at=now,
        )
        for number in range(entries)
    )
    return cell.pk


def _measure(case: str, cell_id: int, seconds: float, masters: _Masters) -> dict[str, Any]:
    from scheduling.journal.sql import query
    from scheduling.models import CronRun

    load = round(os.getloadavg()[0], 1)
    before = query("SELECT coalesce(max(id), 0) FROM scheduling_cronrun")[0][0]
    start = query(
        "UPDATE scheduling_cronjob AS c SET next_at = n.start + make_interval(secs => n.place * %s)"
        " FROM (SELECT id, clock.start, (row_number() OVER (ORDER BY md5(id::text)) - 1)::float8 / count(*) OVER () AS"
        " place FROM scheduling_cronjob, (SELECT clock_timestamp() + interval '5 s' AS start) AS clock WHERE cell_id ="
        " %s) AS n WHERE c.id = n.id RETURNING n.start",
        [seconds, cell_id],
    )
    entries, began = len(start), start[0][0]
    kills = [began + dt.timedelta(seconds=seconds * part) for part in (0.3, 0.6)] if seconds else []
    todo = [(at, masters.kill, name) for at, name in zip(kills, masters.names, strict=False)]
    todo += [(at + dt.timedelta(seconds=_RESTART_S), masters.restart, name) for at, _, name in todo]
    todo.sort(key=lambda step: step[0])
    late: list[tuple[dt.datetime, float]] = []
    last, until = before, began + dt.timedelta(seconds=seconds + _WAIT_S)
    while len(late) < entries:
        rows = query("SELECT id, due_at, clock_timestamp() FROM scheduling_cronrun WHERE id > %s ORDER BY id", [last])
        now = rows[0][2] if rows else query("SELECT clock_timestamp()")[0][0]
        if rows:
            last = rows[-1][0]
            late += [(due_at, (now - due_at).total_seconds()) for _, due_at, _ in rows]
        while todo and now >= todo[0][0]:
            _, act, name = todo.pop(0)
            act(name)
        if now > until:
            break
        time.sleep(_POLL_S)
    figures = sorted(seconds for _, seconds in late) or [_WAIT_S]
    after = [s for due, s in late if any(0 <= (due - at).total_seconds() < _AFTER_KILL_S for at in kills)]
    twice = query(
        "SELECT count(*) - count(DISTINCT cron_job_id) FROM scheduling_cronrun WHERE id > %s AND outcome = %s",
        [before, CronRun.SUBMITTED],
    )[0][0]
    jobs = query(
        "SELECT count(*) FROM scheduling_job AS j JOIN scheduling_cronrun AS r ON r.job_uid = j.uid AND r.id > %s",
        [before],
    )[0][0]
    p99 = figures[min(len(figures) - 1, int(len(figures) * 0.99))]
    result = {
        "case": case,
        "value": round(figures[-1] if case == "minute" else p99, 3),
        "unit": "s",
        "better": "lower",
        "p50": round(figures[len(figures) // 2], 3),
        "worst": round(figures[-1], 3),
        "runs": len(late),
        "lost": entries - jobs,
        "twice": twice,
        "load": load,
    }
    if kills:
        result["after_kill"] = round(max(after, default=0.0), 3)
    missed = [
        name
        for name, found in ((case, result["value"]), ("after_kill", result.get("after_kill", 0)))
        if (found > _TARGETS[name])
    ]
    if missed or result["lost"] or twice:
        result["failed"] = f"targets missed: {', '.join(missed) or 'exactly once'}"
    return result
