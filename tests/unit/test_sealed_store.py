"""Tests of a file store that encrypts: what the store below contains, damage that is noticed, and changes of keys."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

import pytest

from portal.settings import checks
from scheduling.storage.files import CHUNK_BYTES, DamagedFile, UnknownKey
from scheduling.storage.folder import FolderStore
from scheduling.storage.sealed import SealedStore, key_id, read_keys

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
FRAME, HEADER = CHUNK_BYTES + 16, 49


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def sealed(folder: Path, *keys: bytes) -> SealedStore:
    files = FolderStore(folder, setting="BORG_ARCHIVE")
    return SealedStore(files, keys, drafts=folder.parent / "drafts", setting="BORG_ARCHIVE_KEYS")


def put(store: SealedStore, content: bytes, key: str = "cc/file") -> None:
    draft = store.spool() / "draft"
    draft.write_bytes(content)
    store.put(key, draft)
    draft.unlink(missing_ok=True)


def content_of(store: SealedStore, key: str = "cc/file", *, offset: int = 0) -> bytes:
    with store.read(key, offset=offset) as chunks:
        return b"".join(chunks)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 77])
def test_files_of_any_size_are_read_as_they_were_put(folder: Path, size: int) -> None:
    store, content = sealed(folder, NEW), os.urandom(size)
    put(store, content)
    for offset in {0, 1, size // 2, size}:
        assert content_of(store, offset=offset) == content[offset:]
    with store.local("cc/file") as path:
        assert path.read_bytes() == content
        assert subprocess.run(["cat", path], capture_output=True, check=True).stdout == content, (
            "by other processes too"
        )
    assert store.size("cc/file") == HEADER + size + 16 * max(-(-size // CHUNK_BYTES), 1)
    assert list(store.spool().iterdir()) == list((folder / ".drafts").iterdir()) == [], "no draft is left"


def test_the_store_below_contains_neither_content_nor_equal_bytes_for_equal_files(folder: Path) -> None:
    store = sealed(folder, NEW)
    put(store, b"secret" * 100)
    first = (folder / "cc/file").read_bytes()
    put(store, b"secret" * 100)
    second = (folder / "cc/file").read_bytes()
    assert b"secret" not in first
    assert first[HEADER:] != second[HEADER:]
    assert store.spool() != folder / ".drafts", "drafts are not encrypted, and stay on this host"


def changed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: changed(content, 20),  # in the salt
        lambda content: changed(content, HEADER),
        lambda content: changed(content, len(content) - 1),
        lambda content: content[:-1],
        lambda content: content[: HEADER + FRAME],  # whole frames are missing
        lambda content: content[:30],
        lambda content: content[:HEADER] + content[HEADER + FRAME :],
        lambda content: content[:HEADER] + content[HEADER + FRAME : HEADER + 2 * FRAME] + content[HEADER:],
        lambda content: content + b"x",
    ],
)
def test_each_damage_is_noticed(folder: Path, damage) -> None:
    store = sealed(folder, NEW)
    put(store, os.urandom(2 * CHUNK_BYTES + 5))
    file = folder / "cc/file"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DamagedFile, match="cc/file is damaged"):
        content_of(store)
    with pytest.raises(DamagedFile), store.local("cc/file"):
        pass


def test_a_file_under_the_name_of_another_is_damaged(folder: Path) -> None:
    store = sealed(folder, NEW)
    put(store, b"one", "cc/one")
    put(store, b"two", "cc/two")
    (folder / "cc/one").replace(folder / "cc/two")
    with pytest.raises(DamagedFile, match="cc/two"):
        content_of(store, "cc/two")


def test_old_files_stay_readable_while_their_key_is_listed(folder: Path) -> None:
    put(sealed(folder), b"plain", "cc/plain")
    put(sealed(folder, OLD), b"old", "cc/old")
    both = sealed(folder, NEW, OLD)
    put(both, b"new", "cc/new")
    assert [content_of(both, f"cc/{name}") for name in ("plain", "old", "new")] == [b"plain", b"old", b"new"]
    assert content_of(sealed(folder, NEW), "cc/new") == b"new"
    for keys, listed in (((NEW,), key_id(NEW)), ((), "no key")):
        with pytest.raises(UnknownKey, match=rf"cc/old .* key {key_id(OLD)}, and BORG_ARCHIVE_KEYS contains {listed}"):
            content_of(sealed(folder, *keys), "cc/old")


def test_a_key_that_is_not_valid_is_reported_without_showing_it() -> None:
    good = base64.b64encode(NEW).decode()
    assert read_keys(f" {good}, {base64.b64encode(OLD).decode()}") == (NEW, OLD)
    assert (read_keys(""), checks.archive_keys(good)) == ((), "")
    for wrong in (good[:-4], f"{good},hunter2", good.replace("A", "!")):
        complaint = checks.archive_keys(wrong)
        assert "32 bytes in base64; create each key with python3" in complaint
        assert wrong[:6] not in complaint
        assert "hunter2" not in complaint
