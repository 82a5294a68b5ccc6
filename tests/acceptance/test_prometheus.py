"""Tests that Prometheus finds its targets through the portal's feed and follows a task to another machine.

Prometheus reads the feed with `http_sd_configs`, as in production: the token is in a file, and the labels of targets
come from the feed. The configuration must contain `type: Bearer`, because Prometheus 2.42 does not add it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.installation import Installation, task_ports, wait_for
from tests.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(200)]

SERVER = Path(__file__).with_name("graceful.py").read_text()
BOUND_S = 60.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: borg
    http_sd_configs:
      - url: {url}/api/v1/feeds/prometheus/?cell=dev&label=team:metrics&port=http
        refresh_interval: 500ms
        authorization: {{type: Bearer, credentials_file: {folder}/token}}
    relabel_configs:
      - {{source_labels: [__meta_borg_phase], regex: up, action: keep}}
      - {{source_labels: [__meta_borg_job], target_label: job}}
      - {{source_labels: [__meta_borg_cell, __meta_borg_tenant, __meta_borg_job, __meta_borg_task], separator: /,
          target_label: instance}}
      - {{regex: __meta_borg_(machine|serving|label_.+), action: labelmap}}
  - job_name: stranger
    http_sd_configs:
      - url: {url}/api/v1/feeds/prometheus/
        refresh_interval: 500ms
        authorization: {{type: Bearer, credentials: not-a-token}}
"""
COUNTED = {
    "name": "counted",
    "tasks": 2,
    "labels": {"team": "metrics"},
    "disruption_budget": 2,
    "task": {
        "command": ["python3", "-c", SERVER, "$(port.http)", "counted"],
        "ports": ["http", "admin"],
        "health": {"http": "/healthy", "port": "http", "interval_s": 0.5},
        "limit": {"ram": "64Mi"},
        "constraints": [{"attribute": "seat", "relation": "=", "value": "window", "hard": False, "weight": 100}],
    },
}


class Prometheus:
    def __init__(self, folder: Path, url: str) -> None:
        self.port = free_port()
        self.log = folder / "prometheus.log"
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(url=url, folder=folder))
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=output,
                stderr=output,
                cwd=folder,
            )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an endpoint of Prometheus's API. Raises `OSError` while Prometheus does not listen."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with _direct.open(url, timeout=5) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> dict[str, float]:
        """Return the values that a query finds, by the label `instance`."""
        rows = self.ask("query", query=query)["result"]
        return {row["metric"].get("instance", ""): float(row["value"][1]) for row in rows}

    def targets(self) -> list[dict[str, Any]]:
        return self.ask("targets", state="active")["activeTargets"]

    def failures(self) -> float:
        """Return how many times Prometheus could not read a feed."""
        with _direct.open(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            found = re.findall(r"^prometheus_sd_http_failures_total (\S+)", answer.read().decode(), re.MULTILINE)
        return float(found[0])

    def becomes(self, wanted: Callable[[], bool]) -> None:
        def holds() -> bool:
            try:
                return wanted()
            except OSError:
                return False

        wait_for(holds, BOUND_S, story=lambda: (self.targets(), self.log.read_text()[-3000:]))


@contextmanager
def machine(there: Installation, folder: Path, hostname: str, *attributes: str) -> Iterator[None]:
    """Run a second Borglet on this host during the `with` block, as another machine of the cell."""
    token = there.borgctl("machine", "join-token", profile="admin")["token"]
    home, (low, high) = folder / hostname, task_ports()
    borglet = [sys.executable, "-m", "borglet"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}
    with (folder / f"{hostname}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *borglet,
                "run",
                "--home",
                str(home),
                "--link",
                f"https://127.0.0.1:{there.settings['LINK_PORT']}",
                "--hostname",
                hostname,
                "--address",
                "127.0.0.1",
                "--runtime",
                "process",
                "--join-token",
                token,
                "--port-low",
                str(low),
                "--port-high",
                str(high),
                *(f"--attribute={each}" for each in attributes),
            ],
            env=env,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait(10)
            subprocess.run([*borglet, "stop-all", "--home", str(home)], env=env, stdout=log, stderr=log, check=True)


def test_prometheus_scrapes_what_runs_and_follows_it(shared: Installation, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    (tmp_path / "token").write_text(shared.token())
    (tmp_path / "counted.json").write_text(json.dumps(COUNTED))
    with machine(shared, tmp_path, "m2", "seat=window"):
        wait_for(
            lambda: {"m2"} <= {row["hostname"] for row in shared.borgctl("machines", profile="admin")},
            BOUND_S,
            story=(tmp_path / "m2.log").read_text,
        )
        shared.borgctl("submit", str(tmp_path / "counted.json"))
        prometheus = Prometheus(tmp_path, shared.url)
        try:
            _scraped_and_followed(shared, prometheus)
        finally:
            prometheus.stop()
            shared.borgctl("kill", "counted")


def _scraped_and_followed(there: Installation, prometheus: Prometheus) -> None:
    both = {f"dev/demo/counted/{index}" for index in range(2)}
    prometheus.becomes(lambda: set(prometheus.values('up{job="counted", machine="m2"} == 1')) == both)
    assert {target["scrapeUrl"] for target in prometheus.targets()} == {
        f"http://127.0.0.1:{row['ports']['http']}/metrics" for row in there.tasks("counted")
    }
    assert {target["labels"]["label_team"] for target in prometheus.targets()} == {"metrics"}

    # The values in Prometheus equal those of the servers.
    first = there.tasks("counted")[0]["ports"]["http"]
    for _ in range(7):
        with _direct.open(f"http://127.0.0.1:{first}/", timeout=5) as answer:
            assert answer.read() == b"counted"
    prometheus.becomes(
        lambda: prometheus.values("requests_total") == {"dev/demo/counted/0": 7, "dev/demo/counted/1": 0}
    )

    there.borgctl("machine", "drain", "m2", "--reason", "test", profile="admin")
    elsewhere = 'up{job="counted", machine!="m2"} == 1'
    prometheus.becomes(lambda: set(prometheus.values(elsewhere)) == both)
    prometheus.becomes(lambda: len(prometheus.targets()) == 2)
    # The new incarnations count from 0, and Prometheus marks the series of the old ones as stale.
    prometheus.becomes(lambda: prometheus.values("requests_total") == dict.fromkeys(both, 0.0))

    # A client with a wrong token gets no targets, and Prometheus counts a failure.
    assert {target["scrapePool"] for target in prometheus.targets()} == {"borg"}
    assert prometheus.failures() > 0


def test_the_program_of_this_test_is_there() -> None:
    assert shutil.which("prometheus")
