"""Tests of packages on real PostgreSQL and a real folder: uploaded, tagged, named by jobs, and deleted."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from quota.models import Record
from quota.vocabulary.permissions import Role
from scheduling.link.views.desired import Specs, load
from scheduling.models import JobSpec, Package, Task
from scheduling.packages import sweep
from scheduling.packages.store import open_store, store
from tests.archives import a_device, a_tar, an_image, digest_of
from tests.integration import rows, world
from tests.integration.test_api_jobs import post, problem, put

pytestmark = pytest.mark.django_db(transaction=True)

PACKAGES = "/api/v1/cells/cc/packages/"
JOBS = "/api/v1/cells/cc/jobs/"
WEB = f"{JOBS}ubar/web/"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings) -> Path:
    settings.BORG_PACKAGE_STORE = (tmp_path / "store").as_uri()
    return tmp_path / "store"


@pytest.fixture
def operator(tenant) -> Client:
    return world.bearer(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))


def upload(
    client: Client, archive: bytes, reference: str = "v1", *, name: str = "tool", tenant: str = "ubar", **headers
):
    return client.put(
        f"{PACKAGES}{tenant}/{name}/{reference}/", archive, content_type="application/octet-stream", headers=headers
    )


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def with_packages(*packages: str, **changes):
    return world.with_task(packages=list(packages)) | changes


# -- uploads


@pytest.mark.parametrize(
    "archive, format",
    [(a_tar(), "tar+gzip"), (a_tar(packed=False), "tar"), (an_image(), "oci")],
    ids=["gzip", "plain", "oci"],
)
def test_an_upload_is_kept_under_its_digest_and_the_same_again_changes_nothing(
    cell, operator, folder, archive, format
) -> None:
    answer = upload(operator, archive, **{"X-Package-Digest": digest_of(archive)})
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert body["outcome"] == "uploaded"
    assert body["package"] | {"uploaded_at": ""} == {
        "cell": "cc",
        "tenant": "ubar",
        "name": "tool",
        "digest": digest_of(archive),
        "size_bytes": len(archive),
        "format": format,
        "tags": ["v1"],
        "jobs": [],
        "uploaded_by": "ann",
        "uploaded_at": "",
    }
    with store().read("cc", digest_of(archive)) as chunks:
        assert b"".join(chunks) == archive
    again = upload(operator, archive)
    assert (again.status_code, again.json()["outcome"]) == (200, "unchanged")
    assert len(files_in(folder)) == 1
    kinds = list(Record.objects.filter(kind__startswith="package.").values_list("kind", flat=True))
    assert kinds == ["package.uploaded", "package.tagged"]


def test_a_tag_moves_with_an_upload_or_by_itself_and_the_records_say_who(cell, operator) -> None:
    first, second = a_tar({"a": b"1"}), a_tar({"a": b"2"})
    upload(operator, first, "live")
    assert upload(operator, second, "live").json()["package"]["tags"] == ["live"]
    moved = put(operator, {"digest": digest_of(first)}, f"{PACKAGES}ubar/tool/live/").json()
    assert (moved["outcome"], moved["package"]["digest"]) == ("moved", digest_of(first))
    assert operator.get(f"{PACKAGES}ubar/tool/live/").json()["digest"] == digest_of(first)
    told = Record.objects.filter(kind="package.tagged").latest("revision")
    assert (told.actor, told.tenant, told.data["before"], told.data["tag"]) == (
        "ann",
        "ubar",
        digest_of(second),
        "live",
    )
    problem(put(operator, {"digest": "sha256:" + "1" * 64}, f"{PACKAGES}ubar/tool/live/"), 404, "not-found")


@pytest.mark.parametrize(
    "archive, told",
    [
        (b"", "archive"),
        (b"not an archive at all", "archive"),
        (a_tar()[:70], "incomplete"),
        (a_tar({"../../etc/passwd": b"x"}), "../../etc/passwd"),
        (a_tar({"/etc/passwd": b"x"}), "/etc/passwd"),
        (a_tar({"link": "/etc/shadow"}), "link"),
        (a_tar({"a/link": "../../etc"}), "a/link"),
        (a_device(), "dev/null"),
    ],
    ids=["empty", "text", "cut", "dots", "absolute", "link", "far-link", "device"],
)
def test_a_hostile_or_broken_archive_is_refused_by_entry_and_leaves_nothing(
    cell, operator, folder, archive, told
) -> None:
    body = problem(upload(operator, archive), 422, "invalid-package")
    assert told in body["fields"]["archive"]
    assert (files_in(folder), Package.objects.count(), Record.objects.filter(kind__startswith="package").count()) == (
        [],
        0,
        0,
    )


def test_what_differs_from_what_was_announced_is_refused(cell, operator, folder) -> None:
    problem(upload(operator, a_tar(), **{"X-Package-Digest": digest_of(b"other")}), 422, "digest-mismatch")
    problem(upload(operator, a_tar(), **{"X-Package-Digest": "md5:1"}), 422, "invalid")
    for name, reference, field in (("No_Upper!", "v1", "name"), ("tool", "a b", "tag"), ("tool", "sha256:1", "tag")):
        assert field in problem(upload(operator, a_tar(), reference, name=name), 422, "invalid")["fields"]
    assert files_in(folder) == []


def test_sizes_are_bounded_for_one_package_and_for_a_tenant(cell, operator, folder) -> None:
    archive = a_tar({"noise": os.urandom(40_000)})
    cell.settings = {"package_max_gib": 30_000 / 2**30}
    cell.save()
    assert problem(upload(operator, archive), 413, "too-large")["figures"] == {"most_bytes": 30_000}
    cell.settings = {"packages_per_tenant_gib": 60_000 / 2**30}
    cell.save()
    assert upload(operator, archive).status_code == 201
    body = problem(upload(operator, a_tar({"noise": os.urandom(40_000)})), 403, "store-quota-exceeded")
    assert body["figures"]["left_bytes"] == 60_000 - len(archive)
    assert upload(operator, archive, "v2").json()["outcome"] == "moved", "what is there costs nothing again"
    assert len(files_in(folder)) == 1


def test_a_dry_run_uploads_nothing(cell, operator, folder) -> None:
    path = f"{PACKAGES}ubar/tool/v1/?dry_run=1"
    answer = operator.put(path, a_tar(), content_type="application/octet-stream")
    assert (answer.status_code, answer.json()["outcome"]) == (201, "uploaded")
    assert (files_in(folder), Package.objects.count()) == ([], 0)


def test_a_store_that_cannot_be_written_is_reported_as_such(cell, operator, settings, tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    settings.BORG_PACKAGE_STORE = (tmp_path / "file" / "store").as_uri()
    problem(upload(operator, a_tar()), 503, "store-away")
    assert Package.objects.count() == 0


def test_what_others_have_is_not_there(cell, tenant, operator) -> None:
    other = rows.a_tenant("other")
    rows.a_package(cell, other, name="secret", tag="v1")
    assert operator.get(PACKAGES).json()["results"] == []
    problem(operator.get(f"{PACKAGES}other/secret/v1/"), 404, "not-found")
    problem(upload(operator, a_tar(), tenant="other"), 404, "not-found")
    viewer = world.bearer(world.a_user("vera", tenant=tenant, role=Role.VIEWER))
    problem(upload(viewer, a_tar()), 403, "forbidden")
    upload(operator, a_tar())
    assert [row["name"] for row in viewer.get(f"{PACKAGES}?tenant=ubar&name=tool").json()["results"]] == ["tool"]


# -- jobs


def test_a_job_is_pinned_to_the_content_of_its_tags_and_machines_receive_it(cell, machine, operator) -> None:
    first, second = a_tar({"a": b"1"}), a_tar({"a": b"2"})
    (upload(operator, first, "v1"), upload(operator, second, "latest"), upload(operator, second, "v1", name="lib"))
    file = with_packages("tool@v1", "lib@v1", overrides={"2": {"packages": ["tool"]}})
    answer = post(operator, JOBS, file | {"tenant": "ubar"})
    assert answer.status_code == 201, answer.content
    one, two = digest_of(first), digest_of(second)
    row = JobSpec.objects.get()
    assert row.packages == {
        one: {"size_bytes": len(first), "format": "tar+gzip"},
        two: {"size_bytes": len(second), "format": "tar+gzip"},
    }
    assert row.spec["task"]["packages"] == [f"tool@v1@{one}", f"lib@v1@{two}"]
    assert row.spec["overrides"]["2"]["packages"] == [f"tool@{two}"]
    world.bring_up(row.job, machine)
    told = load(cell.id, [machine.id], Specs())[machine.id].desired.run
    assert [[(p.name, p.digest, p.size_bytes, p.format) for p in task.packages] for task in told[1:]] == [
        [(f"tool@{one}", one, len(first), "tar+gzip"), (f"lib@{two}", two, len(second), "tar+gzip")],
        [(f"tool@{two}", two, len(second), "tar+gzip")],
    ]
    assert operator.get(f"{PACKAGES}ubar/tool/v1/").json()["jobs"] == ["web"]


def test_a_moved_tag_changes_nothing_until_the_next_update_which_restarts(cell, machine, operator) -> None:
    first, second = a_tar({"a": b"1"}), a_tar({"a": b"2"})
    upload(operator, first, "live")
    file = with_packages("tool@live")
    assert put(operator, file, WEB).status_code == 201
    assert put(operator, file, WEB).json()["outcome"] == "unchanged"
    row = JobSpec.objects.get()
    world.bring_up(row.job, machine)
    generation = load(cell.id, [machine.id], Specs())[machine.id].desired.generation
    upload(operator, second, "live")
    assert load(cell.id, [machine.id], Specs())[machine.id].desired.generation == generation
    planned = post(operator, f"{WEB}plan/", file).json()
    assert (planned["outcome"], planned["tasks"]["restarted"]) == ("updated", 3)
    assert put(operator, file, WEB).json()["outcome"] == "updated"
    assert list(JobSpec.objects.get(version=2).packages) == [digest_of(second)]
    undone = post(operator, f"{WEB}undo/").json()
    assert (undone["outcome"], list(JobSpec.objects.get(version=3).packages)) == ("updated", [digest_of(first)])


def test_another_tag_of_the_same_content_restarts_nothing(cell, machine, operator) -> None:
    upload(operator, a_tar(), "v1"), upload(operator, a_tar(), "v2")
    put(operator, with_packages("tool@v1"), WEB)
    planned = post(operator, f"{WEB}plan/", with_packages("tool@v2")).json()
    assert (planned["outcome"], planned["tasks"]["in_place"]) == ("updated", 3)


@pytest.mark.parametrize(
    "packages, overrides, path, told",
    [
        (["none"], {}, "task.packages[0]", "borgctl package upload"),
        (["tool@v1", "tool@v9"], {}, "task.packages[1]", "tool"),
        (["tool@v9"], {}, "task.packages[0]", "'v9'"),
        (["tool@sha256:" + "1" * 64], {}, "task.packages[0]", "1111"),
        (["tool@sha256:12"], {}, "task.packages[0]", "64 hexadecimal"),
        (["tool@v1", "tool@latest"], {}, "task.packages[1]", "once"),
        (["Tool/x"], {}, "task.packages[0]", "lower-case"),
        (["tool@v1"], {"1": {"packages": ["none"]}}, "overrides.1.packages[0]", "borgctl package upload"),
    ],
)
def test_a_package_that_is_not_there_is_named_by_its_place_in_the_file(
    cell, operator, packages, overrides, path, told
) -> None:
    upload(operator, a_tar(), "v1")
    file = with_packages(*packages, overrides=overrides)
    for answer in (
        post(operator, JOBS, file | {"tenant": "ubar"}),
        put(operator, file, WEB),
        post(operator, f"{WEB}plan/", file),
    ):
        body = problem(answer, 422, "invalid-spec")
        assert told in body["fields"][path], body
    bulk = post(operator, f"{JOBS}:bulk".replace("/:", ":"), [file | {"tenant": "ubar"}]).json()
    assert path in bulk["results"][0]["problem"]["fields"]
    assert Task.objects.count() == 0


def test_a_bulk_asks_for_all_packages_at_once(cell, tenant, ann, operator, django_assert_max_num_queries) -> None:
    upload(operator, a_tar(), "v1")
    files = [with_packages("tool@v1") | {"name": f"web{n}", "tenant": "ubar"} for n in range(20)]
    with django_assert_max_num_queries(60):
        answer = post(operator, "/api/v1/cells/cc/jobs:bulk", files).json()
    assert answer["submitted"] == 20
    assert {tuple(row.packages) for row in JobSpec.objects.all()} == {(digest_of(a_tar()),)}


def test_nobody_learns_of_foreign_packages_by_submitting(cell, operator) -> None:
    rows.a_package(cell, rows.a_tenant("other"), name="secret", tag="v1")
    told = [
        problem(post(operator, JOBS, with_packages(name) | {"tenant": "other"}), 404, "not-found")["detail"]
        for name in ("secret@v1", "nothing@v1")
    ]
    assert told[0] == told[1]
    problem(post(operator, JOBS, with_packages("secret@v1") | {"tenant": "ubar"}), 422, "invalid-spec")


# -- deletion


def delete(client: Client, reference: str):
    return client.delete(f"{PACKAGES}ubar/tool/{reference}/")


def test_what_a_live_job_may_run_stays(cell, machine, operator) -> None:
    first, second = a_tar({"a": b"1"}), a_tar({"a": b"2"})
    upload(operator, first, "v1"), upload(operator, second, "v2")
    put(operator, with_packages("tool@v1"), WEB)
    body = problem(delete(operator, "v1"), 409, "package-in-use")
    assert body["figures"]["jobs"] == ["web"]
    put(operator, with_packages("tool@v2"), WEB)
    problem(delete(operator, "v1"), 409, "package-in-use")  # an undo would use it again
    put(operator, with_packages("tool@v2", tasks=4), WEB)
    assert delete(operator, "v1").json() == {"deleted": True}
    problem(delete(operator, digest_of(second)), 409, "package-in-use")
    post(operator, f"{WEB}kill/")
    assert delete(operator, digest_of(second)).json() == {"deleted": True}
    problem(delete(operator, "v2"), 404, "not-found")
    assert Package.objects.count() == 0


def test_a_tag_goes_and_its_archive_with_the_last_one(cell, operator) -> None:
    upload(operator, a_tar(), "v1"), upload(operator, a_tar(), "v2")
    assert delete(operator, "v1").json() == {"deleted": False}
    assert operator.get(f"{PACKAGES}ubar/tool/v2/").json()["tags"] == ["v2"]
    assert delete(operator, "v2").json() == {"deleted": True}


def aged(folder: Path, seconds: float) -> None:
    for path in files_in(folder):
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


def test_the_sweep_takes_what_no_row_names_once_it_is_old(cell, tenant, operator, folder) -> None:
    upload(operator, a_tar({"a": b"1"}), "v1"), upload(operator, a_tar({"a": b"2"}), "v2")
    delete(operator, "v1")
    assert sweep.packages_sweep(cell) == 0, "an upload may be under way"
    aged(folder, 2 * sweep.ORPHAN_S)
    (store().spool() / "borg-package-killed").write_bytes(b"half")
    aged(store().spool(), 2 * 86400)
    assert sweep.packages_sweep(cell) == 1
    assert [path.name for path in files_in(folder)] == [digest_of(a_tar({"a": b"2"}))[7:]]


def test_the_sweep_lets_go_of_old_untagged_packages_that_no_job_runs(cell, operator, folder) -> None:
    archives = [a_tar({"a": bytes([n])}) for n in range(3)]
    upload(operator, archives[0], "live")
    put(operator, with_packages("tool@live"), WEB)
    upload(operator, archives[1], "live"), upload(operator, archives[2], "live")
    sweep.packages_sweep(cell)
    assert Package.objects.count() == 3
    sweep.packages_sweep(cell, now=timezone.now() + dt.timedelta(days=31))
    assert set(Package.objects.values_list("digest", flat=True)) == {digest_of(archives[0]), digest_of(archives[2])}
    assert Record.objects.filter(kind="package.expired").count() == 1


def test_a_store_is_named_by_an_address_of_a_known_kind() -> None:
    for url, told in (("ftp://x", "file:///folder"), ("file:relative", "absolute"), ("s3://b/p?key=1", "endpoint")):
        with pytest.raises(ValueError, match="BORG_PACKAGE_STORE") as error:
            open_store(url)
        assert told in str(error.value)


def test_the_cell_is_not_journalled_for_uploads(cell, operator) -> None:
    before = json.dumps(operator.get("/api/v1/cells/cc/events/").json())
    upload(operator, a_tar())
    assert json.dumps(operator.get("/api/v1/cells/cc/events/").json()) == before
