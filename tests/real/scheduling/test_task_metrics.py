"""Tests of requests for the metrics of tasks, with servers on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from scheduling.autoscaling import task_metrics
from scheduling.autoscaling.rules.horizontal_rules import Load
from scheduling.autoscaling.task_metrics import metrics_read
from scheduling.spec.autoscaling.fields import TaskMetric

QUEUE = TaskMetric("queue", 10, "http", over="max")
GOOD = b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nqueue 47\n"
HEADER = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.fixture(autouse=True)
def _nothing_left_out() -> Iterator[None]:
    task_metrics._left_out.clear()
    yield
    task_metrics._left_out.clear()


@pytest.fixture
def serve() -> Iterator[object]:
    """Return a function that starts a server and returns its port. `parts`: what it sends to each client, with pauses
    of `pause_s` seconds, and then nothing more.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = []

    def start(*parts: bytes, pause_s: float = 0.0) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
                await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(answer, "127.0.0.1", 0), loop).result(5)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield start

    async def end() -> None:
        for server in servers:
            server.close()
        await asyncio.sleep(0.05)  # clients have closed their connections
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def ask(monkeypatch: pytest.MonkeyPatch, *tasks: tuple[int, int, int]) -> dict[int, Load]:
    """Read the metrics of tasks: pairs of the ids of a job and its tenant, and a port."""
    rows = [(job, tenant, "127.0.0.1", port, 1) for job, tenant, port in tasks]
    monkeypatch.setattr(task_metrics, "query", lambda *_: rows)
    return metrics_read({job: QUEUE for job, _, _ in tasks})


def wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow answers 20 seconds, so that a shorter test shows that nothing was waited for, also on a busy machine."""
    monkeypatch.setattr(task_metrics, "TIMEOUT_S", 20.0)
    monkeypatch.setattr(task_metrics, "TURN_S", 40.0)


def test_a_header_without_an_end_is_read_once_and_only_to_its_limit(serve, monkeypatch) -> None:
    wait_long(monkeypatch)
    port = serve(b"\r\nx" * 2**16)
    begun = time.monotonic()
    assert ask(monkeypatch, (1, 1, port)) == {}
    assert time.monotonic() - begun < task_metrics.TIMEOUT_S / 2, "it does not wait for more"


def test_an_answer_in_many_small_parts_uses_up_the_turn_of_its_tenant_only(serve, monkeypatch) -> None:
    wait_long(monkeypatch)
    monkeypatch.setattr(task_metrics, "READ_S", 0.2)
    slow, good = serve(HEADER, *[b"x"] * 1000, pause_s=0.01), serve(GOOD)
    begun = time.monotonic()
    assert ask(monkeypatch, (1, 1, slow), (2, 2, good)) == {2: Load(4.7)}
    assert time.monotonic() - begun < task_metrics.TIMEOUT_S / 2


def test_hanging_tasks_of_one_tenant_do_not_hide_the_metrics_of_others(serve, monkeypatch) -> None:
    monkeypatch.setattr(task_metrics, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(task_metrics, "TURN_S", 0.75)
    monkeypatch.setattr(task_metrics, "AT_ONCE", 2)
    monkeypatch.setattr(task_metrics, "MOST_OF_TENANT", 6)
    with contextlib.ExitStack() as hanging:
        listeners = [hanging.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1)) for _ in range(10)]
        tasks = [(1, 1, one.getsockname()[1]) for one in listeners]
        assert ask(monkeypatch, *tasks, (2, 2, serve(GOOD))) == {2: Load(4.7)}
        assert 1 <= len(task_metrics._left_out) <= 3, "they are left out for a while"


def test_a_task_is_not_left_out_because_this_process_was_busy(serve, monkeypatch) -> None:
    monkeypatch.setattr(task_metrics, "TIMEOUT_S", 0.2)
    times = iter(range(100))
    monkeypatch.setattr(task_metrics.time, "thread_time", lambda: float(next(times)))
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        assert ask(monkeypatch, (1, 1, listener.getsockname()[1])) == {}
    assert task_metrics._left_out == {}
