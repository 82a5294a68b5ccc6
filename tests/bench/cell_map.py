"""`map`: the map of a full-size cell in a real browser: first paint, frames while zooming, changes, memory, the server.

The cell is that of `tests.bench.full_cell`: 10,000 machines without Borglets, 150,000 tasks. The browser is Chromium
without a GPU. A stream of changes is replayed: tasks are evicted, and the master places them on other machines. Cases:

    data-p99, rest-p99     p99 (ms) of the data of the map for a tenant's page, and by REST for an SRE, one client.
                           `first_ms` is the first request of a process, which reads all tasks;
                           `cpu_ms` is the CPU time that the web processes use per request
    bytes                  bytes of the data for an SRE, compressed
    first-paint            ms from the navigation until the machines are drawn, median of new browser profiles
    frame-p95              work (ms) per frame while zooming and changes arrive: the script, and drawing on the canvas.
                           `interval_p95_ms` is the time between two frames, `cpu_ms_per_frame` the CPU time of the
                           main thread, with the changes and the tests' own reading of a pixel
    change-p99             ms from the commit of a change until the frame that shows it is drawn
    heap-growth            MiB of JavaScript memory that the page uses more after the stream than after its first part

    BENCH_SECONDS=60       seconds of the stream of changes
"""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.bench.full_cell import MACHINES, TASKS, full_cell, users
from tests.bench.http_load import share
from tests.bench.installation import Installation

WARM_UP, REQUESTS, PROFILES, ZOOM_STEPS = 20, 100, 5, 240
EVICTED_AT_ONCE, PAUSE_S = 10, 0.2
_SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))
_PAINT_MS, _FRAME_MS, _CHANGE_MS, _SERVER_MS, _BYTES, _GROWTH_MIB = 1000, 16, 500, 200, 300_000, 3
# Records in the page: the work of each frame, the frames that show changes, and when the map was drawn first.
_RECORDER = """
window.recorded = { frames: [], at: [], shown: [], waiting: [], first: 0, messages: 0 };
const plain = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (callback) => plain((now) => {
  const began = performance.now();
  callback(now);
  // Reading a pixel ends the drawing, which Chromium does later otherwise.
  document.querySelector("[data-map-canvas]")?.getContext("2d").getImageData(0, 0, 1, 1);
  const ended = performance.now();
  recorded.frames.push(ended - began);
  recorded.at.push(now);
  if (!recorded.first && !document.querySelector("[aria-busy]")) recorded.first = ended;
  for (const ids of recorded.waiting.splice(0)) recorded.shown.push([performance.timeOrigin + ended, ids]);
});
const Plain = window.WebSocket;
window.WebSocket = class extends Plain {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      recorded.messages++;
      if (message.machines?.id) recorded.waiting.push(message.machines.id);
    });
  }
};
"""


def measure() -> Iterator[dict[str, Any]]:
    with full_cell() as where:
        *members, sre = users(where)
        cell = where.client("admin").profile.cell
        common = {"machines": MACHINES, "tasks": TASKS, "load": round(os.getloadavg()[0], 1)}
        stream = _Stream(where)
        cookie = {"Cookie": f"sessionid={members[0]['session']}"}
        bearer = {"Authorization": f"Bearer {sre['token']}"}
        for case, path, headers in (
            ("data-p99", f"/cells/{cell}/map/data/", cookie),
            ("rest-p99", f"/api/v1/cells/{cell}/map/", bearer),
        ):
            found = _requests(where, path, headers, stream)
            yield {"case": case, **found["times"], **common}
        yield {"case": "bytes", **_judged(found["bytes"], "bytes", _BYTES), "plain_bytes": found["plain"], **common}
        for result in _in_browser(where, cell, members[0]["session"], stream):
            yield {**result, **common}


