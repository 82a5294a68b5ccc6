"""Tests of `borgctl` with cron jobs against a real web process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from scheduling.models import CronJob, Job
from tests.integration import cli_world, cron_rows, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(tmp_path, shared_portal) -> Cli:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)


def test_update_changes_only_cron_jobs_that_exist(ann) -> None:
    file = ann.folder / "nightly.json"
    file.write_text(json.dumps(cron_rows.a_cron_file()))
    message = ann.failing("update", str(file))[0]
    assert "cannot update cron job cc/ubar/nightly: it does not exist; create it with `borgctl submit FILE`" in message
    assert CronJob.objects.count() == 0
    assert "is new" in ann.out("submit", str(file))
    assert "already has this spec" in ann.out("update", str(file))
    file.write_text(json.dumps(cron_rows.a_cron_file(schedule="0 5 * * *")))
    assert "there is already a cron job" in ann.failing("submit", str(file))[0]
    assert "changes" in ann.out("update", str(file))
    assert CronJob.objects.get().schedule == "0 5 * * *"
    assert "submitted" in ann.out("cron", "run", "nightly", "--confirm", "5")


def test_apply_works_with_a_portal_that_has_no_cron_jobs(ann, shared_portal) -> None:
    folder = ann.folder / "shop"
    folder.mkdir()
    (folder / "web.json").write_text(json.dumps(world.a_file()))
    with _without_cron_jobs(shared_portal) as url:
        ann.environment["BORG_URL"] = url
        assert ann.out("apply", "shop", "--yes").endswith("Done: 1 job changed.\n")
    assert Job.objects.get().name == "web"


@contextmanager
def _without_cron_jobs(portal: str) -> Iterator[str]:
    """Yield the address of a server that passes requests to the portal, but answers as one without cron jobs."""

    class Handler(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            path = "/api/v1/nowhere/" if "/cron-jobs/" in self.path else self.path
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            answer = httpx.request(self.command, portal + path, headers=headers, content=body)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = _pass  # noqa: N815 - names of the library

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
