"""Upgrade a cell of several hosts under load, from the source of another release to this one.

    git worktree add /tmp/release v0.2.0
    OLD=/tmp/release python -m tests.ha.upgrade

The cell starts with the programs of `OLD`. While clients work, the steps of the runbook (`deploy/README.md`, "Upgrade")
follow: migrate, then restart each service, one host after the other, and the Borglets last. Some jobs are never
changed: their tasks must keep running. At the end the checker looks for broken promises, as after faults.

Prints a JSON line per step with the longest pause between writes through web and the time until the cell was complete
again, and one at the end. Exit status: 0 if all requests were acknowledged, no untouched task was restarted and the
checker found nothing, 1 if not, 2 if the test cannot run.

    HA_MACHINES=6  number of machines
    HA_KEEP=1      keep the folder with logs and the history
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.ha.cell import MASTERS, ROOT, Cell
from tests.ha.history import History, Outcome
from tests.ha.run import Plan, Run, started_hosts
from tests.ha.services import wait_until
from tests.ha.workload import Caller, Client
from tests.ha.writing import Loop

# The order of the runbook. The archiver of the worker needs web processes of the new version.
STEPS: Sequence[Sequence[str]] = (("link",), ("resolver", *MASTERS), ("web",), ("worker",), ("beat",), ("borglet",))
_UNTOUCHED = range(900, 904)  # the numbers of clients that submit one job each, and then do nothing
# After a restart, a standby master loads the cell before it can take over.
_WARM_S, _SETTLE_S, _COMPLETE_S = 10.0, 5.0, 300.0


def upgrade(old: Path, *, machines: int) -> Iterator[dict[str, Any]]:
    """Start a cell with the programs in the folder `old`, and upgrade it. Yield one object per step, and one at the end
    with `requests`, `repeated` (requests that needed more than one attempt), `untouched`, `restarted` and `violations`.
    """
    subprocess.run(
        [sys.executable, "-m", "scheduling.core.compile_kernels"],
        env={**os.environ, "PYTHONPATH": str(old)},
        cwd=old,
        check=True,
    )
    with started_hosts(machines, tree=old) as cell:
        cell.start()
        one = Run(Plan(faults=[], machines=machines), cell, cell.folder, History(cell.folder / "history.jsonl"))
        caller = Caller(cell.url, cell.token)
        for number in _UNTOUCHED:
            Client(number, caller, one.history, cell.alive, random.Random(number)).act()
        wait_until(lambda: all(up for *_, up in _untouched(cell)), _COMPLETE_S, "the untouched tasks are up")
        before = _untouched(cell)
        with one.under_load() as loops:
            time.sleep(_WARM_S)
            yield from _steps(cell, loops["web"])
            time.sleep(_WARM_S)
        after = _untouched(cell)
        yield {
            "requests": one.counts(),
            "repeated": sum(request.attempts > 1 for request in one.history.requests),
            "failed": [
                request.detail for request in one.history.requests if request.outcome is not Outcome.ACKNOWLEDGED
            ],
            "untouched": len(before),
            "restarted": [one[0] for one in before if one[:3] not in {found[:3] for found in after}],
            "violations": [str(violation) for violation in one.violations()],
        }


def _steps(cell: Cell, web: Loop) -> Iterator[dict[str, Any]]:
    cell.tree = ROOT
    began = time.monotonic()
    cell.migrate()
    yield _step("migrate", "", web, began)
    for names in STEPS:
        for host in cell.machines if "borglet" in names else cell.control:
            services = [one for one in (cell.services.find(host.name, name) for name in names) if one is not None]
            if not services:  # beat runs on two hosts
                continue
            began = time.monotonic()
            for service in services:
                service.restart_in(ROOT)
            time.sleep(_SETTLE_S)
            wait_until(partial(_complete, cell, time.time()), _COMPLETE_S, "the cell is complete again", every_s=0.2)
            yield _step(" and ".join(names), host.name, web, began)


def _complete(cell: Cell, since: float) -> bool:
    """Return whether all services work, and all machines have reported since a time in Unix seconds."""
    return cell.complete(cell.machines) and cell.have_reported(cell.machines, since)


def _step(names: str, host: str, web: Loop, began: float) -> dict[str, Any]:
    return {
        "step": names,
        "host": host,
        "complete_s": round(time.monotonic() - began, 1),
        "web_gap_s": round(web.gap_s(began), 1),
    }


def _untouched(cell: Cell) -> list[tuple[str, int, int, bool]]:
    """Return (name, incarnation, restarts, up) of each task of the jobs that nobody changes."""
    jobs = ", ".join(f"'job-{number}-1'" for number in _UNTOUCHED)
    return cell.query(
        "SELECT j.name || '/' || t.index, t.incarnation, t.restarts, t.up FROM scheduling_task AS t"
        f" JOIN scheduling_job AS j ON j.id = t.job_id WHERE j.name IN ({jobs}) ORDER BY 1"
    )


def main() -> int:
    """Run the upgrade that the environment describes. Return the exit status."""
    old = Path(os.environ.get("OLD", ""))
    if not (old / "scheduling" / "link").is_dir():
        print(f"OLD={old}: give the folder with the source of the release to upgrade from", file=sys.stderr)
        return 2
    last: dict[str, Any] = {}
    try:
        for last in upgrade(old.resolve(), machines=int(os.environ.get("HA_MACHINES") or 6)):
            print(json.dumps(last), flush=True)
    except TimeoutError as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 1
    except (PermissionError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 2
    return 1 if last["failed"] or last["restarted"] or last["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
