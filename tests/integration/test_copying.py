"""Tests of inserting rows with COPY on real PostgreSQL: values are unchanged, and rows that need an id get one."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.journal import copy_rows
from scheduling.models import Job, JobSpec
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)
NOW = dt.datetime(2026, 11, 21, 17, 3, 4, 56789, tzinfo=dt.UTC)
ODD = 'a\tb\nc\rd\\e "f", {g} \\N ü'


def a_job(cell, tenant, **fields) -> Job:
    return Job(cell=cell, tenant=tenant, priority=200, band="production", requested=[1, 2], created_at=NOW, **fields)


def test_rows_are_what_save_would_have_made_of_them() -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant()
    labels = {ODD: ODD, "empty": ""}
    names = ["http", "", "null", "NULL", "a,b", ODD, "{}", '"', "\\", " x"]
    made = a_job(cell, tenant, name="one", labels=labels, port_names=names, submitted_by=ODD, latency_sensitive=True)
    other = a_job(cell, tenant, name="two", ended_at=NOW)
    copy_rows.rows(Job, [made, other])
    spec = JobSpec(
        job=made, version=1, spec=msgspec.Raw(msgspec.json.encode(labels)), digest="d", actor="x", created_at=NOW
    )
    copy_rows.rows(JobSpec, [spec])
    for job in (made, other):
        read = Job.objects.get(pk=job.id)
        for field in Job._meta.concrete_fields:
            assert getattr(read, field.attname) == getattr(job, field.attname), field.attname
    assert made.specs.get().spec == labels
    made.name = "renamed"
    made.save()
    assert Job.objects.count() == 2, "a copied instance is not a new one"


def test_ids_are_given_once_and_none_of_no_rows() -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant()
    many = [a_job(cell, tenant, name=f"j{i}") for i in range(20)]
    with CaptureQueriesContext(connection) as captured:
        copy_rows.rows(Job, many)
        copy_rows.rows(Job, [])
    assert len(captured) == 2
    assert len({job.id for job in many}) == 20
    assert rows.a_job(cell, tenant, "later").id > max(job.id for job in many)


def test_a_value_without_a_text_is_refused_by_its_type() -> None:
    job = a_job(rows.a_cell(), rows.a_tenant(), name="one", submitted_by=b"bytes")
    with pytest.raises(TypeError, match="bytes"):
        copy_rows.rows(Job, [job])
    assert not Job.objects.exists()


def test_a_column_of_numbers_is_an_array() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT %s::bigint[], %s::integer[]", [copy_rows.column([1, None, -(2**62)]), copy_rows.column([])]
        )
        assert cursor.fetchone() == ([1, None, -(2**62)], [])
