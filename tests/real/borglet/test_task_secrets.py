"""Tests of getting the values of secrets: waiting for them, starting without the link, and renewing files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import msgspec
import pytest

from borglet import task_secrets
from borglet.agent import Agent
from borglet.health_prober import SimulatedProber
from borglet.identity.saved_state import MemoryStore
from borglet.messages import CONFIG, SecretRef, SecretValue, SecretValues, TaskKey
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from borglet.state.instructions import CancelInstall
from borglet.task_secrets import SecretsUnavailable, SecretValet
from tests.doubles import NoPackages
from tests.real.runtimes.machine import a_task

AWAY = SecretsUnavailable("cannot reach the link server", answered=False)
NOT_GRANTED = SecretValues([], ["secret db is not granted to job web"])


def a_value(version: int = 1) -> SecretValue:
    return SecretValue("db", version, "password", "", b"hunter2")


def using(version: int = 1):
    return msgspec.structs.replace(a_task("x"), secrets=[SecretRef("db", version, "password")])


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an `async def` test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


class Scripted:
    """A source that gives one answer after the other, and repeats the last one."""

    def __init__(self, *answers: SecretValues | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[int] = []

    def of(self, keys: Sequence[TaskKey]) -> list[SecretValues]:
        self.requests.append(len(keys))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [answer] * len(keys)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_secrets, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(task_secrets, "RENEW_WITHIN_S", 0.001)


async def keep(key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool) -> None:
    """Do nothing with the files."""


@in_a_loop
async def test_a_start_waits_until_all_values_are_there(caplog) -> None:
    valet = SecretValet(Scripted(AWAY, NOT_GRANTED, NOT_GRANTED, SecretValues([a_value()])), keep)
    assert await valet.values(using()) == [a_value()]
    assert valet.held(using()) == [a_value()]
    reasons = [record.getMessage() for record in caplog.records]
    assert len(reasons) == 2, "each reason is logged once"
    assert "waits for secrets: secret db is not granted to job web" in reasons[1]
    assert "hunter2" not in caplog.text


@in_a_loop
async def test_without_the_link_a_task_starts_again_with_what_it_had() -> None:
    source = Scripted(SecretValues([a_value()]))
    valet = SecretValet(source, keep)
    await valet.values(using())
    source.answers = [AWAY]
    assert await valet.values(using()) == [a_value()]
    source.answers = [NOT_GRANTED, SecretValues([a_value(2)])]
    assert await valet.values(using()) == [a_value(2)], "a revoked grant is not a lost connection"
    valet.forget(using().key)
    assert valet.held(using()) == []


@in_a_loop
async def test_a_renewal_is_repeated_until_the_wanted_version_came() -> None:
    written: list[list[int]] = []

    async def write(key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool) -> None:
        written.append([value.version for value in secrets])
        if len(written) == 2:
            raise OSError("the disk is full")

    source = Scripted(AWAY, SecretValues([a_value(1)]), SecretValues([a_value(2)]))
    valet = SecretValet(source, write)
    valet.renew(using(2), [])
    async with asyncio.timeout(10.0):
        while len(written) < 3:
            await asyncio.sleep(0.001)
    await valet.close()
    assert written == [[1], [2], [2]]


@in_a_loop
async def test_a_start_without_the_link_keeps_a_renewed_version() -> None:
    renewed = asyncio.Event()

    async def renew(key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool) -> None:
        renewed.set()

    source = Scripted(SecretValues([a_value()]))
    valet = SecretValet(source, renew)
    await valet.values(using())
    source.answers = [SecretValues([a_value(2)])]
    valet.renew(using(2), using().secrets)
    await asyncio.wait_for(renewed.wait(), 10)
    await asyncio.sleep(0)
    source.answers = [AWAY]
    assert await valet.values(using(2)) == [a_value(2)]


def a_config(version: int, file: str, on_change: str) -> SecretValue:
    return SecretValue("flags", version, file, "", b"color: red", CONFIG, on_change)


@in_a_loop
async def test_a_config_file_is_renewed_with_a_signal_or_not_at_all() -> None:
    renewed: list[tuple[list[str], bool]] = []

    async def renew(key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool) -> None:
        renewed.append(([value.file for value in secrets], signal))

    async def renew_all(*modes: str) -> None:
        """Renew files from version 1 to version 2."""
        values = [a_config(2, mode, mode) for mode in modes]
        task = msgspec.structs.replace(a_task("x"), secrets=[value.ref() for value in values])
        valet = SecretValet(Scripted(SecretValues([*values, a_value()])), renew)
        valet.renew(task, [a_config(1, mode, mode).ref() for mode in modes])
        await asyncio.gather(*valet._renewals.values())
        await valet.close()

    await renew_all("restart")
    assert renewed == [], "the running task keeps its file"
    await renew_all("nothing", "restart")
    await renew_all("signal", "nothing")
    assert renewed == [(["nothing", "password"], False), (["signal", "nothing", "password"], True)]


@in_a_loop
async def test_nothing_is_renewed_without_a_version_or_a_link() -> None:
    valet = SecretValet(Scripted(NOT_GRANTED), keep)
    valet.renew(using(2), [SecretRef("db", 2, "password")])
    assert valet._renewals == {}, "the task has this version"
    for source, task in ((Scripted(NOT_GRANTED), using(0)), (None, using(2))):
        valet = SecretValet(source, keep)
        valet.renew(task, [])
        assert valet._renewals == {}
    assert await SecretValet(None, keep).values(using()) == []


@in_a_loop
async def test_many_tasks_share_requests_that_follow_each_other() -> None:
    source = Scripted(SecretValues([a_value()]))
    valet = SecretValet(source, keep)
    tasks = [msgspec.structs.replace(using(), key=TaskKey("ab" * 16, index, 1)) for index in range(120)]
    values = await asyncio.gather(*(valet.values(task) for task in tasks))
    assert values == [[a_value()]] * 120
    assert sum(source.requests) == 120
    assert len(source.requests) <= 4


@in_a_loop
async def test_a_busy_link_is_not_a_lost_one() -> None:
    source = Scripted(SecretValues([a_value()]))
    valet = SecretValet(source, keep)
    await valet.values(using())
    busy = task_secrets._rejection(503, b'{"code": "secrets-busy", "detail": "try again later"}')
    source.answers = [busy, SecretValues([a_value(2)])]
    assert await valet.values(using()) == [a_value(2)]
    assert not task_secrets._rejection(503, b"<html>").answered


@in_a_loop
async def test_values_for_a_start_that_is_cancelled_are_forgotten() -> None:
    runtime = SimulatedRuntime(Simulation(lambda: 1000.0), {"cpu": 1000})
    source = Scripted(SecretValues([a_value()]))
    agent = Agent(runtime, MemoryStore(), SimulatedProber(), NoPackages(), clock=lambda: 1000.0, secrets=source)
    await agent._secrets.values(using())
    assert agent._secrets.held(using()) == [a_value()]
    agent._execute(CancelInstall(using().key))
    assert agent._secrets.held(using()) == []
    await agent._secrets.close()
