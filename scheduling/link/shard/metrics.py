"""The metrics of a shard for Prometheus, served at the shard's own `/metrics`.

They are plain numbers, because the counters of the Prometheus library would be too slow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def readable_from(host: str) -> bool:
    """Return whether a client at the address `host` may read the metrics: only programs on the shard's own host may."""
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


class Buckets:
    """A histogram of durations. `bounds`: the upper bounds of its buckets in seconds, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, *bounds: float) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        made, so_far = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            so_far += count
            made.append((str(bound), so_far))
        return HistogramMetricFamily(name, text, buckets=made, sum_value=self._sum)


class ShardMetrics(Collector):
    """The metrics of one shard. `held`: the number of machines that the shard serves."""

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        self.polls = self.settled = self.handshakes = self.written = self.lock_calls = self.lock_renewals = 0
        self.lock_waits: Callable[[], int] = lambda: 0
        self.refusals: Counter[str] = Counter()
        self.intervals = Buckets(0.1, 0.5, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 7, 8, 10, 15, 30)
        self.lateness = Buckets(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
        self.turns = Buckets(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("borg_link_connections", "Machines that this shard serves", value=self._held())
        yield GaugeMetricFamily("borg_link_lock_waits", "Locks for which tasks wait", value=self.lock_waits())
        for name, text, value in (
            ("lock_calls", "Requests of tasks about locks", self.lock_calls),
            ("lock_renewals", "Renewed sessions of locks", self.lock_renewals),
            ("reports", "Reports received", self.polls),
            ("settled_reports", "Reports without a change", self.settled),
            ("handshakes", "WebSockets accepted", self.handshakes),
            ("changes_written", "Changes from reports that were written to rows and journal", self.written),
        ):
            yield CounterMetricFamily(f"borg_link_{name}", text, value=value)
        refusals = CounterMetricFamily("borg_link_refusals", "Rejected machines, by reason", labels=["code"])
        for code, number in sorted(self.refusals.items()):
            refusals.add_metric([code], number)
        yield refusals
        yield self.intervals.family("borg_link_poll_interval_seconds", "Time between two polls of a machine")
        yield self.lateness.family("borg_link_lateness_seconds", "Lateness of polls")
        yield self.turns.family("borg_link_turn_seconds", "Duration of one round of database work of the shard")

    def exposition(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
