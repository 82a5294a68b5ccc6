"""Tests of the ways to config files: `borgctl config`, REST and the pages of the portal."""

from __future__ import annotations

import json

import pytest

from quota.vocabulary.permissions import Scope
from scheduling.models import ConfigVersion
from tests.integration import cli_world, config_rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/api/v1/tenants/ubar/configs/"


@pytest.fixture
def cli(shared_portal, tenant, tmp_path) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)


def test_a_file_is_written_compared_and_rolled_back(cli: Cli, cell, tenant, ann) -> None:
    (cli.folder / "flags.yaml").write_text("color: red\n")
    written = cli.out("config", "put", "flags", "flags.yaml", "-m", "the first one")
    assert written == "Config file flags of ubar is version 1.\n"
    world.submit(ann, cell, config_rows.using())
    written = cli.out("config", "put", "flags", "-", given="color: blue\n")
    assert written == "Config file flags of ubar is version 2. Jobs, cron jobs and workflows that use it: 1.\n"
    assert "would be version 3" in cli.out("config", "put", "flags", "-", "--dry-run", given="color: green\n")
    assert cli.out("config", "show", "flags") == "color: blue\n"
    assert cli.out("config", "show", "flags", "--version", "1") == "color: red\n"
    assert "-color: red\n+color: blue\n" in cli.out("config", "diff", "flags")
    assert "the first one" not in cli.out("config", "list")
    assert "is version 3." in cli.out("config", "rollback", "flags", "--if-version", "2")
    shown = cli.out("config", "history", "flags")
    assert "used by cc/web (latest)" in shown
    assert "version 1 again" in shown
    assert [row["version"] for row in cli.json("config", "history", "flags")["versions"]] == [3, 2, 1]
    _, document = cli.failing("config", "delete", "flags", "--yes")
    assert document["code"] == "config-in-use"


def test_a_wrong_file_is_explained(cli: Cli) -> None:
    told, _ = cli.failing("config", "put", "flags", "missing", status=2)
    assert "cannot read missing" in told
    (cli.folder / "large").write_bytes(b"x" * 131_073)
    told, _ = cli.failing("config", "put", "flags", "large", status=2)
    assert "has more than 131072 bytes; put larger files into a package" in told
    told, document = cli.failing("config", "put", "flags", "-", given="password: hunter2")
    assert document["code"] == "looks-secret"
    assert "hunter2" not in told
    told, document = cli.failing("config", "show", "flags")
    assert document["code"] == "not-found"


def test_rest_answers_with_contents_and_names_wrong_fields(tenant, ann) -> None:
    client = world.bearer(world.a_user("ann"), tenant=tenant)
    reader = world.bearer(world.a_user("ann"), scopes=[Scope.READ], tenant=tenant)

    def put(body: dict, name: str = "flags"):
        return client.put(f"{URL}{name}/", json.dumps(body), content_type="application/json")

    assert put({"content": "a\n", "if_version": 0}).status_code == 201
    assert put({"content": "a\n"}).status_code == 200, "nothing has changed"
    assert put({"content": "b\n", "if_version": 0}).status_code == 412
    for body, field in (
        ({}, "content"),
        ({"content": "a", "content_base64": "YQ=="}, "content"),
        ({"content_base64": "?"}, "content_base64"),
        ({"content": "\ud800"}, "content"),
        ({"content": "a", "if_version": -1}, "if_version"),
        ({"content": "a", "colour": 1}, "colour"),
    ):
        answer = put(body)
        assert (answer.status_code, list(answer.json()["fields"])) == (422, [field]), body
    assert client.get(f"{URL}flags/content/").json()["content"] == "a\n"
    assert client.get(f"{URL}flags/content/?version=x").status_code == 422
    assert client.get(f"{URL}flags/diff/").status_code == 404, "there is no version before"
    put({"content": "b\n"})
    assert client.get(f"{URL}flags/diff/?against=1&version=2").json()["lines"][-2:] == ["-a", "+b"]
    answer = client.post(f"{URL}flags/rollback/", json.dumps({"version": 1}), content_type="application/json")
    assert answer.json()["newest_version"] == 3
    assert answer.json()["versions"][0]["restored_from"] == 1
    assert [row["name"] for row in reader.get(URL).json()["results"]] == ["flags"]
    assert reader.delete(f"{URL}flags/").status_code == 403
    assert client.delete(f"{URL}flags/").status_code == 204


def test_pages_write_show_differences_and_roll_back(client, tenant, ann) -> None:
    client.force_login(world.a_user("ann"))
    url = "/tenants/ubar/configs/"
    answer = client.post(url, {"name": "flags", "content": "a\r\nb", "comment": "first"})
    assert answer.headers["Location"] == f"{url}flags/"
    assert ConfigVersion.objects.get().content == "a\nb"
    page = client.post(url, {"name": "flags", "content": "again"})
    assert b"should have version 0, but its newest version is 1" in page.content
    assert b"again" in page.content, "the form keeps what was given"
    page = client.post(f"{url}flags/", {"do": "write", "seen": "1", "content": "password: hunter2"})
    assert b"look like secrets" in page.content
    client.post(f"{url}flags/", {"do": "write", "seen": "1", "content": "a\nc"})
    page = client.get(f"{url}flags/").content.decode()
    assert '<span class="line-added">+c' in page
    assert '<span class="line-removed">-b' in page
    client.post(f"{url}flags/", {"do": "rollback", "seen": "2", "version": "1"})
    assert ConfigVersion.objects.latest("version").content == "a\nb"
    assert b"version 1 again" in client.get(f"{url}flags/?version=2&against=0").content
    assert client.get(f"{url}flags/?version=9").status_code == 404
    client.post(f"{url}flags/", {"do": "delete"})
    assert b"There is no config file yet" in client.get(url).content
