"""The metrics of a resolver for Prometheus. `GET /metrics` on a separate port returns the metrics of all processes of
the resolver.

`docs/guides/alarms.md` describes the alerts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dns.rcode
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from naming.counters import LAG_BOUNDS_S, RCODES, ServerCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONNECTIONS = 16
REQUEST_S = 5.0
_LARGEST_REQUEST = 16_384


class Figured(Collector):
    """A Prometheus collector that converts the counters `figures` of a resolver to metrics. `restarts`: how often each
    worker process was restarted.
    """

    def __init__(self, figures: ServerCounters, restarts: Sequence[int] = (), *, now: float) -> None:
        self._figures = figures
        self._restarts = restarts
        self._now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._questions()
        yield from self._freshness()
        yield from self._cells()
        yield from self._followers()
        yield _counts("worker_restarts", "Restarts of processes, by worker", "worker", dict(enumerate(self._restarts)))

    def _questions(self) -> Iterator[Metric]:
        figures = self._figures
        asked = _counter("queries", "Questions answered, by transport and path", "transport", "path")
        asked.add_metric(["udp", "short"], sum(figures.short))
        asked.add_metric(["udp", "long"], sum(figures.udp))
        asked.add_metric(["tcp", "long"], sum(figures.tcp))
        yield asked
        answers = _counter("answers", "Answers, by RCODE", "rcode")
        for rcode in range(RCODES):
            number = sum(figures.short[rcode::RCODES]) + figures.udp[rcode] + figures.tcp[rcode]
            if number or rcode in _USUAL:
                answers.add_metric([dns.rcode.to_text(dns.rcode.Rcode(rcode))], number)
        yield answers
        limited = {"truncate": 0, "drop": 0, **figures.limited}
        yield _counts("limited", "Questions beyond BORG_DNS_RATE, by how they were handled", "verdict", limited)
        yield _gauge("tcp_connections", "Open TCP connections", figures.streams)
        bounded = {"source": 0, "all": 0, **figures.streams_bounded}
        yield _counts("tcp_bounded", "TCP connections ended or rejected, by the limit", "bound", bounded)
        for name, text, value in (
            ("unanswered", "Datagrams that were not a valid question", figures.unanswered),
            ("truncated", "Answers with the TC bit", figures.truncated),
            ("errors", "Questions that failed by an error and got SERVFAIL", figures.errors),
        ):
            yield CounterMetricFamily(f"borg_resolver_{name}", text, value=value)

    def _freshness(self) -> Iterator[Metric]:
        figures = self._figures
        yield _gauge("stale", "1 while answers may be stale", int(figures.status == "stale"))
        yield _gauge("loading", "1 while some names are not known yet", int(figures.status == "loading"))
        yield _gauge("unheard_seconds", "Seconds since the journal was last reached", figures.unheard_s)
        made, so_far = [], 0
        for bound, count in zip((*LAG_BOUNDS_S, "+Inf"), figures.lags, strict=True):
            so_far += count
            made.append((str(bound), so_far))
        yield HistogramMetricFamily(
            "borg_resolver_news_lag_seconds",
            "Seconds from the commit of a change until answers contain it, for the oldest change of each batch",
            buckets=made,
            sum_value=figures.lag_sum_s,
        )

    def _cells(self) -> Iterator[Metric]:
        revision = _gauge_of("revision", "Revision of the journal that answers are from", "cell")
        serial = _gauge_of("serial", "Serial of the cell's zone", "cell")
        names = _gauge_of("names", "Jobs and tasks with names, by kind", "cell", "kind")
        age = _gauge_of("snapshot_age_seconds", "Seconds since the cell's snapshot was written", "cell")
        for cell, figures in self._figures.cells.items():
            revision.add_metric([cell], figures.revision)
            serial.add_metric([cell], figures.serial)
            for kind in ("jobs", "placed", "serving"):
                names.add_metric([cell, kind], getattr(figures, kind))
            if figures.snapshot_at:
                age.add_metric([cell], self._now - figures.snapshot_at)
        yield from (revision, serial, names, age)
        yield CounterMetricFamily(
            "borg_resolver_snapshot_failures",
            "Snapshots of names that could not be written",
            value=self._figures.snapshot_failures,
        )

    def _followers(self) -> Iterator[Metric]:
        transfers = dict(sorted(self._figures.transfers.items()))
        yield _counts("transfers", "Answers to AXFR and IXFR, by kind of transfer", "given", transfers)
        failures = dict(sorted(self._figures.notify_failures.items()))
        text = "NOTIFY messages that a secondary did not acknowledge"
        yield _counts("notify_failures", text, "secondary", failures)
        serial = _gauge_of("secondary_serial", "Newest serial sent to a secondary", "cell", "secondary")
        for cell, secondaries in self._figures.secondaries.items():
            for secondary, number in secondaries.items():
                serial.add_metric([cell, secondary], number)
        yield serial


_USUAL = {int(rcode) for rcode in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL, dns.rcode.REFUSED)}


def exposition(figures: ServerCounters, restarts: Sequence[int] = ()) -> bytes:
    """Return the counters of a resolver as metrics in the text format of Prometheus. `restarts`: how often each worker
    process was restarted.
    """
    registry = CollectorRegistry()
    registry.register(Figured(figures, restarts, now=time.time()))
    return generate_latest(registry)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"borg_resolver_{name}", text, labels=labels)


def _counts(name: str, text: str, label: str, counts: Mapping[Any, int]) -> CounterMetricFamily:
    """Return a Prometheus counter. `text`: the help text of the counter. `counts`: one count for each value of the
    label `label`.
    """
    family = _counter(name, text, label)
    for value, number in counts.items():
        family.add_metric([str(value)], number)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"borg_resolver_{name}", text, value=value)


def _gauge_of(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"borg_resolver_{name}", text, labels=labels)


class MetricsServer:
    """An HTTP/1.1 server for `GET /metrics`. Each connection serves one request. `port`: the port on which the server
    listens.
    """

    def __init__(self, host: str, port: int, read: Callable[[], bytes]) -> None:
        self.host, self.port = host, port
        self._read = read
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Start to serve the metrics. Raises `OSError` if the port cannot be opened."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=_LARGEST_REQUEST)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS:
                async with asyncio.timeout(REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client gets no answer
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        target = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", b"Use the method GET.\n", more="Allow: GET\r\n")
        if target != b"/metrics":
            return _response("404 Not Found", b"There is no such page. The metrics are at /metrics.\n")
        return _response("200 OK", self._read(), content_type=CONTENT_TYPE)


def _response(status: str, body: bytes, *, content_type: str = "text/plain", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body
