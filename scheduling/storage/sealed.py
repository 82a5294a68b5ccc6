"""A file store that encrypts what it puts into another store.

    put:  draft ─► header │ frame │ frame │ … ─► the other store
    read: the other store ─► frames, each of them authenticated ─► content

A file without the header is returned unchanged, so files that were stored before there was a key stay readable.

Each file has its own key, which HKDF-SHA-256 derives from a random salt and from a key of the installation. Each frame
has up to 1 MiB of content, encrypted with AES-256-GCM. Its nonce is its number and whether it is the last one, so a
reader notices frames that were exchanged, repeated or cut off. The name of the file is authenticated with each frame.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from scheduling.storage.files import CHUNK_BYTES, DamagedFile, FileStore, StoreAway, StoredFile, UnknownKey

KEY_BYTES = 32
_SEALED = "sealed-"  # the beginning of the names of encrypted drafts
_FORGOTTEN_S = 86_400.0
_MAGIC, _FORMAT = b"BORGSEAL", 1
_HEADER = struct.Struct("<8sB8s32s")  # magic, format, id of the key, salt
_TAG_BYTES = 16


def read_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys in a comma-separated list of 32 bytes each, in base64. Raises `ValueError` without showing any
    part of the list if a key is not valid.
    """
    try:
        keys = tuple(base64.b64decode(part.strip(), validate=True) for part in text.split(",") if part.strip())
    except binascii.Error:
        keys = (b"",)
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(
            f"a key in the comma-separated list is not valid: each key must be {KEY_BYTES} bytes in base64"
        )
    return keys


def key_id(key: bytes) -> str:
    """Return the id of a key, 16 hexadecimal digits. The header of a file contains it. It does not reveal the key."""
    return hashlib.sha256(b"borg archive key" + key).hexdigest()[:16]


class SealedStore:
    """A `FileStore` that encrypts files with the first of `keys`. It can read files that any of `keys` encrypted.
    Without keys it encrypts nothing.

    `setting`: the setting with the keys, for error messages. `drafts`: a folder on this host for drafts. Drafts are not
    encrypted, and only the user of this process may read the folder. A file that cannot be decrypted raises
    `UnknownKey` or `DamagedFile`.
    """

    def __init__(self, files: FileStore, keys: Sequence[bytes], *, drafts: Path, setting: str) -> None:
        self._files, self._drafts, self._setting = files, drafts, setting
        self._keys = {bytes.fromhex(key_id(key)): key for key in keys}
        self._first = bytes.fromhex(key_id(keys[0])) if keys else b""

    def spool(self) -> Path:
        if not self._keys:
            return self._files.spool()
        try:
            self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreAway(f"cannot use {self._drafts}: {error.strerror}; check the folder BORG_HOME") from error
        return self._drafts

    def put(self, key: str, draft: Path) -> None:
        if not self._keys:
            return self._files.put(key, draft)
        folder = self._files.spool()
        for forgotten in folder.glob(f"{_SEALED}*"):  # drafts of processes that were killed
            with suppress(FileNotFoundError):
                if time.time() - forgotten.stat().st_mtime > _FORGOTTEN_S:
                    forgotten.unlink()
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=_SEALED)
        os.close(descriptor)
        sealed = Path(name)
        try:
            try:
                self._seal(key, draft, sealed)
            except OSError as error:
                raise StoreAway(f"cannot write {sealed}: {error.strerror}; check the disk") from error
            self._files.put(key, sealed)
        finally:
            sealed.unlink(missing_ok=True)

    def size(self, key: str) -> int | None:
        return self._files.size(key)

    @contextmanager
    def read(self, key: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        with self._files.read(key) as chunks:
            yield _without_first(self._content(key, chunks), offset)

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        with self._files.local(key) as path, path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                yield path
                return
            file.seek(0)
            # The copy has no name, so that nothing stays on the disk if this process is killed.
            with tempfile.TemporaryFile(dir=self.spool()) as copy:
                try:
                    copy.writelines(self._content(key, iter(lambda: file.read(CHUNK_BYTES), b"")))
                    copy.flush()
                except OSError as error:
                    raise StoreAway(
                        f"cannot write the decrypted copy of {key}: {error.strerror}; check the disk"
                    ) from error
                yield Path(f"/proc/{os.getpid()}/fd/{copy.fileno()}")

    def listing(self, prefix: str) -> Iterator[StoredFile]:
        return self._files.listing(prefix)

    def delete(self, key: str) -> None:
        self._files.delete(key)

    def _seal(self, name: str, draft: Path, sealed: Path) -> None:
        """Write the encrypted content of a draft to the file `sealed`."""
        header = _HEADER.pack(_MAGIC, _FORMAT, self._first, os.urandom(32))
        cipher, context = self._cipher(name, header)
        with draft.open("rb") as source, sealed.open("wb") as target:
            target.write(header)
            for number, frame, last in _numbered(_blocks(iter(lambda: source.read(CHUNK_BYTES), b""), CHUNK_BYTES)):
                target.write(cipher.encrypt(_nonce(number, last), frame, context))

    def _content(self, name: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the decrypted content of a file, whose stored bytes are `chunks`. A file without the header is not
        encrypted.
        """
        begin = b""
        while len(begin) < _HEADER.size and (chunk := next(chunks, b"")):
            begin += chunk
        if not begin.startswith(_MAGIC):
            yield begin
            yield from chunks
            return
        cipher, context = self._cipher(name, begin[: _HEADER.size])
        stored = _with_first(begin[_HEADER.size :], chunks)
        try:
            for number, frame, last in _numbered(_blocks(stored, CHUNK_BYTES + _TAG_BYTES)):
                yield cipher.decrypt(_nonce(number, last), frame, context)
        except InvalidTag as error:
            raise DamagedFile(
                f"{name} is damaged, because its bytes are not those that were stored; restore the file from a backup"
            ) from error

    def _cipher(self, name: str, header: bytes) -> tuple[AESGCM, bytes]:
        """Return the cipher of a file, and the bytes that are authenticated with each of its frames."""
        if len(header) < _HEADER.size:
            raise DamagedFile(f"{name} is damaged, because its header is not complete; restore it from a backup")
        _, version, identity, salt = _HEADER.unpack(header)
        if version != _FORMAT:
            raise UnknownKey(
                f"{name} is encrypted in format {version}, which this release cannot read; upgrade Borg Portal"
            )
        if identity not in self._keys:
            known = ", ".join(key.hex() for key in self._keys) or "no key"
            raise UnknownKey(
                f"{name} is encrypted with the key {identity.hex()}, and {self._setting} contains {known}; add the key"
                f" to {self._setting}, after the key for new files"
            )
        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"borg archive file")
        return AESGCM(derived.derive(self._keys[identity])), header + name.encode()


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11) + (b"\1" if last else b"\0")


def _blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes of `chunks` in blocks of `size` bytes. The last one may be shorter; there is always one."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) > size:
            yield bytes(held[:size])
            del held[:size]
    yield bytes(held)


def _numbered(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield each block with its number, and with whether it is the last one."""
    number, block = 0, next(blocks)
    for following in blocks:
        yield number, block, False
        number, block = number + 1, following
    yield number, block, True


def _with_first(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from chunks


def _without_first(chunks: Iterator[bytes], number: int) -> Iterator[bytes]:
    """Yield the bytes of `chunks` without the first `number` bytes, in chunks that are not empty."""
    for chunk in chunks:
        if kept := chunk[number:]:
            yield kept
        number = max(number - len(chunk), 0)