def _requests(where: Installation, path: str, headers: dict[str, str], stream: _Stream) -> dict[str, Any]:
    """Read a path often, one request after the other, each after a change. The first requests are not in the times."""
    taken, body, cpu = [], b"", 0.0
    for number in range(WARM_UP + REQUESTS):
        if number == WARM_UP:
            cpu = _web_cpu_s(where)
        stream.change()
        connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=60)
        began = time.monotonic()
        connection.request("GET", path, headers={**headers, "Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
        taken.append(1000 * (time.monotonic() - began))
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: HTTP status {answer.status}")
    used = 1000 * (_web_cpu_s(where) - cpu) / REQUESTS
    also = {"first_ms": round(max(taken[:WARM_UP])), "cpu_ms": round(used, 1)}
    return {"times": _ms(taken[WARM_UP:], _SERVER_MS) | also, "bytes": len(body), "plain": len(gzip.decompress(body))}


def _web_cpu_s(where: Installation) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in where.processes() if "portal.web" in one.cmdline())


def _in_browser(where: Installation, cell: str, session: str, stream: _Stream) -> Iterator[dict[str, Any]]:
    from playwright.sync_api import sync_playwright

    url = f"http://127.0.0.1:{where.port}"
    path = shutil.which("chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])

        def opened() -> Any:
            context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900})
            context.set_default_timeout(60_000)
            context.add_cookies([{"name": "sessionid", "value": session, "url": url}])
            context.add_init_script(_RECORDER)
            page = context.new_page()
            page.goto(f"/cells/{cell}/map/")
            page.locator("[data-map]:not([aria-busy])").wait_for()
            while not page.evaluate("recorded.first"):
                page.wait_for_timeout(20)
            return page

        paints = []
        for _ in range(PROFILES):
            page = opened()
            paints.append(page.evaluate("recorded.first"))
            page.context.close()
        yield {
            "case": "first-paint",
            **_judged(round(statistics.median(paints)), "ms", _PAINT_MS),
            "each": [round(one) for one in paints],
        }
        page = opened()
        page.locator("[data-live-status].on").wait_for()
        stream.commits.clear()
        began = time.monotonic()
        stream.run(min(10.0, _SECONDS / 3), lambda: page.wait_for_timeout(1))
        heap = _heap(page)
        page.evaluate("recorded.frames.length = recorded.at.length = 0")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        cpu = _task_s(session)
        box = page.locator("[data-map-canvas]").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for step in range(ZOOM_STEPS):
            page.mouse.wheel(0, -60 if step % 60 < 30 else 60)
            page.wait_for_timeout(12)
            if step % 12 == 0:
                stream.change()
        frames = page.evaluate("recorded.frames")
        between = page.evaluate("recorded.at.slice(1).map((one, place) => one - recorded.at[place])")
        yield {
            "case": "frame-p95",
            **_judged(round(share(frames, 0.95), 1), "ms", _FRAME_MS),
            "p50": round(statistics.median(frames), 1),
            "cpu_ms_per_frame": round(1000 * (_task_s(session) - cpu) / len(frames), 1),
            "frames": len(frames),
            "interval_p95_ms": round(share(between, 0.95), 1),
        }
        stream.run(max(0.0, _SECONDS - (time.monotonic() - began)), lambda: page.wait_for_timeout(1))
        page.wait_for_timeout(2_000)
        shown = page.evaluate("recorded.shown")
        delays = stream.delays(shown)
        missed = stream.changes - len(delays)
        yield {
            "case": "change-p99",
            **_judged(round(share(delays, 0.99)) if delays else 0, "ms", _CHANGE_MS),
            "p50": round(statistics.median(delays)) if delays else 0,
            "changes": len(delays),
            **({"failed": f"{missed} changes did not appear"} if missed else {}),
        }
        page.evaluate("recorded.shown.length = recorded.frames.length = recorded.at.length = 0")
        growth = _heap(page) - heap
        yield {
            "case": "heap-growth",
            **_judged(round(growth, 2), "MiB", _GROWTH_MIB),
            "before_mib": round(heap, 2),
            "updates": sum(len(ids) for _, ids in shown),
            "messages": page.evaluate("recorded.messages"),
        }
        browser.close()


class _Stream:
    """A stream of changes: tasks are evicted in commits, and the master of the installation places them again."""

    def __init__(self, where: Installation) -> None:
        web = next(one for one in where.processes() if "portal.web" in one.cmdline())
        os.environ.update(web.environ() | {"BORG_LOG_LEVEL": "WARNING", "DJANGO_ALLOW_ASYNC_UNSAFE": "true"})
        import django

        django.setup()
        self.rng = np.random.default_rng(376)
        self.commits: list[tuple[float, set[int]]] = []  # (epoch ms, machines that have changed)

    @property
    def changes(self) -> int:
        return len(self.commits)

    def run(self, seconds: float, wait: Any) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.change()
            pause = time.monotonic() + PAUSE_S
            while time.monotonic() < pause:
                wait()

    def change(self) -> None:
        from quota.vocabulary.permissions import system
        from scheduling.core.vocabulary.task_events import Eviction
        from scheduling.journal import journal
        from scheduling.models import Cell, Task
        from scheduling.tasks.transitions import tasks_evict

        cell = Cell.operated.get()
        running = Task.objects.filter(cell=cell, state="running").order_by("id")
        first = int(self.rng.integers(TASKS - 2_000))
        rows = list(running.values("id", "incarnation", "machine_id")[first : first + EVICTED_AT_ONCE])
        with journal.write(cell.id, system("bench")) as entry:
            tasks_evict(entry, [Eviction(row["id"], row["incarnation"], "other") for row in rows])
        self.commits.append((1000 * time.time(), {row["machine_id"] for row in rows}))

    def delays(self, shown: list[tuple[float, list[int]]]) -> list[float]:
        """Return the ms from each commit until a frame showed all its machines. `shown`: (epoch ms, machines)."""
        found = []
        for at, machines in self.commits:
            left = set(machines)
            for when, ids in shown:
                if when >= at - 50:
                    left -= set(ids)
                    if not left:
                        found.append(max(0.0, when - at))
                        break
        return found


def _task_s(session: Any) -> float:
    """Return the CPU seconds that the main thread of the page has used."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def _heap(page: Any) -> float:
    """Return the MiB of JavaScript memory in use after a garbage collection."""
    session = page.context.new_cdp_session(page)
    try:
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 2**20
    finally:
        session.detach()


def _ms(taken: list[float], most: float) -> dict[str, Any]:
    return _judged(round(share(taken, 0.99), 1), "ms", most) | {"p50": round(statistics.median(taken), 1)}


def _judged(value: float, unit: str, most: float) -> dict[str, Any]:
    missed = {"failed": f"the value is above {most:g} {unit}"} if value > most else {}
    return {"value": value, "unit": unit, "better": "lower", **missed}
