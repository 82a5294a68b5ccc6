"""Tests of label selectors against PostgreSQL, with names of labels that could be mistaken for something else."""

from __future__ import annotations

import pytest

from scheduling.access.label_filters import selected
from scheduling.models import Job
from tests.integration import rows

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("2024", {"marked"}),
        ("!2024", {"plain"}),
        ("2024=x", {"marked"}),
        ("2024!=x", {"plain"}),
        ("2024 in (x,y)", {"marked"}),
    ],
)
def test_the_name_of_a_label_may_be_digits(selector: str, found: set[str]) -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant()
    for name, labels in (("marked", {"2024": "x"}), ("plain", {"app": "x"})):
        Job.objects.filter(pk=rows.a_job(cell, tenant, name).pk).update(labels=labels)
    assert {job.name for job in selected(Job.objects.all(), selector)} == found
