"""Reads metrics that tasks serve over HTTP, for all jobs that scale by a metric.

A process of a master asks the tasks itself, at the addresses that clients use too. Each request has a second, and a
turn has four. A task that does not answer counts as unmeasured, and is left out for half a minute, so hanging tasks
of one tenant do not use up the turns. The tenants take turns, and what the answers of one may cost is bounded.
Redirects are not followed, and long answers are cut.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from scheduling.autoscaling.rules.horizontal_rules import Load
from scheduling.autoscaling.rules.loads import MOST_TASKS, load_by_metric
from scheduling.autoscaling.rules.metric_text import metric_value
from scheduling.journal.sql import query
from scheduling.spec.autoscaling.fields import TaskMetric

log = structlog.get_logger(__name__)

TIMEOUT_S, TURN_S = 1.0, 4.0
MOST_BYTES, MOST_HEADER = 256 * 2**10, 8 * 2**10
# Processor time in seconds that the answers of one tenant may use in a turn, and what one read counts.
MOST_WORK_S, READ_S = 0.5, 50e-6
# Tasks of a tenant that one turn asks at most, and requests at once.
MOST_OF_TENANT, AT_ONCE = 500, 200
# For how many seconds a task that did not answer is left out.
LEFT_OUT_S = 30.0
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*\r\n")
_TASKS = f"""
SELECT t.job_id, j.tenant_id, coalesce(nullif(t.address, ''), host(m.address)),
  t.ports[array_position(j.port_names, p.name)], j.tasks_up
FROM unnest(%s::bigint[], %s::text[]) AS p(job_id, name)
JOIN scheduling_job AS j ON j.id = p.job_id
JOIN LATERAL (SELECT * FROM scheduling_task AS t WHERE t.job_id = j.id AND t.state = 'running' AND t.up
              ORDER BY t."index" LIMIT {MOST_TASKS}) AS t ON true
JOIN scheduling_machine AS m ON m.id = t.machine_id
ORDER BY t."index", t.job_id
"""
_left_out: dict[tuple[str, int], float] = {}  # until when, by the monotonic clock


class _Place(NamedTuple):
    tenant: int
    job_id: int
    host: str
    port: int


def metrics_read(asked: Mapping[int, TaskMetric]) -> dict[int, Load]:
    """Return the loads of jobs by their metrics, by job id. Jobs without an answer are left out. Takes at most `TURN_S`
    seconds, and makes one query.
    """
    rows = query(_TASKS, [list(asked), [metric.port for metric in asked.values()]])
    running = {job_id: number for job_id, *_, number in rows}
    now = time.monotonic()
    for key in [key for key, until in _left_out.items() if until <= now]:
        del _left_out[key]
    of_tenant: Counter[int] = Counter()
    tried: Counter[int] = Counter()  # by job id; the other tasks are taken to be like these
    places: list[tuple[int, _Place]] = []
    for job_id, tenant, host, port, _ in rows:
        if of_tenant[tenant] >= MOST_OF_TENANT:
            continue
        tried[job_id] += 1
        if host and port and (host, port) not in _left_out:
            places.append((of_tenant[tenant], _Place(tenant, job_id, host, port)))
            of_tenant[tenant] += 1
    places.sort(key=lambda pair: pair[0])  # the tenants take turns
    values = asyncio.run(_values_read([place for _, place in places], asked))
    return {
        job_id: load
        for job_id, metric in asked.items()
        if (load := load_by_metric(values.get(job_id, ()), tried[job_id], running.get(job_id, 0), metric)) is not None
    }


async def _values_read(places: Sequence[_Place], asked: Mapping[int, TaskMetric]) -> dict[int, list[float]]:
    """Return the values of tasks, by job id."""
    found: dict[int, list[float]] = {}
    at_once = asyncio.Semaphore(AT_ONCE)
    work = _Work()

    async def read(place: _Place) -> None:
        async with at_once:
            begun = time.thread_time()
            try:
                text = await asyncio.wait_for(_fetch(place, asked[place.job_id].path, work), TIMEOUT_S)
            except TimeoutError:
                # If this process was busy itself, the task may have answered in time.
                if time.thread_time() - begun < TIMEOUT_S / 2:
                    _left_out[place.host, place.port] = time.monotonic() + LEFT_OUT_S
                return
            except (OSError, ValueError):
                return
        if work.is_used_up(place.tenant):
            return
        parsing = time.thread_time()
        value = metric_value(text, asked[place.job_id].name)
        work.add(place.tenant, time.thread_time() - parsing)
        if value is not None:
            found.setdefault(place.job_id, []).append(value)

    if places:
        reading = [asyncio.create_task(read(place)) for place in places]
        _, late = await asyncio.wait(reading, timeout=TURN_S)
        for one in late:
            one.cancel()
        if late:
            log.warning("not all metrics of tasks were read in time", asked=len(places), late=len(late))
            await asyncio.wait(late)
    return found


class _Work:
    """The processor time that each tenant's answers have used in a turn, in seconds."""

    def __init__(self) -> None:
        self._used_s: defaultdict[int, float] = defaultdict(float)

    def add(self, tenant: int, seconds: float) -> None:
        self._used_s[tenant] += seconds

    def is_used_up(self, tenant: int) -> bool:
        return self._used_s[tenant] > MOST_WORK_S


async def _fetch(place: _Place, path: str, work: _Work) -> str:
    """Return the body of an answer with status 200, or "". Each byte is looked at once, and small parts count as work
    of the tenant, so a slow or long answer does not keep this process busy.
    """
    content = bytearray()
    begin, end = 0, MOST_BYTES  # of the body
    reader, writer = await asyncio.open_connection(place.host, place.port)
    try:
        # Version 1.0, so that the answer ends when the connection does.
        head = f"GET {path} HTTP/1.0\r\nHost: {place.host}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        while len(content) < end and not work.is_used_up(place.tenant):
            part = await reader.read(65_536)
            if not part:
                break
            work.add(place.tenant, READ_S)
            searched = max(0, len(content) - 3)
            content += part
            if not begin:
                begin = content.find(b"\r\n\r\n", searched, MOST_HEADER) + 4
                if begin < 4:
                    begin = 0
                    if len(content) >= MOST_HEADER:
                        return ""
                elif (length := _LENGTH.search(content, 0, begin)) is not None:
                    end = min(end, begin + int(length[1]))
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if not begin or content[: content.find(b"\r\n")].split(b" ", 2)[1:2] != [b"200"]:
        return ""
    body = bytes(content[begin:])
    if len(content) >= MOST_BYTES:
        body = body[: body.rfind(b"\n") + 1]  # the last line may be cut in the middle of a number
    return body.decode("utf-8", "replace")
