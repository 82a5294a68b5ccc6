"""Tests of the alert rules in `deploy/prometheus`, which Prometheus' own tool `promtool` reads and evaluates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_all_rules() -> None:
    promtool("check", "rules", *sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml")))


@pytest.mark.parametrize("name", ["archive_alerts.yml", "statistics_alerts.yml"])
def test_alerts_are_raised_and_only_then(name: str) -> None:
    promtool("test", "rules", Path(__file__).with_name(name))
