"""Metrics of web processes for Prometheus. If `PROMETHEUS_MULTIPROC_DIR` is set, the processes of a host share them."""

from __future__ import annotations

from prometheus_client import Counter

rejected_requests = Counter(
    "borg_requests_rejected_total", "Requests that were rejected before any work was done", ["reason", "kind"]
)
