"""Tests of encrypted archives and checkpoints, in a folder and in S3: every reader, a missing key, and a new key."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import boto3
import pytest
from django.utils import timezone

from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.store import store
from scheduling.history.checkpoints.file import read
from scheduling.history.checkpoints.folder import checkpoints_of
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.journal import journal
from scheduling.master.snapshot import load_state
from scheduling.models import ArchiveFile, Cell, Event
from tests.integration import rows, world
from tests.integration.past import ago, happened, skipped_to
from tests.s3_server import BUCKET, KEYS

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def folder(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE, settings.BORG_ARCHIVE_KEYS = (tmp_path / "archive").as_uri(), OLD
    return tmp_path / "archive"


def archive() -> None:
    Archiver(store()).run(now=timezone.now())


def a_past(cell: Cell) -> None:
    """Write 40 events that are old enough to be archived and dropped, and 20 newer ones."""
    happened(cell, 20, at=ago(20))
    skipped_to(cell, journal.PARTITION)
    happened(cell, 10, at=ago(2))


def listed() -> list[int]:
    """Return the revisions of the cell's events as REST lists them, newest first."""
    client = world.bearer(world.a_user("sre", sre=True))
    return [one["revision"] for one in client.get("/api/v1/cells/cc/events/?limit=100").json()["results"]]


def test_encrypted_events_are_listed_and_queried_as_others(cell, folder) -> None:
    a_past(cell)
    archive()
    assert Event.objects.count() == 20
    for path in folder.rglob("*.parquet"):
        assert path.read_bytes()[:8] == b"BORGSEAL"
    assert len(listed()) == 60
    client = world.bearer(world.a_user("eve", sre=True))
    answer = client.post(
        "/api/v1/cells/cc/sql/",
        {"query": "SELECT count(*) AS n, min(revision) AS first FROM events"},
        content_type="application/json",
    )
    assert answer.status_code == 200, answer.content
    assert answer.json()["rows"] == [[60, 1]]


@pytest.mark.parametrize("keys", ["", NEW])
def test_without_the_key_nothing_is_archived_or_dropped(cell, folder, settings, keys) -> None:
    a_past(cell)
    Cell.objects.filter(pk=cell.pk).update(settings={"journal_keep_days": 30.0})
    archive()
    happened(cell, 10, at=ago(1))
    Cell.objects.filter(pk=cell.pk).update(settings={})
    settings.BORG_ARCHIVE_KEYS = keys
    before = sorted(path.read_bytes() for path in folder.rglob("*.parquet"))
    with pytest.raises(
        ArchiveFailed, match=r"cell cc: .* is encrypted with the key .*; add the key to BORG_ARCHIVE_KEYS"
    ):
        archive()
    assert Event.objects.count() == 80
    assert sorted(path.read_bytes() for path in folder.rglob("*.parquet")) == before
    settings.BORG_ARCHIVE_KEYS = f"{NEW},{OLD}"
    archive()
    assert Event.objects.count() == 40
    assert len(listed()) == 80, "the files of both keys are read"


def test_the_archive_and_checkpoints_work_in_s3(cell, settings, tmp_path, monkeypatch, s3_endpoint) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    settings.BORG_HOME, settings.BORG_ARCHIVE_KEYS = tmp_path, OLD
    settings.BORG_ARCHIVE = f"s3://{BUCKET}/{tmp_path.name}?endpoint={s3_endpoint}"
    a_past(cell)
    archive()
    assert Event.objects.count() == 20
    assert len(listed()) == 60
    rows.a_machine(cell, "m1")
    key = checkpoint_write(cell.id)
    (stored,) = checkpoints_of(cell.name)
    assert stored.key == key
    with stored.open() as file:
        assert read(file)[1]["machines"].num_rows == 1
    assert state_at(Cell.objects.get(pk=cell.pk)).diff(load_state(cell.id)) == []
    client = world.bearer(world.a_user("ann", sre=True))
    url = f"/api/v1/cells/cc/checkpoints/{stored.header.revision}/"
    content = b"".join(client.get(f"{url}content/").streaming_content)
    assert read(io.BytesIO(content))[0].revision == stored.header.revision
    bucket = boto3.client(
        "s3", endpoint_url=s3_endpoint, region_name="us-east-1", aws_access_key_id="tests", aws_secret_access_key="x"
    )
    objects = bucket.list_objects_v2(Bucket=BUCKET, Prefix=f"{tmp_path.name}/")["Contents"]
    assert len(objects) == ArchiveFile.objects.filter(rows__gt=0).count() + 1
    for one in objects:
        assert bucket.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()[:8] == b"BORGSEAL"
    bucket.delete_object(Bucket=BUCKET, Key=f"{tmp_path.name}/{key}")
    assert client.get(url).status_code == 404
    bucket.put_object(Bucket=BUCKET, Key=f"{tmp_path.name}/{ArchiveFile.objects.earliest('first').key}", Body=b"wrong")
    answer = client.get("/api/v1/cells/cc/events/?limit=100")
    assert (answer.status_code, answer.json()["code"]) == (503, "archive-away")
