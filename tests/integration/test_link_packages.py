"""Tests of the HTTP interface of a real shard for packages: who gets what, from where, and what is rejected."""

from __future__ import annotations

import http.client
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from borglet.identity import signatures
from borglet.messages import PackageFailed, PackageHave, PackageSources, PeerAddress, Phase
from borglet.packages import tickets
from quota.vocabulary.permissions import Role
from scheduling.core.warm import compile_kernels
from scheduling.identity import authority
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.jobs.why import explain_task
from scheduling.machines.joining import join_token_issue
from scheduling.machines.machines import machine_remove
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.models import Cell, Event, Machine, Task
from scheduling.packages.packages import package_upload
from scheduling.packages.store import store
from tests.archives import a_tar, digest_of
from tests.integration import rows, world
from tests.integration.link_world import GIB, Link, Played, ran, running_link, until

pytestmark = pytest.mark.django_db(transaction=True)

# This is more than sockets buffer, so a client that reads nothing occupies a reader of the shard.
ARCHIVE = a_tar({"bin/serve": os.urandom(20 * 2**20)}, packed=False)
DIGEST = digest_of(ARCHIVE)
OTHER = a_tar({"other": b"2"})


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, settings) -> None:
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    settings.BORG_PACKAGE_STORE = (tmp_path / "store").as_uri()


@pytest.fixture
def link(cell):
    with running_link() as link:
        yield link


@pytest.fixture
def packages(cell, tenant) -> None:
    ann = world.principal("ann", tenant=tenant, role=Role.OPERATOR)
    for name, archive in (("tool", ARCHIVE), ("other", OTHER)):
        package_upload(principal=ann, cell=cell, tenant="ubar", name=name, tag="v1", stream=io.BytesIO(archive))


@pytest.fixture
def job(cell, tenant, ann, packages):
    file = world.with_task(tasks=4, packages=["tool@v1"]) | {"overrides": {"3": {"packages": ["other@v1"]}}}
    return world.submit(ann, cell, file)


