"""Names of packages in job files: `web`, `web@v2`, `web@sha256:…`. Stored specs contain `web@v2@sha256:…`. Pure.

A name without a tag means the tag `latest`. A tag can move to another archive, but a digest always means the same
archive. When a job is submitted or updated, the digest is added to the name. The job then runs the archive with this
digest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LATEST = "latest"
FORMATS = ("tar", "tar+gzip", "oci")  # as `borglet.packages.archives.unpacking` reads them

_NAME = re.compile(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?")
_TAG = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,62}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAME_CURE = "use at most 63 lower-case letters, digits, '-', '.' and '_'; begin and end with a letter or digit"
TAG_CURE = "use at most 63 letters, digits, '-', '.' and '_'"
DIGEST_CURE = "write sha256: and 64 hexadecimal digits, in lower case"


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A reference to a package. If it has a `digest`, the digest decides which archive is used, and the `tag` is only
    shown to users.
    """

    name: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return "@".join(part for part in (self.name, self.tag, self.digest) if part)

    @property
    def wanted_tag(self) -> str:
        """Return the tag that decides which archive is used, or "" if the digest decides it."""
        return "" if self.digest else self.tag or LATEST

    def pinned(self, digest: str) -> Reference:
        return Reference(self.name, self.tag, digest)


def parse(text: str) -> Reference:
    """Return the package reference in `text`. Raises `ValueError` if it is not valid; the message says what is wrong
    and how to correct it.
    """
    name, *rest = text.split("@")
    if not is_name(name):
        raise ValueError(f"{text[:100]!r}: {name[:80]!r} is not the name of a package; {NAME_CURE}")
    digest = rest.pop() if rest and rest[-1].startswith("sha256:") else ""
    if digest and not is_digest(digest):
        raise ValueError(f"{text[:100]!r}: {digest[:80]!r} is not a digest; {DIGEST_CURE}")
    if len(rest) > 1 or (rest and not is_tag(rest[0])):
        raise ValueError(f"{text[:100]!r} is not a package; write name, name@tag or name@sha256:…; in tags {TAG_CURE}")
    return Reference(name, rest[0] if rest else "", digest)
