"""Tests of the identities of tasks: a task gets its identity over the link, and uses it to call the REST API."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from django.conf import settings
from django.utils import timezone

from borglet.messages import RunTask, TaskKey
from naming.table.names import JobName
from portal.live.callers import principal_of
from portal.live.watched_names import watched
from quota.models import Tenant
from quota.tenancy.tenants import tenant_set
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.identity.signing_keys import PUBLISH_S, SIGN_S, public_keys, signing_key
from scheduling.identity.task_tokens import RENEW_S, issue
from scheduling.journal import journal
from scheduling.link.shard.task_tokens import SPREAD_S
from scheduling.machines.joining import join_token_issue
from scheduling.models import Event, IdentityKey, Job, JobSpec, Machine
from scheduling.tasks import transitions
from tests.integration import rows
from tests.integration.link_world import Link, Played, a_job, place, ran, running_link, task, until
from tests.integration.test_link_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)
FILE = {"name": "child", "task": {"command": ["true"], "limit": {"cpu": "100m", "ram": "64Mi"}}}


@pytest.fixture(autouse=True)
def folder(settings, tmp_path: Path) -> Path:
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    return tmp_path / "authority"


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def link(cell):
    with running_link() as running:
        yield running


@pytest.fixture
def borglet(cell, link: Link, tmp_path: Path) -> Iterator[Borglet]:
    tmp_path.chmod(0o711)
    with contextlib.closing(Borglet(tmp_path / "home", link)) as made:
        made.start(join_token_issue(principal=rows.ME, cell=cell))
        until((made.home / "identity.json").exists, what="joined")
        until(lambda: link.shard.connections, what="connected")
        yield made


def asking_for(job: Job, api: str) -> Job:
    row = JobSpec.objects.get(job=job, version=1)
    row.spec["api"] = api
    row.save()
    return job


def a_running_task(cell, api: str) -> tuple[Job, TaskKey]:
    job = asking_for(a_job(cell), api)
    return job, place(job, rows.a_machine(cell, "m9").id)


def identity(key: TaskKey, name: str = "cc/ubar/jfoo/0", *, now: float | None = None) -> str:
    run = RunTask(
        key=key,
        name=name,
        command=["x"],
        env={},
        limit={},
        ports={},
        priority=0,
        latency_sensitive=False,
        prod=False,
        spec_version=1,
    )
    return issue(signing_key(), run, issuer=settings.PORTAL_URL, now=time.time() if now is None else now)


def as_task(token: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


JOBS = "/api/v1/cells/cc/jobs/"


# -- what a task may do


def test_a_task_that_may_submit_submits_for_its_tenant_and_the_journal_names_it(cell, client) -> None:
    _, key = a_running_task(cell, "submit")
    caller = as_task(identity(key))
    answer = client.post(JOBS, {**FILE, "tenant": "ubar"}, "application/json", **caller)
    assert answer.status_code == 201, answer.content
    assert Job.objects.get(name="child").submitted_by == "task:cc/ubar/jfoo/0"
    assert Event.objects.get(kind="job.submitted", actor="task:cc/ubar/jfoo/0").cell_id == cell.id
    assert client.get(JOBS, **caller).status_code == 200
    assert client.delete(f"{JOBS}ubar/child/", **caller).status_code == 200


def test_a_task_that_may_read_reads_and_changes_nothing(cell, client) -> None:
    job, key = a_running_task(cell, "read")
    caller = as_task(identity(key))
    assert client.get(f"{JOBS}ubar/jfoo/tasks/", **caller).status_code == 200
    answer = client.post(JOBS, {**FILE, "tenant": "ubar"}, "application/json", **caller)
    assert answer.status_code == 403
    assert client.delete(f"{JOBS}ubar/jfoo/", **caller).status_code == 403
    job.refresh_from_db()
    assert job.state != "dead"


def test_a_task_whose_job_asks_for_nothing_may_do_nothing_and_reads_the_cure(cell, client) -> None:
    _, key = a_running_task(cell, "none")
    answer = client.get(JOBS, **as_task(identity(key)))
    assert answer.status_code == 403
    assert "set `api: read` or `api: submit`" in answer.json()["detail"]


def test_no_task_may_do_more_than_its_tenant_allows(cell, client) -> None:
    _, key = a_running_task(cell, "submit")
    caller = as_task(identity(key))
    for level, reads, writes in (("read", 200, 403), ("none", 403, 403), ("submit", 200, 201)):
        tenant = Tenant.objects.get(name="ubar")
        tenant_set(principal=system("test"), tenant=tenant, title="", contact="", task_api=level)
        assert client.get(JOBS, **caller).status_code == reads, level
        answer = client.post(JOBS, {**FILE, "tenant": "ubar"}, "application/json", **caller)
        assert answer.status_code == writes, (level, answer.content)


def test_a_task_reaches_no_other_tenant_no_other_cell_and_no_console(cell, client) -> None:
    other = rows.a_cell("dd")
    rows.a_job(cell, rows.a_tenant("them"), "secret")
    rows.a_job(other, rows.a_tenant("ubar"), "abroad")
    _, key = a_running_task(cell, "submit")
    caller = as_task(identity(key))
    assert client.get(f"{JOBS}them/secret/", **caller).status_code == 404
    assert [job["name"] for job in client.get(JOBS, **caller).json()["results"]] == ["jfoo"]
    assert client.post(JOBS, {**FILE, "tenant": "them"}, "application/json", **caller).status_code == 404
    abroad = "/api/v1/cells/dd/jobs/"
    assert client.get(f"{abroad}ubar/abroad/", **caller).status_code == 404
    assert client.get(abroad, **caller).status_code == 404
    assert [cell["name"] for cell in client.get("/api/v1/cells/", **caller).json()["results"]] == ["cc"]
    refused = client.post(abroad, {**FILE, "tenant": "ubar"}, "application/json", **caller)
    assert refused.status_code == 404
    assert not Job.objects.filter(cell=other, name="child").exists()
    assert client.post("/api/v1/cells/cc/join-tokens/", {}, "application/json", **caller).status_code == 403
    drain = "/api/v1/cells/cc/machines/m9:drain"
    assert client.post(drain, {"reason": "x"}, "application/json", **caller).status_code == 403
    made = client.post("/api/v1/tokens/", {"name": "for ever"}, "application/json", **caller)
    assert (made.status_code, made.json()["code"]) == (403, "no-person")
    assert client.get("/admin/", **caller).status_code == 302


# -- how long an identity is valid


def test_an_identity_ends_with_its_incarnation(cell, client) -> None:
    job, key = a_running_task(cell, "read")
    caller = as_task(identity(key))
    assert client.get(JOBS, **caller).status_code == 200
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task(job).id, key.incarnation, "other")])
    answer = client.get(JOBS, **caller)
    assert answer.status_code == 401
    assert "no longer runs" in answer.json()["detail"]


@pytest.mark.parametrize("wrong", ["job", "index", "incarnation"])
def test_an_identity_of_nobody_is_refused(cell, client, wrong: str) -> None:
    _, key = a_running_task(cell, "read")
    other = {"job": TaskKey("0" * 32, 0, 1), "index": TaskKey(key.job, 5, 1), "incarnation": TaskKey(key.job, 0, 2)}
    assert client.get(JOBS, **as_task(identity(other[wrong]))).status_code == 401


def test_a_task_watches_names_by_its_identity(cell) -> None:
    job, key = a_running_task(cell, "read")
    who = principal_of({"headers": [(b"authorization", f"Bearer {identity(key)}".encode())]})
    assert who is not None
    assert who.name == "task:cc/ubar/jfoo/0"
    assert watched(who, JobName("cc", "ubar", job.name)).cell_id == cell.id
    with pytest.raises(NotFound):
        watched(who, JobName("cc", "other", job.name))
    assert principal_of({"headers": [(b"authorization", b"Bearer " + identity(key)[:-4].encode())]}) is None


def test_an_expired_identity_is_refused_with_the_cure(cell, client) -> None:
    _, key = a_running_task(cell, "read")
    answer = client.get(JOBS, **as_task(identity(key, now=time.time() - 4000)))
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_calling_takes_two_queries_for_the_identity(cell, client, django_assert_num_queries) -> None:
    _, key = a_running_task(cell, "read")
    token = identity(key)
    from scheduling.identity.principals import principal_of_identity

    with django_assert_num_queries(2):
        assert principal_of_identity(token).name == "task:cc/ubar/jfoo/0"


# -- keys


def test_keys_change_in_time_and_old_identities_stay_good(folder: Path, db) -> None:
    start = timezone.now()
    first = signing_key(now=start)
    assert signing_key(now=start).kid == first.kid
    assert stat.S_IMODE((folder / f"identity-{first.kid}.key").stat().st_mode) == 0o600
    near = start + dt.timedelta(seconds=SIGN_S - PUBLISH_S)
    assert signing_key(now=near).kid == first.kid  # the next key is published, but signs nothing yet
    assert IdentityKey.objects.count() == 2
    later = signing_key(now=near + dt.timedelta(seconds=PUBLISH_S))
    assert later.kid != first.kid
    assert set(public_keys()) == {first.kid, later.kid}
    assert [path.name for path in folder.glob("identity-*")] == [f"identity-{later.kid}.key"]
    signing_key(now=near + dt.timedelta(seconds=2 * PUBLISH_S + 7200))
    assert set(public_keys()) == {later.kid}


def test_a_host_whose_keys_were_lost_makes_a_new_one(folder: Path, db) -> None:
    first = signing_key()
    (folder / f"identity-{first.kid}.key").unlink()
    second = signing_key()
    assert set(public_keys()) == {first.kid, second.kid}
    IdentityKey.objects.filter(kid=second.kid).delete()  # a restored database does not contain it
    assert signing_key().kid not in (first.kid, second.kid)


def test_anybody_may_verify_with_the_published_keys(cell, client) -> None:
    _, key = a_running_task(cell, "none")
    token = identity(key)
    about = client.get("/.well-known/openid-configuration").json()
    assert about["issuer"] == settings.PORTAL_URL
    answer = client.get("/.well-known/jwks.json")
    assert "max-age" in answer["Cache-Control"]
    found = jwt.PyJWKSet.from_dict(answer.json())[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, found, algorithms=["ES256"], audience=settings.PORTAL_URL)
    assert claims["sub"] == "/bns/cc/ubar/jfoo/0"


# -- over the link


def test_a_machine_is_given_the_identities_of_its_own_tasks_before_they_start(cell, link: Link) -> None:
    mine, theirs = a_job(cell, "mine"), a_job(cell, "theirs")
    with link.machine(cell, "m2") as other, link.machine(cell, "m1") as machine:
        theirs_key = place(theirs, Machine.objects.get(hostname="m2").id)
        key = place(mine, Machine.objects.get(hostname="m1").id)
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        assert [identity.key for identity in poll.identities] == [key]
        claims = jwt.decode(poll.identities[0].token, options={"verify_signature": False})
        assert claims["sub"] == "/bns/cc/ubar/mine/0"
        assert "eyJ" not in repr(poll)
        machine.report(poll, ran(key))
        for _ in range(3):
            poll = machine.poll()
            assert poll.identities == []  # identities are sent once
            machine.report(poll)
        poll = other.poll_with_desired(lambda desired: bool(desired.run))
        assert [identity.key for identity in poll.identities] == [theirs_key]


def test_a_machine_that_comes_back_is_given_new_ones_within_minutes_and_not_at_once(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell, "m1") as machine:
        (held,) = link.shard.connections.values()
        until(lambda: held.renew_identities_at < float("inf"))
        assert held.renew_identities_at - held.heard_at > RENEW_S / 2  # the machine has no identity yet
        key = place(job, Machine.objects.get().id)
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
    with link.dial("m1", machine.secret) as socket:
        back = Played(socket, "m1", machine.secret)
        back.hello()
        poll = back.poll_with_desired(lambda desired: bool(desired.run))
        assert poll.identities == []
        (held,) = link.shard.connections.values()
        assert held.renew_identities_at - held.heard_at <= SPREAD_S + 5


def test_identities_are_renewed_when_half_of_their_time_is_over(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell, "m1") as machine:
        key = place(job, Machine.objects.get().id)
        poll = machine.poll_with_desired(lambda desired: bool(desired.run))
        machine.report(poll, ran(key))
        machine.keep_answering(lambda: task(job).up)
        (held,) = link.shard.connections.values()
        held.renew_identities_at = 0.0
        for _ in range(20):
            poll = machine.poll()
            machine.report(poll)
            if poll.identities:
                break
        assert [identity.key for identity in poll.identities] == [key]
        assert held.renew_identities_at > 600


def test_a_real_task_finds_its_identity_and_borgctl_uses_it(
    cell, link: Link, borglet: Borglet, live_server, settings, tmp_path: Path
) -> None:
    settings.PORTAL_URL = live_server.url
    link.shard.identities.issuer = live_server.url
    out = tmp_path / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    script = (
        f'id -u > {out}/uid; cp "$BORG_IDENTITY_FILE" {out}/token; echo "$BORG_IDENTITY_FILE" > {out}/path;'
        f' echo "$BORG_API_URL" > {out}/url; touch {out}/done; exec sleep 3600'
    )
    borglet.kill()
    borglet.start()  # so that its welcome names the portal of this test
    until(lambda: borglet.home.joinpath("identity.json").read_text().count(live_server.url))
    job = asking_for(a_job(cell, command=["sh", "-c", script], limit={"cpu": "100m", "ram": "64Mi"}), "read")
    place(job, Machine.objects.get().id)
    until(lambda: (out / "done").exists())
    file = Path((out / "path").read_text().strip())
    about = file.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o400, int((out / "uid").read_text()))
    assert (out / "url").read_text().strip() == live_server.url
    until(lambda: task(job).up)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BORG_API_URL": live_server.url,
        "BORG_IDENTITY_FILE": str(file),
        "BORG_CELL": "cc",
        "BORG_TENANT": "ubar",
    }
    command = [sys.executable, "-c", "from portal.cli.main import main; main()", "status", "jfoo"]
    env["PYTHONPATH"] = os.getcwd()
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "jfoo" in done.stdout
    # A new identity replaces it while a program reads it.
    before = file.read_text()
    (held,) = link.shard.connections.values()
    held.renew_identities_at = 0.0
    until(lambda: file.read_text() != before)
