"""Read a tar with a container image (an OCI image layout) as a package. The digest of each part of the image (blob) is
checked.

    oci-layout   index.json ─► (index ─►) manifest ─► config, layers     blobs/sha256/<64 hex>

See the image specification of the Open Container Initiative (OCI). The content of the config is ignored, because the
command, environment and user of a task come from its job.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, TypeVar

import msgspec

from borglet.packages.archives.checked_tree import Tree
from borglet.packages.archives.limits import ArchiveCost, ArchiveLimits, ArchiveRefused
from borglet.packages.archives.streams import PIECE_BYTES, ByteStream, Gunzip, Slice
from borglet.packages.archives.tarstream import EntryKind, TarStream

# Names of processors: the kernel's -> the specification's.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
MOST_LAYERS = 512
INDEXES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
MANIFESTS = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
PLAIN_LAYERS = frozenset({"application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar"})
GZIP_LAYERS = frozenset(
    {"application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"}
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."

Document = TypeVar("Document", bound=msgspec.Struct)


class Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None


class ImageIndex(msgspec.Struct, frozen=True):
    manifests: list[Descriptor]


class ImageManifest(msgspec.Struct, frozen=True):
    config: Descriptor
    layers: list[Descriptor]


class _Layout:
    """Reads the files in the tar of an image by name. It stores the offset and the size of each file."""

    def __init__(self, file: BinaryIO, size: int, account: ArchiveCost) -> None:
        self._file, self._account = file, account
        self._files: dict[str, tuple[int, int]] = {}
        self._checked: set[tuple[str, int]] = set()
        outside = TarStream(Slice(file, 0, size), ArchiveCost(account.limits, size))
        for entry in outside:
            name = entry.name.removeprefix("./")
            if entry.kind is EntryKind.DIRECTORY:
                continue
            if entry.kind is not EntryKind.FILE:
                raise ArchiveRefused(
                    f"{entry.name!r}: it is a {entry.kind}, and an image layout can contain only regular files; remove"
                    " it"
                )
            if name in self._files:
                raise ArchiveRefused(f"{entry.name!r}: the image layout has this entry twice; remove one")
            self._files[name] = (entry.offset, entry.size)

    def document(self, name: str, kind: type[Document]) -> Document:
        """Read a JSON document of the image. Raises `ArchiveRefused` if the document is missing, too large or not
        valid.
        """
        offset, size = self._found(name)
        if size > self._account.limits.document_bytes:
            most = self._account.limits.document_bytes
            raise ArchiveRefused(
                f"{name!r}: this JSON document has {size} bytes, and the limit is {most}; build a smaller one"
            )
        try:
            return msgspec.json.decode(b"".join(_pieces(Slice(self._file, offset, size))), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ArchiveRefused(
                f"{name!r}: it is not a valid JSON document: {error}; build the image again"
            ) from error

    def _found(self, name: str) -> tuple[int, int]:
        if name not in self._files:
            raise ArchiveRefused(
                f"{name!r}: this file is missing; give an OCI image layout with all its blobs in one tar"
            )
        return self._files[name]

    def check(self, blob: Descriptor) -> str:
        """Check a blob against its digest, and return its name. Raises `ArchiveRefused` if the blob is missing or does
        not match the digest.
        """
        if not _DIGEST.fullmatch(blob.digest):
            raise ArchiveRefused(
                f"digest {blob.digest[:100]!r}: a digest must be sha256: and 64 hex digits; build the image again"
            )
        name = f"blobs/sha256/{blob.digest.removeprefix('sha256:')}"
        if (name, blob.size) in self._checked:
            return name
        offset, size = self._found(name)
        digest = hashlib.sha256()
        for piece in _pieces(Slice(self._file, offset, size)):
            self._account.checkpoint()
            digest.update(piece)
        if size != blob.size or f"sha256:{digest.hexdigest()}" != blob.digest:
            raise ArchiveRefused(
                f"{name!r}: the file has {size} bytes and digest sha256:{digest.hexdigest()}, but the image declares"
                f" {blob.size} bytes and digest {blob.digest}; build the image again"
            )
        self._checked.add((name, blob.size))
        return name

    def stream(self, name: str) -> ByteStream:
        return Slice(self._file, *self._found(name))


def is_layout(file: BinaryIO) -> bool:
    """Return whether `file` is a tar with an OCI image layout. The file's headers are enough for this. Return False if
    the file is damaged.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        outside = TarStream(Slice(file, 0, size), ArchiveCost(ArchiveLimits(), size))
        return any(entry.name.removeprefix("./") == "oci-layout" for entry in outside)
    except ArchiveRefused:
        return False


def read_image(
    file: BinaryIO, size: int, tree: Tree, account: ArchiveCost, *, machine: str = os.uname().machine
) -> None:
    """Add the layers of the image in `file` for the architecture `machine` to `tree`. Raises `ArchiveRefused` if the
    image is damaged, exceeds a limit, or does not have exactly one image for `machine`.
    """
    layout = _Layout(file, size, account)
    manifest = _manifest(layout, "index.json", ARCHITECTURES.get(machine, machine), nested=True)
    if len(manifest.layers) > MOST_LAYERS:
        raise ArchiveRefused(
            f"the image: it has {len(manifest.layers)} layers, and the limit is {MOST_LAYERS}; build it with fewer"
            " layers"
        )
    layout.check(manifest.config)
    for number, layer in enumerate(manifest.layers, start=1):
        if layer.media_type not in PLAIN_LAYERS | GZIP_LAYERS:
            raise ArchiveRefused(
                f"layer {layer.digest}: cannot unpack the format {layer.media_type!r}; use tar or tar with gzip"
            )
        stream = layout.stream(layout.check(layer))
        tree.layer = number
        try:
            _apply(TarStream(Gunzip(stream, account) if layer.media_type in GZIP_LAYERS else stream, account), tree)
        except ArchiveRefused as error:
            raise ArchiveRefused(f"layer {number} of {len(manifest.layers)}: {error}") from error


def _manifest(layout: _Layout, name: str, architecture: str, *, nested: bool) -> ImageManifest:
    """Return the manifest of the image for `architecture`. `name`: the index that lists the manifest, directly or
    through another index.
    """
    found = [
        each
        for each in layout.document(name, ImageIndex).manifests
        if each.media_type in MANIFESTS | INDEXES
        and (each.platform is None or (each.platform.os, each.platform.architecture) == ("linux", architecture))
    ]
    if len(found) != 1:
        raise ArchiveRefused(
            f"{name!r}: it lists {len(found)} images for linux on {architecture}, but a package must have exactly 1;"
            " make one package per image"
        )
    document = layout.check(found[0])
    if found[0].media_type in MANIFESTS:
        return layout.document(document, ImageManifest)
    if not nested:
        raise ArchiveRefused(
            f"{document!r}: this index is the third of three nested indexes, and at most two are allowed; list"
            " the image in one index"
        )
    return _manifest(layout, document, architecture, nested=False)


def _apply(layer: TarStream, tree: Tree) -> None:
    for entry in layer:
        folder, _, base = entry.name.rstrip("/").rpartition("/")
        if base.startswith(_WHITEOUT):
            if base == _OPAQUE:
                tree.white_out_content(folder or ".")
            elif not base.startswith(_RESERVED):
                tree.white_out(f"{folder}/{base.removeprefix(_WHITEOUT)}" if folder else base[len(_WHITEOUT) :])
        else:
            tree.add(entry, layer.content())


def _pieces(stream: ByteStream) -> Iterator[bytes]:
    while piece := stream.read(PIECE_BYTES):
        yield piece
