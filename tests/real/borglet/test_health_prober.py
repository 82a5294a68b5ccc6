"""Tests of health probes on real sockets: what counts as an answer, and when the probe gives up."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from borglet.health_prober import ProbeAnswer, SocketProber
from borglet.messages import HealthCheck
from tests.unit.borglet.builders import check


def answer_to(check: HealthCheck, reply: bytes | None, *, closes: bool = True) -> tuple[ProbeAnswer, bytes]:
    """Probe a server that sends `reply`, or nothing if None. Return the probe's result and the request.

    `closes`: whether the server closes the connection after its reply.
    """

    async def whole() -> tuple[ProbeAnswer, bytes]:
        heard = bytearray()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if check.kind == "http":
                    heard.extend(await reader.readuntil(b"\r\n\r\n"))
                if reply is not None:
                    writer.write(reply)
                    await writer.drain()
                if not closes:
                    await reader.read()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            found = await SocketProber("127.0.0.1").probe(check, port)
        await asyncio.sleep(0)
        return found, bytes(heard)

    return asyncio.run(whole())


@pytest.mark.parametrize(("status", "ok"), [(200, True), (204, True), (302, True), (404, False), (503, False)])
def test_the_status_decides(status: int, ok: bool) -> None:
    found, heard = answer_to(check(path="/healthz?x=1"), f"HTTP/1.0 {status} Whatever\r\n\r\nbody".encode())
    assert found.ok is ok
    assert heard.startswith(b"GET /healthz?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert ok or found.detail.endswith(f"GET /healthz?x=1 answered {status}")


def test_an_endless_body_does_not_turn_an_answer_into_a_failure() -> None:
    found, _ = answer_to(check(timeout_s=5.0), b"HTTP/1.1 200 OK\r\n\r\nevent: tick\n", closes=False)
    assert found.ok


@pytest.mark.parametrize("reply", [b"SSH-2.0-OpenSSH_9\r\n", b"", b"x" * 5000])
def test_an_answer_that_is_not_http_does_not_count(reply: bytes) -> None:
    found, _ = answer_to(check(), reply)
    assert not found.ok
    assert "no HTTP answer to GET /" in found.detail


def test_silence_ends_after_the_timeout() -> None:
    began = time.monotonic()
    found, _ = answer_to(check(timeout_s=0.1), None, closes=False)
    assert not found.ok
    assert "no answer within 0.1 s" in found.detail
    assert time.monotonic() - began < 20.0


def test_a_connection_is_enough_for_tcp() -> None:
    assert answer_to(check(kind="tcp"), None)[0].ok


@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_a_closed_port_is_refused(kind: str) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        found = asyncio.run(SocketProber("127.0.0.1").probe(check(kind=kind), reserved.getsockname()[1]))
    assert (found.ok, "refused" in found.detail.lower() or "connect" in found.detail.lower()) == (False, True)


def test_a_check_that_makes_no_sense_fails_with_its_field() -> None:
    prober = SocketProber("127.0.0.1")
    assert "health.kind: 'grpc' is unknown" in asyncio.run(prober.probe(check(kind="grpc"), 1)).detail
    smuggled = check(path="/ HTTP/1.1\r\nX: y")
    assert "health.path" in asyncio.run(prober.probe(smuggled, 1)).detail
