"""Drills of alarms on a cell of several hosts: faults raise them, and the steps of their entries end them.

Each drill stops processes (SIGSTOP), so that they neither answer nor end. The test waits until the condition of the
alarm is true on real metrics. Then it does the step that `docs/guides/alarms.md` names, and waits until the condition
is false.

`python -m tests.ha.runbook` prints a JSON line per drill: how long the alarm took to become true (`raised_s`), and to
become false after the step (`over_s`). Exit status: 0 if each alarm was raised and ended, 1 if not, 2 if the test
cannot run.

    ALARM=BorgLinkAway  run this drill only
    HA_MACHINES=2       number of machines
    HA_KEEP=1           keep the folder with logs
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.acceptance import runbook
from tests.ha.cell import Cell
from tests.ha.lookups import PORT, ZONE
from tests.ha.network import Host, send
from tests.ha.proxies import LINK_PORT, WEB_PORT
from tests.ha.run import started_hosts
from tests.ha.services import wait_until

_WITHIN_S, _ANSWER_S = 180.0, "10"
_MASTERS = "systemctl restart borg-master@CELL"


def _got(host: Host, *command: str) -> str:
    """Return the output of a command on a host; empty if the command fails."""
    done = subprocess.run(host.inside.command(*command), capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _largest(cell: Cell, metric: str) -> float | None:
    """Return the largest value of a metric that a web process returns; None if none returns it in time."""
    urls = (f"http://{host.address}:{WEB_PORT}/metrics" for host in cell.control)
    texts = (_got(cell.front, "curl", "-s", "--max-time", _ANSWER_S, url) for url in urls)
    found = [float(value) for text in texts for value in re.findall(rf"^{metric}{{.*}} (\S+)$", text, re.MULTILINE)]
    return max(found, default=None)


def _is(metric: str, above: float, most: float) -> Callable[[Cell], bool | None]:
    """Return the condition that a metric is above a number and at most another; None if no web process returns it."""

    def condition(cell: Cell) -> bool | None:
        value = _largest(cell, metric)
        return None if value is None else above < value <= most

    return condition


def _shard_answers(host: Host) -> bool:
    """Return whether a shard answers. It returns its metrics only to 127.0.0.1, where it does not listen here."""
    url = f"https://{host.address}:{LINK_PORT}/healthz"
    return _got(host, "curl", "-skf", "--max-time", _ANSWER_S, "-o", "/dev/null", "-w", "%{http_code}", url) == "200"


def _standbys(cell: Cell) -> list[Host]:
    holder = cell.lease_holder()
    return [host for host in cell.control if host is not holder]


def _resolver_answers(host: Host) -> bool:
    query = ("dig", f"@{host.address}", "-p", str(PORT), "TXT", f"health.{ZONE}", "+short", "+tries=1", "+time=2")
    return "status=ok" in _got(host, *query)


@dataclass(frozen=True)
class Drill:
    """An alarm. `service`: what stops, on the hosts `where`. `step`: the command of its entry that ends the alarm.
    `true`: its condition; None if it is unknown.
    """

    alarm: str
    service: str
    step: str
    true: Callable[[Cell], bool | None]
    where: Callable[[Cell], Sequence[Host]] = lambda cell: cell.control


DRILLS = (
    Drill(
        "BorgPortalAway",
        "web",
        "systemctl restart borg-web",
        lambda cell: _largest(cell, "borg_ledger_imbalance_microcredits") is None,
    ),
    Drill(
        "BorgLinkAway", "link", "systemctl restart borg-link", lambda cell: not any(map(_shard_answers, cell.control))
    ),
    Drill("BorgNoStandby", "master", _MASTERS, _is("borg_master_standbys", -1, 0), _standbys),
    Drill("BorgSchedulerMissing", "master", _MASTERS, _is("borg_schedulers_missing", 0, math.inf)),
    Drill(
        "BorgResolverAway",
        "resolver",
        "systemctl restart borg-resolver",
        lambda cell: not any(map(_resolver_answers, cell.control)),
    ),
)


def _one(drill: Drill, cell: Cell) -> dict[str, object]:
    """Raise an alarm, do its step, and return how long both took. Raises `TimeoutError`."""
    assert drill.step in runbook.mentioned(runbook.entries()[drill.alarm]), drill.alarm
    wait_until(
        lambda: cell.complete(cell.machines) and drill.true(cell) is False,
        _WITHIN_S,
        f"{drill.alarm} is false before the drill",
    )
    stopped = [cell.services.on(host.name, drill.service) for host in drill.where(cell)]
    for service in stopped:
        service.pause()
    raised_s = wait_until(lambda: drill.true(cell), _WITHIN_S, f"{drill.alarm} is raised")
    for service in stopped:  # as `systemctl restart` does after its time limit: all processes of the unit end
        send(service.processes(), signal.SIGKILL)
        service.resume()  # `nsenter` has stopped too
    over_s = wait_until(
        lambda: drill.true(cell) is False and cell.complete(cell.machines), _WITHIN_S, f"{drill.alarm} is over"
    )
    hosts = [service.host.name for service in stopped]
    return {"alarm": drill.alarm, "hosts": hosts, "raised_s": round(raised_s, 1), "over_s": round(over_s, 1)}


def main() -> int:
    """Run the drills, and return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = os.environ.get("ALARM", "")
    try:
        with started_hosts(int(os.environ.get("HA_MACHINES") or 2)) as cell:
            cell.start()
            for drill in DRILLS:
                if chosen in ("", drill.alarm):
                    print(json.dumps(_one(drill, cell)), flush=True)
    except TimeoutError as error:
        print(f"ha-runbook: {error}", file=sys.stderr)
        return 1
    except (PermissionError, ValueError, RuntimeError) as error:
        print(f"ha-runbook: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
