"""Tests of `borgctl secret`: what it sends, what it prints, and that no output contains a value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quota.models import Membership
from quota.vocabulary.permissions import Role
from scheduling.models import SecretVersion
from tests.integration import cli_world, secret_rows, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def olga(shared_portal, tenant, tmp_path: Path) -> cli_world.Cli:
    cli = cli_world.of(tmp_path, shared_portal, "olga", tenant=tenant)
    Membership.objects.filter(user__username="olga").update(role=Role.OWNER.value)
    return cli


def test_a_value_is_set_from_standard_input_or_a_file_and_never_printed(olga) -> None:
    printed = olga.out("secret", "set", "db", given="hunter2\n")
    assert printed == "Secret db of ubar is now version 1. No job may use it yet: `borgctl secret grant db JOB`.\n" or (
        "version 1" in printed
    )
    (olga.folder / "value").write_bytes(b"\x00hunter3\n")
    printed += olga.out("secret", "set", "db", "--file", "value")
    assert list(SecretVersion.objects.order_by("version").values_list("size_bytes", "is_text")) == [
        (7, True),
        (9, False),
    ]
    printed += olga.out("secret", "grant", "db", "web-*")
    printed += olga.out("secret", "grant", "db", "web", "--cell", "cc")
    printed += (
        olga.out("secret", "list") + olga.out("secret", "show", "db") + json.dumps(olga.json("secret", "show", "db"))
    )
    assert "web in cc, web-*" in printed
    printed += olga.out("secret", "revoke", "db", "web-*")
    printed += olga.out("secret", "set", "db", "--dry-run", given="hunter4")
    assert SecretVersion.objects.count() == 2
    printed += olga.out("secret", "delete", "db", "--yes")
    assert not SecretVersion.objects.exists()
    assert "hunter" not in printed


def test_a_wrong_value_or_name_is_explained(olga) -> None:
    told, document = olga.failing("secret", "set", "db", status=2, given="")
    assert "the value has 0 bytes; give 1 to 65536" in told
    told, document = olga.failing("secret", "set", "db", "--file", "missing", status=2)
    assert "cannot read missing" in told
    told, document = olga.failing("secret", "set", "D_B", given="hunter2")
    assert document["code"] == "invalid"
    assert "name" in document["fields"]
    assert "hunter2" not in told
    told, document = olga.failing("secret", "grant", "db", "web")
    assert document["code"] == "not-found"


def test_a_secret_in_use_is_deleted_only_by_force(olga, cell, ann) -> None:
    olga.out("secret", "set", "db", given="hunter2")
    olga.out("secret", "grant", "db", "web")
    world.submit(ann, cell, secret_rows.using())
    assert "cc/web" in olga.out("secret", "show", "db")
    _, document = olga.failing("secret", "delete", "db", "--yes")
    assert document["code"] == "secret-in-use"
    assert "deleted" in olga.out("secret", "delete", "db", "--yes", "--force")
