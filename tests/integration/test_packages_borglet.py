"""Tests of packages from an upload to a running task, with real Borglets at different addresses and a real link."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quota.vocabulary.permissions import Role
from scheduling.machines.joining import join_token_issue
from scheduling.models import Job, Machine, Task
from scheduling.packages.packages import package_upload
from tests.archives import a_tar, digest_of
from tests.integration import rows, world
from tests.integration.link_world import Link, running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)

BLOB = os.urandom(2 * 2**20)
ARCHIVE = a_tar({"bin/serve": b"#!/bin/sh\necho served by $0\nexec sleep 600\n", "data/blob": BLOB})
DIGITS = digest_of(ARCHIVE).removeprefix("sha256:")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, settings) -> None:
    tmp_path.chmod(0o711)
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    settings.BORG_PACKAGE_STORE = (tmp_path / "store").as_uri()


@pytest.fixture
def link(cell) -> Iterator[Link]:
    with running_link() as running:
        yield running


@pytest.fixture
def borglets(cell, link: Link, tmp_path: Path) -> Iterator[list[Borglet]]:
    """Yield the connected Borglets of machines m2 and m3. If this host supports containers, m3 uses them."""
    with contextlib.ExitStack() as stack:
        made = []
        for number, runtime in ((2, "process"), (3, "auto")):
            home = tmp_path / f"m{number}"
            log = tmp_path / f"m{number}.log"
            borglet = Borglet(home, link, log=log, runtime=runtime, hostname=f"m{number}", address=f"127.0.0.{number}")
            made.append(stack.enter_context(contextlib.closing(borglet)))
            borglet.start(join_token_issue(principal=rows.ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).count() == 2, what="connected")
        yield made


@pytest.fixture
def job(cell, tenant, ann) -> Job:
    operator = world.principal("olga", tenant=tenant, role=Role.OPERATOR)
    package_upload(principal=operator, cell=cell, tenant="ubar", name="tool", tag="v1", stream=io.BytesIO(ARCHIVE))
    file = world.with_task(
        tasks=3,
        packages=["tool@v1"],
        command=["$(packages)/tool/bin/serve"],
        limit={"cpu": "100m", "ram": "64Mi", "disk": "10Mi"},
    )
    return world.submit(ann, cell, file)


def up(job: Job, index: int) -> bool:
    return Task.objects.get(job=job, index=index).up


def output_of(borglet: Borglet) -> str:
    """Wait for the output of the first task of this Borglet, and return its first line."""
    out = next((borglet.home / "logs").glob("*/stdout.*"))
    return until(lambda: out.read_text().partition("\n")[0], what=f"output in {out}")


def test_one_machine_gets_it_from_the_store_and_the_next_from_that_one(job: Job, borglets: list[Borglet]) -> None:
    first, second = (Machine.objects.get(hostname=name) for name in ("m2", "m3"))
    world.place(job, first, 0)
    until(lambda: up(job, 0), what="up on m2")
    tree = borglets[0].home / "packages" / DIGITS / "tree"
    assert (tree / "data/blob").read_bytes() == BLOB
    assert (tree / "data/blob").stat().st_mode & 0o777 == 0o555
    assert output_of(borglets[0]).endswith("/packages/tool/bin/serve")

    world.place(job, second, 1)
    until(lambda: up(job, 1), what="up on m3")
    assert (borglets[1].home / "packages" / DIGITS / "tree/data/blob").read_bytes() == BLOB
    contained = Machine.objects.get(hostname="m3").attributes["runtime"] == "oci"
    assert not contained or output_of(borglets[1]) == "served by /packages/tool/bin/serve"
    until(lambda: "uploaded sha256:" in borglets[0].log.read_text(), what="the upload in the log of m2")

    # A third task on the first machine uses the package there, also after its Borglet was killed.
    borglets[0].kill()
    session = Machine.objects.get(hostname="m2").session
    before = tree.stat().st_ino
    borglets[0].start()
    until(lambda: Machine.objects.get(hostname="m2").session > session, what="connected again")
    world.place(job, first, 2)
    until(lambda: up(job, 2), what="up on m2 too")
    assert tree.stat().st_ino == before
    assert borglets[0].log.read_text().count("is installed: ") == 1


def test_a_task_whose_package_is_damaged_in_the_store_says_so(
    job: Job, borglets: list[Borglet], tmp_path: Path
) -> None:
    (stored,) = (path for path in (tmp_path / "store").rglob("*") if path.is_file() and DIGITS[:8] in str(path))
    raw = bytearray(stored.read_bytes())
    raw[len(raw) // 2] ^= 1
    stored.chmod(0o600)
    stored.write_bytes(raw)
    world.place(job, Machine.objects.get(hostname="m2"), 0)

    def reported() -> str:
        return (Task.objects.get(job=job, index=0).exit or {}).get("detail", "")

    damaged = re.compile(r"cannot download package '.+' \(sha256:[0-9a-f]+\): the store: mismatch")
    until(lambda: damaged.search(reported()), what="why it does not start")
    assert not (borglets[0].home / "packages" / DIGITS).exists()
