"""Metrics of web processes for Prometheus. If `PROMETHEUS_MULTIPROC_DIR` is set, `/metrics` adds those of all processes
of the host. Otherwise, it has those of the process that answers.
"""

from __future__ import annotations

from prometheus_client import Counter

rejected_requests = Counter(
    "borg_requests_rejected_total", "Requests that were rejected before any work was done", ["reason", "kind"]
)
