"""Tests of `borgctl` for packages against a real web process, with uploads larger than any other request may be."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from quota.vocabulary.permissions import Role
from scheduling.models import Package
from tests.archives import an_image, digest_of
from tests.integration import cli_world, portal_server, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)

MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def url(django_db_setup, tmp_path_factory, folder):
    settings = {
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        "BORG_PACKAGE_STORE": folder.as_uri(),
        "BORG_MAX_BODY_BYTES": str(MOST_BYTES),
    }
    with portal_server.running(tmp_path_factory.mktemp("portal") / "web.log", **settings) as url:
        yield url


@pytest.fixture
def ann(cell, tenant, url, tmp_path) -> Cli:
    return cli_world.of(tmp_path, url, "ann", tenant=tenant)


@pytest.fixture
def tool(tmp_path) -> Path:
    """Return a folder to pack, which is larger than the body of any other request may be."""
    (tmp_path / "tool" / "bin").mkdir(parents=True)
    (tmp_path / "tool" / "bin" / "serve").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "tool" / "noise").write_bytes(os.urandom(5 * MOST_BYTES))
    return tmp_path / "tool"


def test_a_package_from_a_folder_to_a_job_and_away(ann: Cli, tool: Path, folder: Path) -> None:
    built = ann.json("package", "build", "tool", "-o", "tool.tar.gz")
    assert built["digest"] == digest_of((ann.folder / "tool.tar.gz").read_bytes())
    assert "would be" in ann.out("package", "upload", "tool.tar.gz", "--name", "tool", "--dry-run")
    assert "No packages" in ann.out("package", "list")
    assert built["digest"] in ann.out("package", "upload", "tool.tar.gz", "--name", "tool", "--tag", "v1")
    assert ann.json("package", "upload", "tool", "--name", "tool", "--tag", "v1")["outcome"] == "unchanged"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [built["digest"][7:]]
    assert "is " + built["digest"] in ann.out("package", "tag", "tool@v1", "latest")
    file = world.with_task(packages=["tool"]) | {"tenant": "ubar"}
    assert "web" in ann.out("submit", ann.file(file))
    shown = ann.out("package", "show", "tool")
    assert "latest, v1" in shown
    assert "web" in shown
    told, document = ann.failing("package", "delete", f"tool@{built['digest']}")
    assert (document["code"], "web" in told) == ("package-in-use", True)
    assert "the package stays" in ann.out("package", "delete", "tool@v1")
    ann.out("kill", "web")
    assert "is deleted." in ann.out("package", "delete", "tool")
    assert not Package.objects.exists()


def test_an_image_is_a_package(ann: Cli) -> None:
    (ann.folder / "image.tar").write_bytes(an_image())
    ann.out("package", "upload", "image.tar", "--name", "image")
    (row,) = ann.json("package", "list", "--name", "image")
    assert (row["format"], row["tags"]) == ("oci", ["latest"])


def test_what_cannot_be_packed_or_uploaded_says_why(ann: Cli, tool: Path) -> None:
    os.mkfifo(tool / "pipe")
    assert "pipe" in ann.failing("package", "build", "tool", "-o", "out.tar")[0]
    (ann.folder / "text").write_text("no archive")
    assert ann.failing("package", "upload", "text", "--name", "tool")[1]["code"] == "invalid-package"
    assert "name" in ann.failing("package", "upload", "text", "--name", "No!")[1]["fields"]
    ann.failing("package", "upload", "missing", "--name", "tool", status=2)
    ann.failing("package", "show", "a/b", status=2)
    assert ann.failing("package", "show", "nothing")[1]["code"] == "not-found"
    refused = ann.failing("submit", ann.file(world.with_task(packages=["nothing"])))
    assert "task.packages[0]" in refused[0]
    assert "borgctl package upload" in refused[0]


def head(url: str, *lines: str) -> bytes:
    """Send the head of a request without its body, and return the answer of the server."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, f"Host: {host}", "", ""]).encode())
        answer = b""
        while b'"code"' not in answer and (part := connection.recv(65536)):
            answer += part
    return answer


def test_a_large_body_is_refused_before_it_is_read_from_those_who_may_not_send_it(
    ann: Cli, url, cell, tenant, tmp_path
) -> None:
    path = "PUT /api/v1/cells/cc/packages/{}/tool/v1/ HTTP/1.1"
    size, kind = "Content-Length: {}", "Content-Type: application/octet-stream"
    viewer = cli_world.of(tmp_path, url, "vera")
    world.a_user("vera", tenant=tenant, role=Role.VIEWER)
    tokens = {
        name: f"Authorization: Bearer {who.environment['BORG_TOKEN']}" for name, who in (("ann", ann), ("vera", viewer))
    }
    rows.a_tenant("other")
    large = size.format(10 * MOST_BYTES)
    assert b" 401 " in head(url, path.format("ubar"), large, kind)
    assert b" 401 " in head(url, path.format("ubar"), large, kind, "Authorization: Bearer borg_none_none")
    assert b" 403 " in head(url, path.format("ubar"), large, kind, tokens["vera"])
    assert b" 404 " in head(url, path.format("other"), large, kind, tokens["ann"])
    assert b'"too-large"' in head(url, path.format("ubar"), size.format(2**40), kind, tokens["ann"])
    assert b'"too-large"' in head(url, "POST /api/v1/cells/cc/jobs/ HTTP/1.1", large, kind, tokens["ann"])
