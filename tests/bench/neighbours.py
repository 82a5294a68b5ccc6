"""`neighbours`: by how much a batch task that uses every core raises the p99 response time of a latency-sensitive task.

Both are tasks of the `process` runtime on this machine: `request_server` (149.37 requests per second, about 1 ms of CPU
each, priority 200), and a task with one busy loop per core. The bench alternates between windows of 3 s with and
without the busy task. Each pair of windows gives the rise of the p99 in per cent, and the value is the median.

Cases: `batch` (the busy task has priority 110) and `best-effort` (priority 0). A pair is disturbed if other processes
of the machine used more than a tenth of a core. Disturbed pairs are left out, unless fewer than `PAIRS` of `MOST_PAIRS`
pairs are quiet. The bench needs control groups with an idle class (`isolation.cpu_classes`), and fails if the median is
10 % or more.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from borglet.messages import EndCause, LogRequest, RunTask, TaskKey
from borglet.runtimes.process import ProcessRuntime
from tests.bench.wanted import wanted

PAIRS = 11
MOST_PAIRS = 22
OUTSIDE_MILLI = 100
WINDOW_S = 3.0
SETTLE_S = 0.3
# Not a multiple of the kernel's tick (100, 250, 300 or 1,000 Hz). Otherwise a delay near a tick would affect all
# requests of one run, and none of another.
RATE_PER_S = 149.37
BLOCKS = 1200
MOST_PERCENT = 10.0
PRIORITIES = {"batch": 110, "best-effort": 0}
MIB = 2**20
SERVER = TaskKey("5e" * 16, 0, 1)
SPIN = """
import os
for _ in range(os.cpu_count() - 1):
    if os.fork() == 0:
        break
while True:
    pass
"""


def measure() -> Iterator[dict[str, Any]]:
    for case in wanted(list(PRIORITIES)):
        with tempfile.TemporaryDirectory(prefix="borg-bench-home-") as folder:
            Path(folder).chmod(0o711)
            yield asyncio.run(_measure(case, Path(folder) / "home"))


async def _measure(case: str, home: Path) -> dict[str, Any]:
    runtime = ProcessRuntime(home)
    program = Path(__file__).with_name("request_server.py").read_text()
    command = [sys.executable, "-I", "-S", "-c", program, str(RATE_PER_S), str(BLOCKS)]
    limit = {"cpu": 500, "ram": 256 * MIB}
    try:
        await runtime.start(_task(SERVER, command, 200, limit), run=1)
        windows: list[dict[bool, tuple[float, float]]] = []
        spun, outside = [], []
        for pair in range(MOST_PAIRS):
            if sum(milli <= OUTSIDE_MILLI for milli in outside) == PAIRS:
                break
            outside.append(0)
            found: dict[bool, tuple[float, float]] = {}
            for loaded in (False, True) if pair % 2 == 0 else (True, False):
                key = TaskKey("ba" * 16, 0, pair + 1)
                if loaded:
                    spinner = [sys.executable, "-I", "-S", "-c", SPIN]
                    await runtime.start(_task(key, spinner, PRIORITIES[case], limit, serving=False), run=1)
                await asyncio.sleep(SETTLE_S)
                await runtime.sample()
                began, busy_s = time.monotonic(), _busy_s()
                await asyncio.sleep(WINDOW_S)
                found[loaded] = (began, time.monotonic())
                used = {key: usage.cpu_milli for key, usage in (await runtime.sample()).items()}
                all_milli = 1000 * (_busy_s() - busy_s) / (found[loaded][1] - began)
                outside[-1] = max(outside[-1], round(all_milli - sum(used.values())))
                if loaded:
                    spun.append(used[key])
                    await _stop(runtime, key)
            windows.append(found)
        await asyncio.sleep(1.5)  # until the requests of the last window are in the log
        requests = await _requests(runtime)
        isolation = runtime.attributes()["isolation.cpu_classes"]
    finally:
        await _stop(runtime, SERVER)
        await runtime.close()
    quiet = [pair for pair, milli in zip(windows, outside, strict=True) if milli <= OUTSIDE_MILLI]
    result = _result(case, quiet if len(quiet) >= PAIRS else windows, requests, spun, isolation)
    return {**result, "disturbed": len(windows) - len(quiet), "outside_milli": round(statistics.median(outside))}


def _result(
    case: str,
    windows: list[dict[bool, tuple[float, float]]],
    requests: list[tuple[float, float]],
    spun: list[int],
    isolation: str,
) -> dict[str, Any]:
    quantiles = {
        percent: [
            {loaded: _quantile(requests, *window, percent / 100) for loaded, window in pair.items()} for pair in windows
        ]
        for percent in (50, 99)
    }
    rises = [100 * (pair[True] / pair[False] - 1) for pair in quantiles[99]]
    result = {
        "case": case,
        "value": round(statistics.median(rises), 2),
        "unit": "%",
        "better": "lower",
        "pairs": len(rises),
        "rises": [round(rise, 1) for rise in sorted(rises)],
        "cores": os.cpu_count(),
        "spinner_milli": round(statistics.median(spun)),
        "isolation": isolation,
    }
    for percent, pairs in quantiles.items():
        for loaded, name in ((False, "alone"), (True, "beside")):
            result[f"p{percent}_{name}_ms"] = round(statistics.median(pair[loaded] for pair in pairs), 3)
    if result["value"] >= MOST_PERCENT:
        result["failed"] = f"the p99 rises by {result['value']} %, wanted less than {MOST_PERCENT:g} %"
    return result


def _busy_s() -> float:
    """Return the CPU seconds that all processes of the machine have used since it started."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _quantile(requests: list[tuple[float, float]], began: float, ended: float, share: float) -> float:
    """Return a quantile of the response times, in ms, of the requests that were due between `began` and `ended`."""
    found = sorted(latency for due, latency in requests if began <= due < ended)
    assert len(found) > 0.8 * RATE_PER_S * WINDOW_S, f"{len(found)} requests in {ended - began:.1f} s"
    return found[min(len(found) - 1, int(len(found) * share))]


def _task(key: TaskKey, command: list[str], priority: int, limit: dict[str, int], *, serving: bool = True) -> RunTask:
    return RunTask(
        key=key,
        name="aa/bench/neighbours/0",
        command=command,
        env={},
        limit=limit,
        ports={},
        priority=priority,
        latency_sensitive=serving,
        prod=serving,
        spec_version=1,
    )


async def _stop(runtime: ProcessRuntime, key: TaskKey) -> None:
    await runtime.stop(key, notice_s=0, cause=EndCause.STOPPED)
    async with asyncio.timeout(30.0):
        while (await runtime.next_end()).key != key:
            pass
    await runtime.remove(key)


async def _requests(runtime: ProcessRuntime) -> list[tuple[float, float]]:
    """Return (due in seconds, response time in ms) of each answered request, from the log of `request_server`."""
    offset, text = 0, ""
    while True:
        chunk = await runtime.read_log(LogRequest("r", SERVER, "stdout", offset=offset, limit_bytes=MIB))
        assert not chunk.error, chunk.error
        if chunk.end == offset:
            return [(due, latency) for line in text.splitlines() for due, latency in json.loads(line)]
        text, offset = text + chunk.text, chunk.end
