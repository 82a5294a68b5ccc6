"""Builders of package archives for tests, valid ones and hostile ones. They write each header directly."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO

from borglet.packages.archives.limits import ArchiveLimits
from borglet.packages.archives.unpacking import TAR, Unpacked, unpack

END = bytes(1024)


def header(
    name: bytes | str,
    kind: bytes = b"0",
    *,
    size: int | bytes = 0,
    target: bytes | str = b"",
    mode: int = 0o644,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """Return one tar header of 512 bytes. Its checksum is right, even if other fields are wrong."""
    name = name.encode() if isinstance(name, str) else name
    target = target.encode() if isinstance(target, str) else target
    sized = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108] = b"%07o\0" % mode
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = sized.ljust(12, b"\0")
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(target)] = target
    block[257:265] = magic
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def file(name: bytes | str, content: bytes = b"x", **changes: object) -> bytes:
    return header(name, size=len(content), **changes) + padded(content)  # type: ignore[arg-type]


def folder(name: str) -> bytes:
    return header(name, b"5", mode=0o755)


def link(name: bytes | str, target: bytes | str) -> bytes:
    return header(name, b"2", target=target)


def hard_link(name: str, target: str) -> bytes:
    return header(name, b"1", target=target)


def extended(content: bytes, kind: bytes = b"x") -> bytes:
    return header("././@PaxHeader", kind, size=len(content)) + padded(content)


def pax(**records: str | bytes) -> bytes:
    return b"".join(pax_record(key.replace("_", "."), value) for key, value in records.items())


def pax_record(key: str, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    body = b" " + key.encode() + b"=" + raw + b"\n"
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body


def archive(*parts: bytes) -> BinaryIO:
    return io.BytesIO(b"".join(parts) + END)


def zipped(*parts: bytes) -> BinaryIO:
    return io.BytesIO(gzip.compress(b"".join(parts) + END, mtime=0))


def unpacked(found: BinaryIO, target: Path, format_: str = TAR, limits: ArchiveLimits = ArchiveLimits()) -> Unpacked:
    target.mkdir(exist_ok=True)
    return unpack(found, format_, target, limits=limits)


def contents(root: Path) -> dict[str, object]:
    """Return the tree below `root` by path: (content, executable) of a file, a link's target, None for a directory."""
    found: dict[str, object] = {}
    for base, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(base, name)
            mode = path.lstat().st_mode
            key = str(path.relative_to(root))
            if stat.S_ISLNK(mode):
                found[key] = os.readlink(path)
            elif stat.S_ISDIR(mode):
                found[key] = None
            else:
                found[key] = (path.read_bytes(), bool(mode & 0o111))
    return found


# -- image layouts

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"


class Layout:
    """A builder of OCI image layouts."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def blob(self, content: bytes, media_type: str, **more: object) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content), **more}

    def layer(self, *parts: bytes, compressed: bool = False) -> dict[str, object]:
        content = b"".join(parts) + END
        if compressed:
            return self.blob(gzip.compress(content, mtime=0), f"{LAYER}+gzip")
        return self.blob(content, LAYER)

    def image(self, *layers: dict[str, object], **more: object) -> dict[str, object]:
        config = self.blob(b"{}", CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)}
        return self.blob(json.dumps(manifest).encode(), MANIFEST, **more)

    def index(self, *images: dict[str, object]) -> bytes:
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(images)}).encode()

    def tar(self, *images: dict[str, object], extra: bytes = b"") -> BinaryIO:
        parts = [file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), file("index.json", self.index(*images))]
        parts += [
            file(f"blobs/sha256/{digest.removeprefix('sha256:')}", content) for digest, content in self.blobs.items()
        ]
        return archive(*parts, extra)


def image_of(*layers: tuple[bytes, ...]) -> BinaryIO:
    layout = Layout()
    return layout.tar(layout.image(*[layout.layer(*parts) for parts in layers]))


def made_by_tarfile(directory: Path, format_: int, *, compressed: bool = False) -> BinaryIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if compressed else "w", format=format_) as tar:
        tar.add(directory, arcname=".")
    return out
