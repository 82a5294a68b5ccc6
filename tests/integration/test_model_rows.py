"""Tests of model objects built from rows of SQL statements: they equal the objects that the ORM reads."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models

from quota.model_rows import read_models
from quota.models import Tenant
from scheduling.models import Cell, Job, Machine, Task
from tests.integration.rows import a_cell, a_job, a_machine, a_tenant

pytestmark = pytest.mark.django_db


def columns(row: models.Model) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "_state"}


@pytest.mark.parametrize("model", [Cell, Tenant, Machine, Job, Task])
def test_rows_read_by_sql_equal_those_of_the_orm(model: type[models.Model]) -> None:
    cell = a_cell()
    a_machine(cell)
    a_job(cell, a_tenant())
    Cell.objects.update(settings={"scorer": "mixed", "down_after_s": 5}, extra_resources=["gpu.a"])
    Job.objects.update(labels={"service": "front"}, published={"ttl_s": 9})
    found = read_models(model, f"SELECT {{columns}} FROM {model._meta.db_table} AS t ORDER BY id")
    wanted = list(model._default_manager.order_by("id"))
    assert found
    assert [columns(row) for row in found] == [columns(row) for row in wanted]
    assert not found[0]._state.adding


def test_further_columns_become_attributes() -> None:
    cell = a_cell()
    statement = "SELECT {columns}, c.revision + 1 FROM scheduling_cell AS c WHERE c.id = %s"
    (found,) = read_models(Cell, statement, [cell.id], alias="c", also=("following",))
    assert found.following == found.revision + 1  # type: ignore[attr-defined]
