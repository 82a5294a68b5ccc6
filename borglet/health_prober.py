"""Probe the health of a task with one HTTP request or one TCP connection."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import Protocol

from borglet.messages import HealthCheck

MAX_STATUS_LINE_BYTES = 1024
MAX_BODY_BYTES = 65536
MAX_BODY_S = 0.25


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The result of one probe. `detail`: the reason of a failure. `holds_s`: the number of seconds for which the result
    stays the same.
    """

    ok: bool
    detail: str = ""
    holds_s: float = 0.0


class Prober(Protocol):
    async def probe(self, check: HealthCheck, port: int, address: str = "") -> ProbeAnswer:
        """Probe a task once, within `check.timeout_s` seconds. `address`: the task's own IP address, or empty if the
        task uses the machine's address.

        If the task does not answer, no error is raised. The result contains the reason.
        """


class SocketProber:
    """A prober that connects to the address at which clients reach the task. This is the task's own address or the
    machine's address.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    async def probe(self, check: HealthCheck, port: int, address: str = "") -> ProbeAnswer:
        address = address or self._address
        try:
            async with asyncio.timeout(check.timeout_s):
                if check.kind == "tcp":
                    _, writer = await asyncio.open_connection(address, port)
                    writer.transport.abort()
                    return ProbeAnswer(True)
                if check.kind == "http":
                    return await self._get(check.path, address, port)
        except TimeoutError:
            return ProbeAnswer(False, f"port {port}: no answer within {check.timeout_s:g} s")
        except OSError as error:
            return ProbeAnswer(False, f"port {port}: {error.strerror or error}")
        return ProbeAnswer(False, f"health.kind: {check.kind!r} is unknown; use http or tcp")

    async def _get(self, path: str, address: str, port: int) -> ProbeAnswer:
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            return ProbeAnswer(False, f"health.path: {path!r} is not a path; begin it with /, and percent-encode it")
        reader, writer = await asyncio.open_connection(address, port, limit=MAX_STATUS_LINE_BYTES)
        try:
            request = f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nUser-Agent: borglet\r\n"
            writer.write(f"{request}Accept: */*\r\nConnection: close\r\n\r\n".encode())
            line = await _status_line(reader)
            if line:
                await _take_rest(reader)
        finally:
            writer.transport.abort()
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            return ProbeAnswer(False, f"port {port}: no HTTP answer to GET {path}")
        status = int(words[1])
        return ProbeAnswer(200 <= status < 400, f"port {port}: GET {path} answered {status}")


async def _status_line(reader: asyncio.StreamReader) -> bytes:
    """Return the first line of the answer; empty if the answer has no complete line."""
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""


async def _take_rest(reader: asyncio.StreamReader) -> None:
    """Read and ignore the rest of a small answer. Otherwise simple servers would log a broken pipe at each probe."""
    taken = 0
    with contextlib.suppress(TimeoutError, OSError):  # the status is known, so errors of the body do not matter
        async with asyncio.timeout(MAX_BODY_S):
            while taken < MAX_BODY_BYTES and (chunk := await reader.read(8192)):
                taken += len(chunk)


class SimulatedProber:
    """A prober for simulated machines: every task stays healthy, so each task is probed only once."""

    async def probe(self, check: HealthCheck, port: int, address: str = "") -> ProbeAnswer:
        return ProbeAnswer(True, holds_s=math.inf)
