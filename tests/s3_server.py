"""A server that speaks S3 (moto), for tests of file stores. The `conftest` of the integration tests imports it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.ports import free_port

BUCKET = "packages"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "of-the-store"}


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory) -> Iterator[str]:
    """Yield the URL of an S3 server with a bucket, which runs as another process."""
    import boto3  # takes half a second, and other tests do not need it

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("s3") / "log"
    serve = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", serve], env={**os.environ, **KEYS}, stdout=output, stderr=output
        )
        try:
            _answers(url, process, log)
            boto3.client(
                "s3",
                endpoint_url=url,
                region_name="us-east-1",
                aws_access_key_id="tests",
                aws_secret_access_key="of-the-store",
            ).create_bucket(Bucket=BUCKET)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/moto-api/", timeout=2):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    pytest.fail(f"the store did not answer: {log.read_text()}")
