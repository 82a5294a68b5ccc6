"""Tests of REST answers that `test_permissions.py` leaves out: the OpenAPI document describes each answer."""

from __future__ import annotations

import pytest

from tests.contracts.described import deviation
from tests.contracts.doors import ROLES, Door
from tests.contracts.test_permissions import World, _impatient, world
from tests.integration import world as people

PASSWORD = "correct horse battery"
__all__ = ["_impatient", "world"]
pytestmark = pytest.mark.django_db

# `test_permissions` checks all other answers.
MORE = (
    Door("post", "api/v1/login/", (), body={"username": "owner", "password": PASSWORD, "name": "laptop"}),
    Door("get", "api/v1/quota/usage/?tenant={tenant}&cell=cc&band=batch", ()),
    Door("get", "bns/{cell}/?within_s=0.05", ()),
)


@pytest.mark.parametrize("door", MORE, ids=lambda door: f"{door.method} {door.path}")
def test_answers_are_as_documented(world: World, door: Door) -> None:
    owner = people.a_user("owner")
    owner.set_password(PASSWORD)
    owner.save()
    for role in ROLES:
        for tenant in ("own", "nobody"):
            answer = world.answer(role, door, tenant)
            assert deviation(door.method, door.path, answer) == "", f"{role} at tenant {tenant}"
