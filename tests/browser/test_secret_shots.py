"""Tests that no page of secrets is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import pytest

from quota.vocabulary.permissions import Role
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import secret_rows
from tests.integration import world as people

PAGES = {"secrets": "/tenants/ubar/secrets/", "secret": "/tenants/ubar/secrets/db-password/"}


@pytest.fixture
def furnished(world):
    owner = people.principal("owner", tenant=world.tenant, role=Role.OWNER)
    secret_rows.a_secret(
        owner, world.tenant, "db-password", b"hunter2", "web", "a-name-that-is-as-long-as-names-may-be-*"
    )
    secret_rows.a_secret(owner, world.tenant, "db-password", b"hunter3")
    secret_rows.a_secret(owner, world.tenant, "a-secret-with-a-name-that-is-as-long-as-names-may-be-xxxx", b"x" * 5000)
    people.submit(owner, world.cell, secret_rows.using({"name": "db-password", "file": "password"}, name="web"))


def test_every_page_of_secrets_fits_its_screen(furnished, page) -> None:
    sign_in(page, "owner")
    for name, path in PAGES.items():
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        if name == "secret":
            page.get_by_text("Delete the secret…").click()
        look_at(page, name)
