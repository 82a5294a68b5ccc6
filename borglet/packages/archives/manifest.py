"""The manifest of a package: the optional file `borg-package.json` in the root of its archive."""

from __future__ import annotations

import msgspec

from borglet.packages.archives.limits import ArchiveRefused

MANIFEST_NAME = "borg-package.json"
MANIFEST_BYTES = 64 * 2**10


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest of a package, for people and for the cell's catalogue. Machines do not use it."""

    name: str = ""
    version: str = ""
    created: str = ""  # RFC 3339
    description: str = ""


def read_manifest(content: bytes) -> Manifest:
    """Return the manifest in this JSON text. Unknown fields are ignored. Raises `ArchiveRefused` if the text is not a
    manifest.
    """
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArchiveRefused(
            f"{MANIFEST_NAME}: {error}; give a JSON object with name, version and created, each a text"
        ) from error