def ask(
    link: Link, who: Played | None, method: str, path: str, body: msgspec.Struct | bytes | None = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Send a request about packages as machine `who`. Return the status, the content and the headers."""
    connection = http.client.HTTPSConnection("127.0.0.1", link.port, context=link.context, timeout=10)
    if who is not None:
        headers["Authorization"] = f"Bearer {who.hostname}:{who.secret}"
    try:
        sent = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        connection.request(method, f"/packages/{path}", sent, headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    told = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, json.loads(content) if "json" in told.get("content-type", "") else content, told


def sources(link: Link, who: Played, digest: str = DIGEST) -> PackageSources:
    status, told, _ = ask(link, who, "GET", f"{digest}/sources")
    assert status == 200, told
    return msgspec.convert(told, PackageSources)


def placed(job, who: Played, *indexes: int) -> None:
    world.place(job, Machine.objects.get(hostname=who.hostname), *indexes)


def test_a_machine_gets_a_package_that_its_tasks_name(cell, link, job) -> None:
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        first = sources(link, m1)
        assert (first.peers, first.store, first.retry_after_s) == ([], f"/packages/{DIGEST}", 0.0)
        keys = signatures.authority_keys(authority.authority_pem())
        ticket = tickets.check(first.ticket, keys, digest=DIGEST, now=time.time())
        assert (ticket.machine, ticket.expires_at > time.time() + 300) == ("m1", True)
        status, content, told = ask(link, m1, "GET", DIGEST)
        assert (status, content == ARCHIVE, told["content-length"]) == (200, True, str(len(ARCHIVE)))


def test_a_cell_with_further_resources_serves_packages_too(cell, link, tenant, ann, packages) -> None:
    cell.extra_resources = ["tpu"]
    cell.save(update_fields=["extra_resources"])
    file = world.with_task(packages=["tool@v1"], limit={"cpu": "100m", "tpu": 1})
    job = world.submit(ann, cell, file)
    capacity = {"cpu": 4000, "ram": 8 * GIB, "disk": 50 * GIB, "tpu": 4}
    with machine_at(link, cell, "m1", capacity=capacity) as m1:
        placed(job, m1, 0)
        assert sources(link, m1).store


@pytest.mark.parametrize(
    "wanted, status, first, last",
    [
        ("bytes=0-", 206, 0, len(ARCHIVE)),
        (f"bytes={2**20 + 7}-", 206, 2**20 + 7, len(ARCHIVE)),
        ("bytes=5-9", 206, 5, 10),
        (f"bytes={len(ARCHIVE) - 1}-", 206, len(ARCHIVE) - 1, len(ARCHIVE)),
        (f"bytes={len(ARCHIVE)}-", 416, 0, 0),
        ("bytes=9-5", 416, 0, 0),
        ("bytes=-5", 416, 0, 0),
        ("lines=1-2", 416, 0, 0),
    ],
)
def test_a_part_can_be_asked_for(cell, link, job, wanted, status, first, last) -> None:
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        answer, content, told = ask(link, m1, "GET", DIGEST, Range=wanted)
        assert answer == status
        if status == 206:
            assert content == ARCHIVE[first:last]
            assert told["content-range"] == f"bytes {first}-{last - 1}/{len(ARCHIVE)}"


DOORS = [
    ("GET", "{}/sources", None),
    ("GET", "{}", None),
    ("POST", "{}/gone", None),
    ("POST", "{}/failed", PackageFailed("10.0.0.9", 7000, "mismatch")),
]


@pytest.mark.parametrize("method, path, body", DOORS)
def test_nothing_is_for_a_machine_whose_tasks_do_not_name_it(cell, link, job, method, path, body) -> None:
    with link.machine(cell) as m1:
        assert ask(link, m1, method, path.format(DIGEST), body)[0] == 403, "no task there at all"
        placed(job, m1, 3)  # this task names the other package; its siblings name this one
        status, told, _ = ask(link, m1, method, path.format(DIGEST), body)
        assert (status, told["code"]) == (403, "not-for-this-machine")
        assert ask(link, m1, method, path.format(digest_of(OTHER)), body)[0] in (200, 204)
        assert ask(link, m1, method, path.format("sha256:" + "0" * 64), body)[0] == 403
        assert ask(link, m1, method, path.format("sha256:../../etc"), body)[0] == 404
        assert ask(link, None, method, path.format(DIGEST), body)[0] == 401
        m1.secret = "stolen from another"
        assert ask(link, m1, method, path.format(digest_of(OTHER)), body)[0] == 401


@contextmanager
def machine_at(link: Link, cell: Cell, hostname: str, **facts: Any) -> Iterator[Played]:
    _, answer = link.join(join_token_issue(principal=rows.ME, cell=cell), hostname, **facts)
    with link.dial(hostname, answer["secret"]) as socket:
        played = Played(socket, hostname, answer["secret"])
        played.hello()
        yield played


def test_peers_are_offered_near_ones_first_and_those_that_failed_no_more(cell, link, job) -> None:
    with (
        machine_at(link, cell, "m1", address="10.0.0.1", rack="far") as m1,
        machine_at(link, cell, "m2", address="10.0.0.2", rack="near") as m2,
        machine_at(link, cell, "m3", address="10.0.0.3", rack="near") as m3,
    ):
        for number, machine in enumerate((m1, m2, m3)):
            placed(job, machine, number)
        for machine, port in ((m1, 7001), (m2, 7002)):
            sources(link, machine)
            assert ask(link, machine, "POST", f"{DIGEST}/have", PackageHave(port=port))[0] == 204
        near, far = PeerAddress("10.0.0.2", 7002), PeerAddress("10.0.0.1", 7001)
        assert sources(link, m3).peers == [near, far]
        failure = PackageFailed("10.0.0.2", 7002, "unreachable")
        assert ask(link, m3, "POST", f"{DIGEST}/failed", failure)[0] == 204
        assert sources(link, m3).peers == [far]
        assert ask(link, m1, "POST", f"{DIGEST}/gone")[0] == 204
        assert sources(link, m3).store, "nobody is left but the store"


def test_a_machine_that_hangs_up_is_offered_no_more_and_one_that_comes_back_is(cell, link, job) -> None:
    with link.machine(cell, "m1") as m1:
        placed(job, m1, 0)
        with link.machine(cell, "m2") as m2:
            placed(job, m2, 1)
            sources(link, m2)
            ask(link, m2, "POST", f"{DIGEST}/have", PackageHave(port=7002))
            assert sources(link, m1).peers
        until(lambda: not sources(link, m1).peers, what="the peer is forgotten")


def test_what_a_machine_has_when_it_comes_back_is_in_its_report(cell, link, job, ann) -> None:
    compile_kernels()
    link.server.config.loaded_app._packages._holdings.every_s = 0.0
    with link.machine(cell, "m1", newest=2) as m1, link.machine(cell, "m2", newest=2) as m2:
        placed(job, m1, 0)
        placed(job, m2, 1)
        unnamed = "sha256:" + "0" * 64
        assert ask(link, m2, "POST", f"{unnamed}/have", PackageHave(port=7002))[0] == 204
        poll = m2.poll_with_desired(lambda desired: bool(desired.run))
        no_digest = "\x00"  # PostgreSQL accepts this character in no text
        m2.report(poll, ran(poll.desired.run[0].key, Phase.INSTALLING), packages=[no_digest, unnamed, DIGEST])
        until(lambda: [p.port for p in sources(link, m1).peers] == [7002], what="offered")
        row = Machine.objects.filter(hostname="m2", packages=[DIGEST])
        until(row.exists, what="the scheduler knows")
        (told,) = Event.objects.filter(kind="packages.held")
        assert told.data["came"] == {DIGEST: [row.get().pk]}
        Master(cell.id).tick()
        task = Task.objects.get(job=job, index=2)
        why = explain_task(job, task, ann)
        assert task.machine.hostname == "m2", "it has the task's package"
        size = f"{len(ARCHIVE) / 2**20:.4g} MiB"
        assert f"The machine already had {size} of the {size} of its packages." in why.sentences
        assert validate(cell.id) == []
        rows.machine_down(row.get())
        machine_remove(principal=rows.ME, machine=row.get(), reason="x")
        assert Machine.objects.get(hostname="m2").packages == []
        assert validate(cell.id) == []


def test_nobody_is_sent_to_a_machine_that_has_no_task_for_the_package(cell, link, job) -> None:
    with link.machine(cell, "m1") as m1, link.machine(cell, "m2") as m2:
        placed(job, m1, 0)
        assert ask(link, m2, "POST", f"{DIGEST}/have", PackageHave(port=7002))[0] == 204
        assert sources(link, m1).peers == [], "else it would get tickets for what is not its own"


def test_shards_tell_one_another_who_has_what(cell, link, job) -> None:
    with running_link() as other, link.machine(cell, "m1") as m1, other.machine(cell, "m2") as m2:
        for number, machine in enumerate((m1, m2)):
            placed(job, machine, number)
        assert sources(other, m2).store, "the other shard knows of the package from now on"
        ask(link, m1, "POST", f"{DIGEST}/have", PackageHave(port=7001))
        until(lambda: [p.port for p in sources(other, m2).peers] == [7001], what="told by the channel")
        with running_link() as late:
            assert [p.port for p in sources(late, m2).peers] == [7001], "kept in Redis"


def test_at_most_so_many_read_from_the_store_at_a_time(cell, link, job) -> None:
    doors = link.server.config.loaded_app._packages
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        doors._streams = 2
        with open_downloads(link, m1, 2):
            status, told, headers = ask(link, m1, "GET", DIGEST)
            assert (status, told["code"], headers["retry-after"]) == (503, "store-busy", "1")
        until(lambda: doors._busy == 0, what="those that hung up are forgotten")
        assert ask(link, m1, "GET", DIGEST)[0] == 200


@contextmanager
def open_downloads(link: Link, who: Played, number: int) -> Iterator[None]:
    """Request the archive `number` times, and read no bytes of the answers until the block ends."""
    headers = {"Authorization": f"Bearer {who.hostname}:{who.secret}"}
    with ExitStack() as stack:
        for _ in range(number):
            connection = http.client.HTTPSConnection("127.0.0.1", link.port, context=link.context, timeout=10)
            stack.callback(connection.close)
            connection.request("GET", f"/packages/{DIGEST}", headers=headers)
            stack.callback(connection.getresponse().close)
        yield


def test_polls_go_on_while_archives_are_read(cell, link, job) -> None:
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        done = threading.Event()

        def fetch() -> None:
            for _ in range(2):
                ask(link, m1, "GET", DIGEST)
            done.set()

        reader = threading.Thread(target=fetch)
        reader.start()
        m1.keep_answering(done.is_set)
        reader.join()


def test_what_the_store_has_lost_is_reported_as_such(cell, link, job) -> None:
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        store().delete("cc", DIGEST)
        status, told, _ = ask(link, m1, "GET", DIGEST)
        assert (status, told["code"]) == (404, "not-found")


@pytest.mark.parametrize(
    "door, body, status",
    [
        ("have", b"{", 422),
        ("have", b'{"port": 70000}', 422),
        ("have", b'{"port": "x"}', 422),
        ("failed", b"{}", 422),
        ("have", b" " * 70_000, 413),
    ],
)
def test_a_malformed_body_is_refused_by_its_field(cell, link, job, door, body, status) -> None:
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        answer, told, _ = ask(link, m1, "POST", f"{DIGEST}/{door}", body)
        assert (answer, "fields" in told or status == 413) == (status, True)


def test_a_task_that_left_takes_its_packages_with_it(cell, link, job) -> None:
    doors = link.server.config.loaded_app._packages
    with link.machine(cell) as m1:
        placed(job, m1, 0)
        assert sources(link, m1).store
        job_kill(principal=rows.ME, job=job)
        doors._known.clear()  # its entries are used for some seconds
        assert ask(link, m1, "GET", f"{DIGEST}/sources")[0] == 403
