"""Tests of both kinds of package stores with the same cases: a folder, and a real server that speaks S3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduling.packages.store import ArchiveStore, open_store
from scheduling.storage.files import CHUNK_BYTES, NotThere, StoreAway
from tests.ports import free_port
from tests.s3_server import KEYS

DIGEST = "sha256:" + "ab" * 32
CONTENT = os.urandom(2 * CHUNK_BYTES + 12345)


@pytest.fixture(params=["file", "s3"])
def store(request, tmp_path, monkeypatch) -> ArchiveStore:
    if request.param == "file":
        return open_store((tmp_path / "store").as_uri())
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    prefix = f"borg/{tmp_path.name}"
    return open_store(f"s3://packages/{prefix}?endpoint={request.getfixturevalue('s3_endpoint')}")


def put(store: ArchiveStore, digest: str = DIGEST, content: bytes = CONTENT, *, cell: str = "cc") -> Path:
    draft = store.spool() / f"draft-{os.getpid()}"
    draft.write_bytes(content)
    store.put(cell, digest, draft)
    draft.unlink(missing_ok=True)
    return draft


def content_of(store: ArchiveStore, digest: str = DIGEST, *, offset: int = 0) -> bytes:
    with store.read("cc", digest, offset=offset) as chunks:
        return b"".join(chunks)


def test_what_is_put_is_read_back_from_anywhere(store: ArchiveStore) -> None:
    put(store)
    assert store.size("cc", DIGEST) == len(CONTENT)
    for offset in (0, 1, CHUNK_BYTES, len(CONTENT) - 1):
        assert content_of(store, offset=offset) == CONTENT[offset:]
    with store.read("cc", DIGEST) as chunks:
        assert max(map(len, chunks)) <= CHUNK_BYTES


def test_what_is_there_can_be_put_again_and_is_young_then(store: ArchiveStore) -> None:
    put(store)
    put(store)
    (blob,) = store.listing("cc")
    assert (blob.digest, blob.size_bytes) == (DIGEST, len(CONTENT))
    assert blob.age_s < 60


def test_what_is_deleted_or_never_was_is_not_there(store: ArchiveStore) -> None:
    assert store.size("cc", DIGEST) is None
    with pytest.raises(NotThere):
        content_of(store)
    put(store)
    store.delete("cc", DIGEST)
    store.delete("cc", DIGEST)
    assert (store.size("cc", DIGEST), list(store.listing("cc"))) == (None, [])


def test_cells_are_apart(store: ArchiveStore) -> None:
    put(store, cell="cc")
    put(store, "sha256:" + "cd" * 32, cell="dd")
    assert [blob.digest for blob in store.listing("cc")] == [DIGEST]
    assert store.size("dd", DIGEST) is None


def test_a_store_that_is_away_says_where_it_was_looked_for(tmp_path, monkeypatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "file").write_text("")
    away = [
        (open_store((tmp_path / "file" / "store").as_uri()), str(tmp_path)),
        (open_store(f"s3://packages/x?endpoint=http://127.0.0.1:{free_port()}"), "s3://packages"),
    ]
    for store, told in away:
        with pytest.raises(StoreAway, match=told):
            put(store)
        with pytest.raises(StoreAway, match=told):
            store.size("cc", DIGEST)


def test_a_bucket_that_is_missing_or_closed_is_reported(s3_endpoint, monkeypatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    missing = open_store(f"s3://no-such-bucket/x?endpoint={s3_endpoint}")
    with pytest.raises((StoreAway, NotThere), match="no-such-bucket"):
        list(missing.listing("cc"))
