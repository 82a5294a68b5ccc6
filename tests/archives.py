"""Builders of package archives for tests: a tar of given files, and a small OCI image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping


def a_tar(files: Mapping[str, bytes | str] | None = None, *, packed: bool = True) -> bytes:
    """Return a tar archive, compressed with gzip if `packed`. Equal arguments give equal bytes.

    `files` maps names to contents. A `str` as content makes a symbolic link to that path.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in (files if files is not None else {"bin/serve": b"#!/bin/sh\nexec sleep 60\n"}).items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size, entry.mode = len(content), 0o755
                tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0) if packed else out.getvalue()


def a_device() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("dev/null")
        entry.type, entry.devmajor, entry.devminor = tarfile.CHRTYPE, 1, 3
        tar.addfile(entry)
    return out.getvalue()


def digest_of(archive: bytes) -> str:
    return f"sha256:{hashlib.sha256(archive).hexdigest()}"


def an_image() -> bytes:
    """Return a tar of the smallest OCI image layout: an index, a manifest, a configuration and one layer."""
    layer = a_tar(packed=False)
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]}}
    ).encode()
    described = {
        kind: {"mediaType": f"application/vnd.oci.image.{media}", "digest": digest_of(blob), "size": len(blob)}
        for kind, media, blob in (("config", "config.v1+json", config), ("layer", "layer.v1.tar", layer))
    }
    manifest = json.dumps({"schemaVersion": 2, "config": described["config"], "layers": [described["layer"]]}).encode()
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest_of(manifest),
                "size": len(manifest),
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        ],
    }
    blobs = {f"blobs/sha256/{digest_of(blob)[7:]}": blob for blob in (config, layer, manifest)}
    return a_tar(
        {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **blobs},
        packed=False,
    )
