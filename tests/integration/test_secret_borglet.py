"""Secrets and config files with a real Borglet, link and master: the examples, restarts, and revoked grants."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.runtimes.base import secret_files
from portal.cli import jobfile
from quota.vocabulary.permissions import Role, system
from scheduling.config_files import selectors
from scheduling.jobs import submit_and_kill
from scheduling.jobs.actions import config_changes
from scheduling.machines.joining import join_token_issue
from scheduling.models import Job, Lease, Task
from scheduling.secrets import secrets
from tests.integration import config_rows, master_processes, secret_rows, world
from tests.integration.link_world import running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        not secret_files.in_memory(secret_files.MEMORY), reason="this machine has no file system in memory"
    ),
]


@pytest.fixture(autouse=True)
def keys(settings):
    settings.BORG_SECRET_KEYS = secret_rows.OLD


@pytest.fixture
def olga(tenant):
    return world.principal("olga", tenant=tenant, role=Role.OWNER)


@pytest.fixture
def borglet(cell, tmp_path: Path) -> Iterator[Borglet]:
    tmp_path.chmod(0o711)
    with (
        running_link() as link,
        master_processes.running(tmp_path, cell.name),
        contextlib.closing(Borglet(tmp_path / "home", link)) as one,
    ):
        one.start(join_token_issue(principal=system("test"), cell=cell))
        until(lambda: Lease.objects.filter(cell=cell).exists(), seconds=90.0, what="a master has started")
        yield one


def fingerprint(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:8]


def printed(borglet: Borglet, job: Job) -> str:
    task = Task.objects.get(job=job, index=0)
    folder = borglet.home / "logs" / f"{job.uid.hex}.0.{task.incarnation}"
    return "".join(path.read_text() for path in sorted(folder.glob("stdout.*")))


def file_of(borglet: Borglet, job: Job, name: str) -> Path:
    task = Task.objects.get(job=job, index=0)
    return borglet.home / "secrets" / f"{job.uid.hex}.0.{task.incarnation}" / name


def is_up(job: Job) -> bool:
    return Task.objects.filter(job=job, up=True).exists()


def test_a_secret_is_rotated_under_the_running_job_of_the_example(cell, tenant, ann, olga, borglet) -> None:
    secret_rows.a_secret(olga, tenant, "db-password", b"hunter2", "secret")
    job = world.submit(ann, cell, jobfile.read("examples/secret.yaml"))
    until(lambda: fingerprint(b"hunter2") in printed(borglet, job), what="the task has the first version")
    until(lambda: is_up(job), what="the task is up")
    file = file_of(borglet, job, "password")
    about, folder = file.stat(), file.parent.stat()
    assert stat.S_IMODE(about.st_mode) == 0o400
    assert stat.S_IMODE(folder.st_mode) in (0o500, 0o700)
    assert about.st_uid == folder.st_uid
    assert secret_files.in_memory(file)

    secret_rows.a_secret(olga, tenant, "db-password", b"hunter3")
    until(lambda: fingerprint(b"hunter3") in printed(borglet, job), what="the new version arrives")
    task = Task.objects.get(job=job)
    assert (task.incarnation, task.restarts) == (1, 0), "the task kept running"

    borglet.kill()
    secret_rows.a_secret(olga, tenant, "db-password", b"hunter4")
    assert file.read_bytes() == b"hunter3", "a task keeps its files while no Borglet runs"
    borglet.start()
    until(lambda: fingerprint(b"hunter4") in printed(borglet, job), what="the next Borglet brings the newest version")
    assert Task.objects.get(job=job).restarts == 0

    submit_and_kill.job_kill(principal=ann, job=job)
    until(lambda: not file.parent.exists(), what="the files are deleted after the end of the task")
    everything = b"".join(path.read_bytes() for path in files_below(borglet.home.parent))
    assert b"hunter" not in everything
    assert not list((borglet.home / "secrets").glob("*"))


def test_a_variable_gets_its_value_at_the_start_and_is_in_no_file(cell, tenant, ann, olga, borglet) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"value $(job) of hunter2", "web")
    program = 'echo "$DB_PASSWORD" | sha256sum | cut -c 1-8; exec sleep 60'
    use = {"name": "db", "env": "DB_PASSWORD"}
    file = {"name": "web", "task": {"command": ["sh", "-c", program], "secrets": [use]}}
    job = world.submit(ann, cell, file)
    until(lambda: fingerprint(b"value $(job) of hunter2\n") in printed(borglet, job), what="the task printed its value")
    everything = b"".join(path.read_bytes() for path in files_below(borglet.home.parent))
    assert b"hunter2" not in everything
    until(lambda: is_up(job), what="the task is up")


def test_a_task_waits_until_its_secret_is_granted_again(cell, tenant, ann, olga, borglet) -> None:
    secret_rows.a_secret(olga, tenant, "db-password", b"hunter2", "secret")
    secrets.secret_revoke(principal=olga, tenant=tenant, name="db-password", jobs="secret")
    secrets.secret_grant(principal=olga, tenant=tenant, name="db-password", jobs="secret")
    job = world.submit(ann, cell, jobfile.read("examples/secret.yaml"))
    until(lambda: is_up(job), what="the task is up")
    secrets.secret_revoke(principal=olga, tenant=tenant, name="db-password", jobs="secret")
    pid = until(lambda: processes(borglet, job), what="its process")[0]
    os.kill(pid, 9)
    until(lambda: Task.objects.filter(job=job, phase="installing").exists(), what="the next start waits")
    assert Task.objects.get(job=job).state == "running"
    secrets.secret_grant(principal=olga, tenant=tenant, name="db-password", jobs="secret")
    until(lambda: is_up(job), what="the task runs again")


def test_a_config_file_changes_under_the_running_job_of_the_example(cell, tenant, ann, borglet) -> None:
    config_rows.a_file(ann, tenant, b"color: red\n", name="shop-flags")
    job = world.submit(ann, cell, jobfile.read("examples/config-file.yaml"))
    until(lambda: "color: red" in printed(borglet, job), what="the task has the first version")
    config_rows.a_file(ann, tenant, b"color: blue\n", name="shop-flags")
    until(lambda: "color: blue" in printed(borglet, job), what="the task got SIGHUP and read the new version")
    assert Task.objects.get(job=job).restarts == 0, "the task kept running"
    file = selectors.file_shown(ann, tenant, "shop-flags")
    assert [(row.task_index, row.version) for row in selectors.task_versions(ann, file)] == [(0, 2)]

    restarting = jobfile.read("examples/config-file.yaml")
    restarting["task"]["configs"][0]["on_change"] = "restart"
    other = world.submit(ann, cell, {**restarting, "name": "restarting"})
    until(lambda: "color: blue" in printed(borglet, other), what="the other job has the newest version")
    until(lambda: is_up(other), what="the other job is up")
    done = config_changes.config_rollback(principal=ann, tenant=tenant, name="shop-flags")
    assert done.restarted == [f"{cell.name}/restarting"]
    until(lambda: Task.objects.get(job=other).incarnation == 2, seconds=90.0, what="the other job restarts")
    until(lambda: "color: red" in printed(borglet, other), seconds=90.0, what="its new task has the old content again")
    until(lambda: printed(borglet, job).count("color: red") >= 2, what="the first job follows without a restart")
    assert Task.objects.get(job=job).incarnation == 1


def processes(borglet: Borglet, job: Job) -> list[int]:
    """Return the pids of the shells of the job's task."""
    marker = f"BORG_TASK_DIR={borglet.home / 'tasks' / f'{job.uid.hex}.0.1'}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (folder / "environ").read_bytes() and (folder / "comm").read_text() == "sh\n":
                found.append(int(folder.name))
    return sorted(found)


def files_below(folder: Path) -> Iterator[Path]:
    for path, _, names in os.walk(folder):
        for name in names:
            if (file := Path(path, name)).is_file():
                yield file
