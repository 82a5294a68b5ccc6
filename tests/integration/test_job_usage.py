"""Tests of the usage of jobs, which the master publishes at each reclamation cycle, and which REST shows."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.reclamation.cycle import EVERY_S
from scheduling.journal import wakeups
from scheduling.usage import job_usage
from tests.integration import rows, world
from tests.integration.test_reclamation import GIB, Cycle, cell, running

__all__ = ["cell"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_the_master_publishes_the_sums_of_each_job(cell) -> None:
    rows.a_machine(cell)
    cycle = Cycle(cell)
    web, batch = running(cell, tasks=3), running(cell, "batch", limit=(500, GIB, GIB, 0, 0, 1))
    cycle.turn()
    cycle.use(web, cpu=100, ram=5)
    cycle.use(web, index=2, cpu=30, ram=7)
    cycle.report()
    cycle.turn(seconds=EVERY_S)
    found = job_usage.read(cell.id)
    assert found is not None
    by_job = {row["job_id"]: row for row in found.rows}
    assert by_job.keys() == {web.id, batch.id}
    assert (by_job[web.id]["running"], by_job[web.id]["measured"]) == (3, 2)
    assert by_job[web.id]["usage"].tolist() == [130, 12, 0]
    assert by_job[web.id]["limit"].tolist() == [3000, 3 * GIB, 3 * GIB]
    assert (by_job[batch.id]["running"], by_job[batch.id]["measured"]) == (1, 0)
    assert by_job[batch.id]["usage"].tolist() == [0, 0, 0]
    wakeups.client().delete(f"borg:jobs:{cell.id}")


def test_the_answer_has_the_jobs_that_use_most_of_those_that_the_caller_may_see(cell) -> None:
    ubar, dev = rows.a_tenant("ubar"), rows.a_tenant("dev")
    for tenant in (ubar, dev):
        rows.grant(tenant, cell, "production")
    ann = world.bearer(world.a_user("ann", tenant=ubar))
    sre = world.bearer(world.a_user("root", sre=True))
    owner = world.principal("root", sre=True)
    jobs = [
        world.submit(owner, cell, world.a_file(name), tenant=tenant)
        for name, tenant in (("web", "ubar"), ("api", "ubar"), ("db", "dev"))
    ]
    url = f"/api/v1/cells/{cell.name}/jobs:usage"
    empty = ann.get(url).json()
    assert (empty["at"], empty["jobs"], empty["results"]) == (None, 0, [])

    sums = np.zeros(len(jobs), job_usage.SUMS)
    sums["job_id"] = [job.id for job in jobs]
    sums["running"], sums["usage"] = [3, 3, 1], [[100, 9, 0], [300, 5, 0], [700, 1, 1]]
    job_usage.publish(cell.id, job_usage.JobSums(1800000000.0, sums))
    try:
        answer = ann.get(url).json()
        assert (answer["at"], answer["jobs"]) == ("2027-01-15T08:00:00Z", 2)
        assert answer["total"]["usage"] == {"cpu": 400, "ram": 14, "disk": 0}
        assert [row["name"] for row in answer["results"]] == ["api", "web"]
        assert [row["name"] for row in ann.get(url, {"sort": "ram", "limit": 1}).json()["results"]] == ["web"]
        assert [row["name"] for row in sre.get(url).json()["results"]] == ["db", "api", "web"]
        assert [row["name"] for row in sre.get(url, {"tenant": "dev"}).json()["results"]] == ["db"]
        assert ann.get(url, {"tenant": "dev"}).json()["results"] == []
        assert "sort" in ann.get(url, {"sort": "ports"}).json()["fields"]
    finally:
        wakeups.client().delete(f"borg:jobs:{cell.id}")

    # Names that begin with a text, for shells.
    for prefix, names in (("w", ["web"]), ("d", [])):
        found = ann.get(f"/api/v1/cells/{cell.name}/jobs/", {"prefix": prefix}).json()["results"]
        assert [row["name"] for row in found] == names
    for hostname in ("m1", "m2", "n1"):
        rows.a_machine(cell, hostname)
    found = ann.get(f"/api/v1/cells/{cell.name}/machines/", {"prefix": "m"}).json()["results"]
    assert [row["hostname"] for row in found] == ["m1", "m2"]
