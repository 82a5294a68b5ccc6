"""Tests of 200 concurrent clients while PostgreSQL is stopped, has a full disk, and is killed.

The clients may get only 2xx, 3xx, 4xx, and 503 with `Retry-After`. Each acknowledged job is stored exactly once. The
test needs root and the right to mount a tmpfs, which is the disk that becomes full.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.acceptance.crowd import PATIENCE_S, Crowd
from tests.acceptance.installation import Installation, tree_of, wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

# A pause of 30 s finds no more faults than one of 12 s, and makes all tests slower.
PAUSE_S = float(os.environ.get("BORG_TEST_PAUSE_S", "12"))
FULL_S = 10.0
CALM_S = 5.0
BACK_S = 120.0
_DISK_BYTES = 512 * 2**20


@pytest.fixture
def there(own: Installation) -> Iterator[Installation]:
    """Yield a running installation whose PostgreSQL stores its data on a small separate disk."""
    own.start()
    own.stop()
    with small_disk(own.home / "postgres"):
        own.start()
        yield own
        own.stop()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Move the content of a folder to a tmpfs of 512 MiB that is mounted in its place."""
    aside, owner = folder.with_name("postgres.aside"), folder.stat()
    folder.rename(aside)
    folder.mkdir()
    options = f"size={_DISK_BYTES},mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("a disk that fills up needs the command mount")
    if done.returncode != 0:
        pytest.skip(f"a disk that fills up needs root and the right to mount: {done.stderr.strip()}")
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=True)
        shutil.rmtree(aside)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_outages_of_postgresql_under_load(there: Installation) -> None:
    password = json.loads((there.home / "secrets.json").read_text())["demo"]["password"]
    crowd = Crowd(there.url, there.token(), ("demo", password))
    thread = threading.Thread(target=lambda: asyncio.run(crowd.run()))
    thread.start()
    try:
        _phase(crowd, "calm", CALM_S)
        with _paused(there):
            _phase(crowd, "paused", PAUSE_S)
        _recover(there, crowd, "after the pause")
        with _full(there.home / "postgres"):
            crowd.begin("full")
            # PostgreSQL works until it has filled the log file that it has allocated in advance.
            wait_for(lambda: _ready(there)[0] == 503, BACK_S, story=lambda: str(crowd.phases["full"]))
            print("readyz with a full disk:", _ready(there))
            time.sleep(FULL_S)
        _recover(there, crowd, "after the full disk")
        crowd.begin("killed")
        there.kill("postgres")
        time.sleep(CALM_S)
        _recover(there, crowd, "after the kill")
        _phase(crowd, "calm again", CALM_S)
    finally:
        crowd.stop()
        thread.join(PATIENCE_S + 30.0)
        for phase, seen in crowd.phases.items():
            print(f"{phase}: {seen}")
        print(f"healthz: {len(crowd.health_s)} answers, slowest {max(crowd.health_s, default=0.0):.2f} s")
    stored = Counter(_names(there))
    print(f"{len(crowd.sent)} sent, {len(crowd.acknowledged)} acknowledged, {stored.total()} stored")
    wrong = [line for seen in crowd.phases.values() for line in seen.wrong]
    # Connections are lost if a web process is replaced. The output of the supervisor says why.
    assert not wrong, (len(wrong), wrong[:10], there.output()[-6_000:])
    assert crowd.acknowledged
    assert not crowd.acknowledged - stored.keys(), "acknowledged and lost"
    assert all(number == 1 for number in stored.values()), stored.most_common(5)
    assert crowd.phases["paused"].answers[503]
    assert crowd.phases["full"].answers[503]


def _phase(crowd: Crowd, name: str, seconds: float) -> None:
    crowd.begin(name)
    time.sleep(seconds)


def _recover(there: Installation, crowd: Crowd, name: str) -> None:
    """Wait until the portal is ready and has acknowledged a new job. Print how long it took."""
    crowd.begin(name)
    before = len(crowd.acknowledged)
    took_s = wait_for(
        lambda: len(crowd.acknowledged) > before and _ready(there)[0] == 200,
        BACK_S,
        story=lambda: (str(crowd.phases[name]), _ready(there), there.output()[-2000:]),
    )
    print(f"{name}: well within {took_s:.1f} s")


@contextmanager
def _paused(there: Installation) -> Iterator[None]:
    pid = there.pid("postgres")
    assert pid is not None
    stopped = []
    try:
        os.kill(pid, signal.SIGSTOP)  # first, so that it starts no new processes
        for each in tree_of(pid):
            os.kill(each, signal.SIGSTOP)
            stopped.append(each)
        yield
    finally:
        for each in (*stopped, pid):
            os.kill(each, signal.SIGCONT)


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """Keep the disk of the folder full during the `with` block: space that PostgreSQL frees is filled again."""
    filler, over = folder / "filler", threading.Event()

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            while not over.is_set():
                try:
                    file.write(b"\0" * 65536)
                except OSError:
                    over.wait(0.05)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        filler.unlink()


def _ready(there: Installation) -> tuple[int, str]:
    direct = build_opener(ProxyHandler({}))
    try:
        with direct.open(f"{there.url}/readyz", timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except OSError as error:
        body = error.read().decode() if hasattr(error, "read") else str(error)
        return getattr(error, "code", 0), body


def _names(there: Installation) -> list[str]:
    """Return the names of all jobs of the crowd (the test's clients) that the portal stores, dead jobs included."""
    direct, found = build_opener(ProxyHandler({})), []
    url: str | None = f"{there.url}/api/v1/cells/dev/jobs/?limit=1000"
    while url:
        with direct.open(Request(url, headers={"Authorization": f"Bearer {there.token()}"}), timeout=60.0) as answer:
            page = json.load(answer)
        found += [row["name"] for row in page["results"] if row["name"].startswith("c")]
        url = page["next"]
    return found
