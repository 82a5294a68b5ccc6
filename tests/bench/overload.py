"""`overload`: how the link and the web processes behave if they get more work than they can do.

`attach`: how soon all machines of a fleet are attached if every core of the host is busy while the cell starts. `make
up MACHINES=simulated:N` starts with a new home folder beside one busy loop per core. The loops run for
`OVERLOAD_SECONDS` seconds (default: 300), and N is `OVERLOAD_MACHINES` (default: 10,000). The value is the seconds from
the end of the loops until all machines are attached. It is negative if they were attached before. The result also
counts processes that were restarted meanwhile.

`submissions`: what twice the sustainable rate of submissions does (`tests.bench.overload_submissions`).

    BENCH_CASES=submissions        run only cases whose name begins with one of these
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.bench import overload_submissions
from tests.bench.installation import Installation, installation

_ATTACHED_WITHIN_S = 600.0
_BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


def measure() -> Iterator[dict[str, Any]]:
    for case, run in (("attach", _attach), ("submissions", overload_submissions.measure)):
        if any(case.startswith(wanted) for wanted in os.environ.get("BENCH_CASES", case).split(",")):
            yield from run()


def _attach() -> Iterator[dict[str, Any]]:
    machines = int(os.environ.get("OVERLOAD_MACHINES", "10000"))
    seconds = float(os.environ.get("OVERLOAD_SECONDS", "300"))
    with ExitStack() as cleanup:
        for _ in range(os.cpu_count() or 1):
            loop = subprocess.Popen([sys.executable, "-c", _BUSY, str(seconds)])
            cleanup.callback(loop.wait)
            cleanup.callback(loop.kill)
        end = time.monotonic() + seconds
        up = cleanup.enter_context(
            installation(machines=f"simulated:{machines}", ready_within_s=seconds + _ATTACHED_WITHIN_S)
        )
        during = attached = _attached(up)
        took_s = time.monotonic() - end
        # Wait until the loops end even if all machines are attached, because a process may be killed later.
        while time.monotonic() < end or (attached < machines and time.monotonic() < end + _ATTACHED_WITHIN_S):
            time.sleep(1.0)
            before, attached = attached, _attached(up)
            if attached > before:
                took_s = time.monotonic() - end
            if time.monotonic() < end:
                during = attached
        yield {
            "case": f"attach-{machines}",
            "value": round(took_s, 1),
            "unit": "s after the busy loops ended",
            "better": "lower",
            "attached": attached,
            "attached_while_busy": during,
            "ready_s": round(up.ready_s, 1),
            "handshakes": _handshakes(up),
            **_incidents(up.home),
            **({"failed": f"only {attached} machines are attached"} if attached < machines else {}),
        }


def _attached(up: Installation) -> int:
    """Return how many simulated machines are connected to the link. 0 if the link does not answer."""
    return max(0, _figure(up, "borg_link_connections") - 1)


def _handshakes(up: Installation) -> int:
    return _figure(up, "borg_link_handshakes_total")


def _figure(up: Installation, name: str) -> int:
    untrusting = ssl.create_default_context()
    untrusting.check_hostname, untrusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urlopen(f"https://127.0.0.1:{up.link_port}/metrics", context=untrusting, timeout=20) as answer:
            text = answer.read().decode()
    except OSError:
        return 0  # the link is not up yet, or is too busy
    found = re.search(rf"^{name} ([0-9.e+]+)$", text, re.MULTILINE)
    return int(float(found.group(1))) if found else 0


def _incidents(home: Path) -> dict[str, Any]:
    """Return counts of problems in the logs of the processes, such as restarts and machines that were marked down."""
    logs = {path.stem: path.read_text(errors="replace") for path in (home / "log").glob("*.log")}
    everything = "\n".join(logs.values())
    supervisor = logs.get("up", "")
    return {
        "restarts": len(re.findall(r"starting it again in", supervisor)),
        "leases": len(re.findall(r"took the lease", everything)),
        "brake_turns": len(re.findall(r'"event": "brake"', everything)),
        "machines_marked_down": sum(
            int(number) for number in re.findall(r'"number": (\d+), "event": "machines are marked down"', everything)
        ),
    }
