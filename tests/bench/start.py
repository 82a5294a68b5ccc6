"""`start`: how soon an installation is ready, a job runs, and the production jobs of a real cell run.

Cases:
* `ready`: seconds until a new installation is ready. `ready-second`: seconds of its second start;
* `pss`: memory in MiB of an idle installation after 60 s. `floor`: the memory if the processes shared all pages that
  they inherit;
* `hello-p50`: seconds from the submission of a job until its three tasks are healthy, median;
* `idle`: CPU of an installation without work, in % of one core;
* `google2011-prod-running`: seconds until all production tasks of a fifth of a real cell run on simulated machines.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from portal.cli import jobfile
from tests.bench import google2011
from tests.bench.installation import Installation, installation

RUNS = 10
EMPTY_S = 60.0
IDLE_S = 30.0
BULK = 500
WAIT_S = 900.0


def measure() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="borg-bench-home-") as folder:
        Path(folder).chmod(0o711)
        home = Path(folder) / "home"
        with installation(home=home) as first:
            yield _seconds("ready", first.ready_s)
            yield _memory(first)
        with installation(home=home) as second:
            yield _seconds("ready-second", second.ready_s)
            yield from _hello(second)
            yield from _rest(second)
    if os.environ.get("BENCH_SMALL") != "1":
        yield from _google2011()


def _seconds(case: str, value: float, **more: Any) -> dict[str, Any]:
    return {"case": case, "value": round(value, 3), "unit": "s", "better": "lower", **more}


def _memory(where: Installation) -> dict[str, Any]:
    time.sleep(EMPTY_S)
    rows = where.memory_mib()
    total = sum(pss for _, pss, _ in rows)
    forked = sum(pss for name, pss, _ in rows if name.startswith("borg-"))
    floor = total - forked + next(rss for name, _, rss in rows if name == "borg-preload")
    by_name: dict[str, float] = {}
    for name, pss, _ in rows:
        by_name[name] = round(by_name.get(name, 0.0) + pss, 1)
    return {
        "case": "pss",
        "value": round(total, 1),
        "unit": "MiB",
        "better": "lower",
        "floor": round(floor, 1),
        "processes": by_name,
    }


def _hello(where: Installation) -> Iterator[dict[str, Any]]:
    client = where.client()
    spec = jobfile.read("examples/hello.jsonnet")
    path = f"/api/v1/cells/{client.profile.cell}/jobs/"
    times = []
    for run in range(RUNS + 1):
        name = f"hello{run}"
        began = time.monotonic()
        client.post(path, {**spec, "name": name, "names": {"leave_s": 0}, "tenant": client.profile.tenant})
        _until(lambda name=name: client.get(f"{path}{client.profile.tenant}/{name}/")["tasks_up"] == 3, 60.0)
        times.append(time.monotonic() - began)
        client.post(f"{path}{client.profile.tenant}/{name}/kill/")
        _until(lambda name=name: client.get(f"{path}{client.profile.tenant}/{name}/")["state"] == "dead", 60.0)
    counted = times[1:]
    yield _seconds("hello-p50", statistics.median(counted), min=min(counted), max=max(counted), runs=RUNS)


def _rest(where: Installation) -> Iterator[dict[str, Any]]:
    time.sleep(5.0)  # until the work of the earlier runs is done
    before, began = where.cpu_s(), time.monotonic()
    time.sleep(IDLE_S)
    used = 100 * (where.cpu_s() - before) / (time.monotonic() - began)
    yield {"case": "idle", "value": round(used, 2), "unit": "% of a core", "better": "lower"}


def _google2011() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="borg-bench-fleet-") as folder:
        fleet = Path(folder) / "machines.csv"
        google2011.write_machines(fleet)
        with installation(machines=f"simulated:{fleet}") as where:
            admin = where.client("admin")
            cell = admin.profile.cell
            machines = len(google2011.machines())
            _until(lambda: _count(admin, f"/api/v1/cells/{cell}/") >= machines, WAIT_S)
            tenants = sorted({job["tenant"] for job in google2011.specs()})
            for tenant in tenants:
                admin.post("/api/v1/tenants/", {"name": tenant})
                for band in ("monitoring", "production", "batch", "best-effort"):
                    amounts = {"cpu": 10**9, "ram": 2**50, "disk": 2**50}
                    grant = {"tenant": tenant, "cell": cell, "band": band, "amounts": amounts, "reason": "bench"}
                    admin.post("/api/v1/quota/grants/", grant | {"beyond_capacity": True})
            specs = google2011.specs()
            prod = sum(spec["tasks"] for spec in specs if spec["priority"] >= 120)
            began = time.monotonic()
            for first in range(0, len(specs), BULK):
                admin.post(f"/api/v1/cells/{cell}/jobs:bulk", specs[first : first + BULK])
            submitted = time.monotonic() - began
            _until(lambda: _prod_up(admin, cell) >= prod, WAIT_S)
            took = time.monotonic() - began
            where.manage("validate")
            yield _seconds(
                "google2011-prod-running",
                took,
                submitted_s=round(submitted, 3),
                machines=machines,
                tasks=sum(spec["tasks"] for spec in specs),
                prod_tasks=prod,
            )


def _count(client: Any, path: str) -> int:
    return sum(client.get(path)["machines"].get(state, 0) for state in ("up",))


def _prod_up(client: Any, cell: str) -> int:
    return sum(
        row["tasks_up"] for row in client.pages(f"/api/v1/cells/{cell}/jobs/", limit=1000) if row["priority"] >= 120
    )


def _until(reached: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"not reached within {seconds} s")
        time.sleep(0.02)
