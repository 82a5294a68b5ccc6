"""Tests of a Borglet's agent with its link to a shard, the server to which it reports, over TLS and WebSocket.

The runtime of tasks is simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

import pytest
import uvloop

from borglet.agent import Agent, steady_clock
from borglet.backoff import Backoff
from borglet.health_prober import SimulatedProber
from borglet.identity.credentials import BadAuthority, Credentials, pinned_context
from borglet.identity.saved_state import Identity
from borglet.link.client import Introduction, Link, LinkSettings, link_url
from borglet.machine_specs import BadMachine
from borglet.messages import OLDEST_PROTOCOL, PROTOCOL, EndCause, Exit, Health, LogRequest, Phase, Refusal
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from borglet.state.instructions import Remembered
from tests.doubles import FailingRuntime, FailingStore, MemoryKeeper, NoPackages, end_task
from tests.real.borglet.cell import BOUND_S, Authority, Shard, running_shard
from tests.unit.borglet.builders import check, desired, exited, key, policy, run_task, stop_task

HELLO = Introduction("boot-1", "borglet test", {"runtime": "simulated"}, {"cpu": 1000})
QUICK = policy(backoff_s=0.01, max_failures=3)


class Rig:
    """One Borglet with a simulated runtime, connected to one link shard, the server to which it reports."""

    def __init__(self, shard: Shard, authority: Authority, *, remembered: Remembered | None = None) -> None:
        self.shard = shard
        self.simulated = SimulatedRuntime(Simulation(steady_clock(), start_delay_s=0.0), {"cpu": 1000})
        self.runtime = FailingRuntime(self.simulated)
        self.store = FailingStore(remembered)
        self.agent = Agent(self.runtime, self.store, SimulatedProber(), NoPackages(), clock=steady_clock())
        self.link = Link(
            self.agent,
            Credentials(Identity("m1", "aa", "secret"), authority.pem, MemoryKeeper()),
            shard.url,
            HELLO,
            rng=random.Random(1),
            settings=LinkSettings(connect_timeout_s=5.0, silence_s=5.0),
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Rig]:
        await self.agent.open()
        task = asyncio.get_running_loop().create_task(self.link.run())
        try:
            yield self
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.agent.close()


def linked(
    authority: Authority,
    scenario: Callable[[Rig], Awaitable[None]],
    *,
    protocol: int = PROTOCOL,
    run: Callable[[Coroutine[None, None, None]], None] = asyncio.run,
) -> None:
    async def whole() -> None:
        async with (
            asyncio.timeout(4 * BOUND_S),
            running_shard(authority, protocol=protocol) as shard,
            Rig(shard, authority).serving() as rig,
        ):
            await scenario(rig)
            assert rig.agent.failed is not None
            assert not rig.agent.failed.done()
            rig.agent.state.validate()

    run(whole())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():
            await asyncio.sleep(0.005)


def test_a_task_goes_from_desired_to_up_to_gone(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        assert (shard.hello.hostname, shard.hello.capacity, shard.hello.history_id) == ("m1", {"cpu": 1000}, "")
        assert rig.shard.credentials == ["Bearer m1:secret"]
        wanted = desired(1, [run_task(health=check())])
        report = await shard.until(lambda found: bool(found.tasks) and found.tasks[0].health is Health.HEALTHY, wanted)
        assert (report.session, report.generation, report.tasks[0].phase) == (1, wanted.generation, Phase.UP)
        await rig.agent.sample()
        assert (await shard.poll()).tasks[0].usage.ram_bytes > 0
        report = await shard.until(lambda found: found.tasks[0].phase is Phase.ENDED, desired(2, [], [stop_task()]))
        assert report.tasks[0].exit is not None
        assert report.tasks[0].exit.cause is EndCause.STOPPED
        assert (await shard.poll(desired(3))).tasks == []
        await until(lambda: ("remove", key()) in rig.runtime.calls)

    linked(authority, scenario)


def test_a_held_poll_is_answered_when_something_changes_and_not_before(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        await shard.until(lambda found: [task.phase for task in found.tasks] == [Phase.UP], desired(1, [run_task()]))
        await shard.poll()
        await shard.ask(hold_s=BOUND_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await shard.socket.recv()
        asked = time.monotonic()
        end_task(rig.simulated, key(), exited(0))
        report = await shard.hear()
        assert (report.sequence, report.tasks[0].phase) == (shard.sequence, Phase.ENDED)
        assert time.monotonic() - asked < BOUND_S / 2

    linked(authority, scenario)


def test_an_answer_that_is_planned_for_now_is_not_planned_again_later(authority: Authority) -> None:
    """The fleets of the bench use uvloop, whose handle of a call without a delay does not contain a time."""

    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        await shard.ask(hold_s=BOUND_S)
        await until(lambda: rig.link._session is not None and rig.link._session.held is not None)
        assert rig.link._session is not None
        rig.link._release_after(rig.link._session, 0.0)
        rig.link._release_after(rig.link._session, BOUND_S)
        assert (await shard.hear()).sequence == shard.sequence

    linked(authority, scenario, run=uvloop.run)


def test_a_hold_runs_out_and_a_newer_poll_answers_the_held_one_first(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        await shard.poll()
        report = await shard.poll(hold_s=0.05)
        assert report.sequence == 2
        await shard.ask(hold_s=BOUND_S)
        await shard.ask(desired(1))
        answers = [await shard.hear(), await shard.hear()]
        assert [(found.sequence, found.revision) for found in answers] == [(3, 0), (4, 1)]

    linked(authority, scenario)


def test_a_log_request_does_not_wait(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        await shard.poll()
        report = await shard.poll(hold_s=BOUND_S, logs=[LogRequest("r1", key())])
        assert [(chunk.request_id, chunk.error) for chunk in report.logs] == [("r1", "a simulated task writes no log")]
        rig.runtime.fail("read_log", OSError("input/output error"))
        report = await shard.poll(logs=[LogRequest("r2", key())])
        assert report.logs[0].error == "the machine cannot read the log: input/output error"

    linked(authority, scenario)


def test_a_lost_connection_comes_back_at_once_and_the_tasks_never_noticed(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.shard.arrival()
        wanted = desired(1, [run_task()])
        await first.until(lambda found: [task.phase for task in found.tasks] == [Phase.UP], wanted)
        first.socket.transport.abort()
        lost = time.monotonic()
        second = await rig.shard.arrival()
        assert time.monotonic() - lost < 10.0
        assert second.hello.history_id == "h1"
        report = await second.poll()
        assert (report.session, report.sequence, report.generation) == (2, 1, wanted.generation)
        assert (report.tasks[0].phase, report.tasks[0].restarts) == (Phase.UP, 0)

    linked(authority, scenario)


def test_after_a_long_cut_only_what_was_rescheduled_is_stopped(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        before = await rig.shard.arrival()
        staying, leaving = run_task(), run_task(1)
        report = await before.until(
            lambda found: [task.phase for task in found.tasks] == [Phase.UP, Phase.UP], desired(1, [staying, leaving])
        )
        rig.link.drop()
        after = await rig.shard.arrival()
        assert [task.phase for task in (await after.poll()).tasks] == [Phase.UP, Phase.UP]
        found = await after.until(
            lambda found: Phase.ENDED in [task.phase for task in found.tasks], desired(2, [staying], [stop_task(1)])
        )
        kept, stopped = sorted(found.tasks, key=lambda task: task.key)
        assert kept == report.tasks[0]
        assert stopped.exit is not None
        assert stopped.exit.cause is EndCause.STOPPED
        assert [call for call in rig.runtime.calls if call[0] == "stop"] == [("stop", leaving.key)]

    linked(authority, scenario)


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_borglet_says_what_its_shard_understands(authority: Authority, protocol: int) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        assert (shard.hello.protocol, shard.hello.newest) == (OLDEST_PROTOCOL, PROTOCOL)
        report = await shard.until(
            lambda found: [task.phase for task in found.tasks] == [Phase.UP], desired(1, [run_task()])
        )
        await rig.agent.sample()
        await shard.ask()
        frame = json.loads(await shard.socket.recv())
        assert ("usages" in frame) is (protocol > 1)
        assert ("usage" in frame["tasks"][0]) is (protocol == 1)
        assert frame["tasks"][0]["key"]["job"] == report.tasks[0].key.job

    linked(authority, scenario, protocol=protocol)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b'{"type":"poll","sequence":2,"desired":{"history_id":"h1","run":[{', "truncated"),
        (b'{"type":"poll","sequence":"two"}', "$.sequence"),
        (b'{"type":"order","sequence":2}', "type"),
        (b"\xff\xfe", "invalid character"),
    ],
)
def test_a_damaged_frame_is_answered_with_its_reason_and_changes_nothing(
    authority: Authority, frame: bytes, reason: str
) -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.shard.arrival()
        wanted = desired(1, [run_task()])
        before = await first.until(lambda found: [task.phase for task in found.tasks] == [Phase.UP], wanted)
        await first.socket.send(frame)
        second = await rig.shard.arrival()
        await until(lambda: bool(rig.shard.closed))
        code, text = rig.shard.closed[0]
        assert code == 1007
        assert reason in (text or "").lower()
        after = await second.poll()
        assert (after.tasks, after.generation) == (before.tasks, before.generation)

    linked(authority, scenario)


def test_a_refused_desired_state_is_reported_in_the_answer(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        await shard.poll(desired(5))
        refused = (await shard.poll(desired(4, [run_task()]))).refused
        assert refused is not None
        assert (refused.code, refused.field) == ("older-desired-state", "desired.revision")
        rig.store.error = OSError(28, "No space left on device")
        report = await shard.poll(desired(6, [run_task()]))
        assert report.refused is not None
        assert (report.refused.code, report.revision, report.tasks) == ("not-saved", 5, [])
        rig.store.error = None
        assert (await shard.poll(desired(6, [run_task()]))).revision == 6

    linked(authority, scenario)


def test_failures_of_the_runtime_are_reported_and_retried(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        rig.runtime.fail("start", StartFailed("command: no such file 'serve'"))
        rig.runtime.fail("start", OSError("out of descriptors"))
        report = await shard.until(
            lambda found: [task.phase for task in found.tasks] == [Phase.UP], desired(1, [run_task(restart=QUICK)])
        )
        found = report.tasks[0]
        assert found.exit is not None
        assert (found.restarts, found.exit.cause) == (2, EndCause.START_FAILED)
        assert found.exit.detail == "the machine could not start the task: out of descriptors"
        end_task(rig.simulated, key(), Exit(EndCause.OUT_OF_MEMORY, 0.0, signal=9, detail="limit 1 MiB, used 2 MiB"))
        report = await shard.until(lambda found: found.tasks[0].phase is Phase.UP and found.tasks[0].restarts == 3)
        assert report.tasks[0].exit is not None
        assert report.tasks[0].exit.detail == "limit 1 MiB, used 2 MiB"
        rig.runtime.fail("stop", OSError("the supervisor does not take it"))
        await shard.until(lambda found: found.tasks[0].phase is Phase.ENDED, desired(2, [], [stop_task()]))
        assert [call for call in rig.runtime.calls if call[0] == "stop"] == [("stop", key())] * 2

    linked(authority, scenario)


def test_a_refusal_is_logged_with_its_field_and_the_borglet_stays(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.shard.refusal = Refusal("unknown-machine", "hostname", "no machine m1 in cell aa")
        await until(lambda: "unknown-machine (hostname): no machine m1 in cell aa" in caplog.text)
        rig.shard.refusal = None
        assert (await (await rig.shard.arrival()).poll()).tasks == []

    linked(authority, scenario)


def test_a_wrong_secret_is_logged_and_not_tried_again_soon(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        async with running_shard(authority) as shard:
            shard.refuse_upgrade = True
            async with Rig(shard, authority).serving():
                await until(lambda: "HTTP 401 wrong secret" in caplog.text)
                assert len(shard.credentials) == 1

    asyncio.run(whole())


def test_a_shard_of_another_authority_is_not_talked_to(
    authority: Authority, other_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        async with running_shard(other_authority) as shard, Rig(shard, authority).serving():
            await until(lambda: "has no certificate of this machine's cell" in caplog.text)
            assert shard.credentials == []

    asyncio.run(whole())


def test_a_task_nobody_can_start_does_not_take_the_borglet_down(authority: Authority) -> None:
    async def scenario(rig: Rig) -> None:
        shard = await rig.shard.arrival()
        rig.runtime.fail("start", KeyError("ram"), times=9)
        report = await shard.until(
            lambda found: bool(found.tasks) and found.tasks[0].phase is Phase.ENDED,
            desired(1, [run_task(restart=QUICK)]),
        )
        assert report.tasks[0].exit is not None
        assert "crash loop: 4 failures" in report.tasks[0].exit.detail

    linked(authority, scenario)


def test_a_broken_promise_of_the_runtime_ends_the_borglet(authority: Authority) -> None:
    async def whole() -> None:
        async with running_shard(authority) as shard:
            rig = Rig(shard, authority)
            rig.runtime.fail("next_end", RuntimeError("the runtime is gone"))
            async with rig.serving():
                assert rig.agent.failed is not None
                with pytest.raises(RuntimeError, match="the runtime is gone"):
                    await asyncio.wait_for(rig.agent.failed, BOUND_S)

    asyncio.run(whole())


def test_pauses_grow_with_jitter_and_the_first_is_short() -> None:
    backoff = Backoff(random.Random(7))
    pauses = [backoff.next_s() for _ in range(200)]
    assert 0 < pauses[0] <= 0.5
    assert 1.0 <= max(pauses) <= 5.0
    assert len({round(pause, 3) for pause in pauses}) > 100
    backoff.succeeded()
    assert backoff.next_s() <= 0.5
    assert backoff.next_s(hopeless=True) >= 30


def test_addresses_and_authorities_that_are_none() -> None:
    assert link_url("https://127.0.0.1:8443") == "wss://127.0.0.1:8443/link"
    with pytest.raises(BadMachine, match="link: 'http://x' is not the address of a cell's link server; give https"):
        link_url("http://x")
    with pytest.raises(BadAuthority, match="not a certificate in PEM form"):
        pinned_context("nothing")
