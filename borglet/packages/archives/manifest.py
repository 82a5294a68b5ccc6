"""The manifest of a package: `borg-package.json` at the top of its archive, which may be missing."""

from __future__ import annotations

import msgspec

from borglet.packages.archives.limits import ArchiveRefused

MANIFEST_NAME = "borg-package.json"
MANIFEST_BYTES = 64 * 2**10


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest of a package, for people and for the cell's catalogue. Machines do not depend on it."""

    name: str = ""
    version: str = ""
    created: str = ""  # RFC 3339
    description: str = ""


def read_manifest(content: bytes) -> Manifest:
    """Read the manifest. Fields of later releases are ignored. Raises `ArchiveRefused`."""
    if len(content) > MANIFEST_BYTES:
        raise ArchiveRefused(f"{MANIFEST_NAME}: the file has more than {MANIFEST_BYTES} bytes, which is the limit")
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArchiveRefused(f"{MANIFEST_NAME}: {error}; give an object with name, version, created") from error
