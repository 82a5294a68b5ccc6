"""Tests of the supervisor of `make up` with small processes."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portal.up.supervision import children, probes
from portal.up.supervision.process_keeper import Spec
from portal.up.supervision.supervisor import ProcessSupervisor, SupervisorError, in_order, stop_leftovers
from tests.ports import free_port
from tests.real.up.dummies import listener, script, writes

Scenario = Callable[[ProcessSupervisor], Coroutine[Any, Any, None]]


@asynccontextmanager
async def supervisor(folder: Path) -> AsyncIterator[ProcessSupervisor]:
    (folder / "run").mkdir()
    (folder / "log").mkdir()
    made = ProcessSupervisor(run_folder=folder / "run", log_folder=folder / "log")
    try:
        yield made
    finally:
        made.hurry()
        await made.stop()


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([listener("web", free_port())])
            await kept.wait_up(10.0)
            web = kept.keepers["web"]
            first = web.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until(lambda: web.pid not in (None, first) and web.up.is_set())
            assert children.record_find(tmp_path / "run" / "web.pid") == web.pid
            assert web.restarts.total == 1

    run(scenario())


def test_a_process_that_answers_no_more_is_restarted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            deaf_later = listener("web", free_port(), then="s.accept(); s.close(); time.sleep(600)")
            kept.start([deaf_later])
            await until(lambda: kept.keepers["web"].restarts.total >= 1)
            assert "unwell" in kept.keepers["web"].why or "not ready" in kept.keepers["web"].why

    run(scenario())


_SPINS = "import time\nuntil = time.monotonic() + {}\nwhile time.monotonic() < until: pass\n"


def test_a_slow_start_that_works_is_not_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ready = tmp_path / "ready"
    code = _SPINS.format(2.0) + writes(ready, "x") + "time.sleep(600)"

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([script("web", code, ready=_has(ready, "x"), start_s=0.5)])
            await kept.wait_up(0.5)
            assert kept.keepers["web"].restarts.total == 0

    run(scenario())
    assert re.search(r"web is still starting after \d s: it has used \d s of CPU in \d s; ", caplog.text)


def test_a_start_that_hangs_gets_twice_the_time_at_the_next_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            hangs = script("web", "import time; time.sleep(600)", ready=lambda: "not yet", start_s=0.4)
            kept.start([hangs])
            web = kept.keepers["web"]
            assert web.start_limit_s == 0.4
            await until(lambda: web.restarts.total == 1)
            assert "it has used 0 s of CPU" in web.why
            assert web.start_limit_s == 0.8
            await until(lambda: web.restarts.total == 2)
            assert web.start_limit_s == 1.6

    run(scenario())


def test_a_process_that_works_is_slow_and_one_that_hangs_is_unwell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy = script("web", _SPINS.format(3.0) + "time.sleep(600)", alive=lambda: "no answer", alive_every_s=0.2)

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([busy])
            began = time.monotonic()
            await until(lambda: kept.keepers["web"].restarts.total == 1, 30.0)
            assert time.monotonic() - began > 2.5

    run(scenario())
    assert "web answers slowly: it has used" in caplog.text
    assert "web is unwell: it has used" in caplog.text


def test_a_process_that_needs_another_waits_for_it_and_is_stopped_before_it(tmp_path: Path) -> None:
    story = tmp_path / "story"
    bye = (
        "import signal,sys,time\n"
        "def bye(*_):\n    {}    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\n{}time.sleep(600)"
    )

    def telling(name: str, needs: tuple[str, ...] = ()) -> Spec:
        code = bye.format(writes(story, f"{name} stops"), writes(story, f"{name} starts"))
        return script(name, code, needs=needs, ready=_has(story, f"{name} starts"))

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([telling("web", needs=("base",)), telling("base")])
            await kept.wait_up(10.0)
            await kept.stop()

    run(scenario())
    assert story.read_text().splitlines() == ["base starts", "web starts", "web stops", "base stops"]


def test_a_process_is_not_blamed_for_a_missing_dependency(tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    asked: list[float] = []

    def web_probe() -> str | None:
        if sick.exists():
            asked.append(time.monotonic())
            return "my database is away"
        return None

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            base = listener("base", free_port())
            web = script("web", "import time; time.sleep(600)", needs=("base",), alive=web_probe, alive_every_s=0.02)
            kept.start([base, web])
            await kept.wait_up(10.0)
            pid = kept.keepers["web"].pid
            kept.keepers["base"].up.clear()  # as during a restart
            sick.touch()
            await until(lambda: len(asked) > 10)
            assert kept.keepers["web"].pid == pid
            kept.keepers["base"].up.set()
            await until(lambda: kept.keepers["web"].restarts.total == 1)

    run(scenario())


def test_the_last_output_of_a_process_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([script("borglet", "import sys; print('capacity.cpu: no quantity'); sys.exit(2)")])
            await until(lambda: kept.keepers["borglet"].restarts.total == 1)

    run(scenario())
    assert "borglet ended with status 2 (capacity.cpu: no quantity); starting it again" in caplog.text


def test_a_process_that_ignores_the_stop_signal_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ready = tmp_path / "ready"
    code = (
        "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + writes(ready, "x") + "time.sleep(600)"
    )

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([script("web", code, stop_s=0.2, ready=_has(ready, "x"))])
            await kept.wait_up(10.0)
            pid = kept.keepers["web"].pid
            assert pid is not None
            await kept.stop()
            assert children.start_time_ticks(pid) is None

    run(scenario())
    assert "web did not end after SIGTERM; killing it" in caplog.text


def test_a_process_that_is_stopped_in_a_hurry_is_not_reported_as_stubborn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([script("web", "import time; time.sleep(600)", stop_signal=signal.SIGWINCH)])
            await kept.wait_up(10.0)
            kept.hurry()
            await kept.stop()

    run(scenario())
    assert "did not end after" not in caplog.text


def test_a_hurried_process_gets_the_signal_that_also_ends_its_children(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"signal.signal(signal.SIGQUIT, lambda *_: (open({str(ended)!r}, 'w').close(), sys.exit(0)))\n"
        + writes(tmp_path / "ready", "x")
        + "time.sleep(600)"
    )

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([script("postgres", code, kill_signal=signal.SIGQUIT, ready=_has(tmp_path / "ready", "x"))])
            await kept.wait_up(10.0)
            kept.hurry()
            await kept.stop()

    run(scenario())
    assert ended.exists()


def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            broken = script("web", "raise SystemExit('no such table: cells')", ready=lambda: "not yet")
            kept.start([broken, listener("link", free_port(), needs=("web",))])
            with pytest.raises(SupervisorError, match=r"web is not up after 1 s.*nor are: link(?s:.*)no such table"):
                await kept.wait_up(1.0)

    run(scenario())


def test_a_step_that_fails_stops_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            await kept.run_once(script("schema", "print('fine')"))
            with pytest.raises(SupervisorError, match=r"schema failed with status 1(?s:.*)column is missing"):
                await kept.run_once(script("schema", "raise SystemExit('column is missing')"))
            with pytest.raises(SupervisorError, match="schema did not end within 0 s"):
                await kept.run_once(script("schema", "import time; time.sleep(600)", start_s=0.2))

    run(scenario())


def test_a_step_can_be_cut_short(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            enough = asyncio.Event()
            assert await kept.run_once(script("stop-tasks", "print('done')"), until=enough)
            step = script("stop-tasks", writes(tmp_path / "began", "x") + "import time; time.sleep(600)")
            running = asyncio.create_task(kept.run_once(step, until=enough))
            await until((tmp_path / "began").exists)
            pid = children.record_find(kept.record("stop-tasks"))
            assert pid is not None
            enough.set()
            assert not await running
            assert children.start_time_ticks(pid) is None

    run(scenario())


def test_a_start_that_the_system_refuses_is_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "program"

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([Spec("web", (str(program),))])
            await until(lambda: "cannot be started" in kept.keepers["web"].why)
            program.write_text("#!/bin/sh\nexec sleep 600\n")
            program.chmod(0o700)
            await kept.wait_up(10.0)

    run(scenario())


def test_a_mistake_of_our_own_is_reported_not_swallowed(tmp_path: Path) -> None:
    def broken_probe() -> str | None:
        raise ZeroDivisionError("a mistake")

    async def scenario() -> None:
        async with supervisor(tmp_path) as kept:
            kept.start([script("web", "import time; time.sleep(600)", ready=broken_probe)])
            with pytest.raises(ZeroDivisionError, match="a mistake"):
                await asyncio.wait_for(kept.broken, 10.0)
            assert kept.keepers["web"].pid is None, "nobody runs unwatched"

    run(scenario())


def test_leftovers_of_a_killed_supervisor_are_stopped(tmp_path: Path) -> None:
    sleeper = children.spawn(script("web", "import time; time.sleep(600)").argv)
    children.record_write(tmp_path / "web.pid", sleeper.pid)
    (tmp_path / "link.pid").write_text('{"pid": 1, "start_time_ticks": 0, "boot_id": "long ago"}')
    assert stop_leftovers(tmp_path) == ["web"]
    assert sleeper.wait() == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_circle_of_needs_is_refused() -> None:
    with pytest.raises(SupervisorError, match="a needs b; b needs a"):
        in_order([Spec("a", ("true",), needs=("b",)), Spec("b", ("true",), needs=("a",))])


def _has(path: Path, text: str) -> probes.Probe:
    def probe() -> str | None:
        return None if path.exists() and text in path.read_text() else f"{path} lacks {text}"

    return probe
