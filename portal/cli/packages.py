"""Commands for packages: build, upload, tag, list, show and delete."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from portal.cli import context, output
from portal.cli.client import part
from portal.cli.context import CellOption, Context, DryRun
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import quantity

package = typer.Typer(help="Packages that tasks install: build, upload, list, show, tag, delete.")

_CHUNK = 1 << 20
LATEST = "latest"

Reference = Annotated[
    str, typer.Argument(metavar="PACKAGE", help="name, name@tag or name@sha256:…. A name without a tag means @latest.")
]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Tenant to use instead of the profile's.")]
FormatOption = Annotated[str, typer.Option("--format", help="Format of the archive: tar or tar+gzip.")]


@package.command("build")
def package_build(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the files of the package.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="Archive file to write.")],
    format: FormatOption = "tar+gzip",
) -> None:
    """Pack a folder into an archive. The same files always produce the same bytes."""
    try:
        with out.open("w+b") as file:
            built = _pack(folder, file, format)
    except OSError as error:
        raise CommandFailed("output", f"cannot write {out}: {error.strerror}") from error
    if context.of(ctx).json:
        return output.as_json({"file": str(out), **built})
    return output.say(f"{out}: {built['digest']}, {quantity('disk', built['size_bytes'])}, {built['entries']} entries.")


@package.command("upload")
def package_upload(
    ctx: typer.Context,
    what: Annotated[
        Path, typer.Argument(metavar="FILE", help="Archive, OCI image layout in a tar, or a folder to pack.")
    ],
    name: Annotated[str, typer.Option(help="Name of the package.")],
    tag: Annotated[str, typer.Option(help="Tag for this version.")] = LATEST,
    cell: CellOption = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Upload an archive to the cell's package store as name@tag. Uploading it again changes nothing."""
    session = context.of(ctx)
    path = f"{_path(session, cell, tenant)}{part(name)}/{part(tag)}/"
    with tempfile.TemporaryFile() as packed, _opened(what, packed) as file:
        digest, size = _measured(file)
        answer = session.client.upload(
            path, _chunks(file), size, digest=digest, **({"dry_run": "1"} if dry_run else {})
        )
    if session.json:
        return output.as_json(answer)
    outcomes = {"uploaded": "uploaded", "moved": "moved to this version", "unchanged": "unchanged, it exists already"}
    would = "would be" if dry_run else "is"
    return output.say(f"{name}@{tag} {would} {outcomes[answer['outcome']]}: {digest}, {quantity('disk', size)}.")


@package.command("tag")
def package_tag(
    ctx: typer.Context,
    reference: Reference,
    tag: Annotated[str, typer.Argument(help="New tag for the package.")],
    cell: CellOption = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Add or move a tag to a package in the store. Jobs use it from their next update on."""
    session = context.of(ctx)
    base = _path(session, cell, tenant)
    name, version = _split(reference)
    found = session.client.get(f"{base}{part(name)}/{part(version)}/")
    path = f"{base}{part(name)}/{part(tag)}/"
    answer = session.client.put(path, {"digest": found["digest"]}, **({"dry_run": "1"} if dry_run else {}))
    if session.json:
        return output.as_json(answer)
    would = "would be" if dry_run else "is"
    return output.say(f"{name}@{tag} {would} {found['digest']}.")


@package.command("list")
def package_list(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Option(help="List only packages with this name.")] = None,
    cell: CellOption = None,
    tenant: TenantOption = None,
) -> None:
    """List the packages in a cell's store."""
    session = context.of(ctx)
    path = f"/api/v1/cells/{part(session.cell(cell))}/packages/"
    rows = list(session.client.pages(path, tenant=tenant or session.profile.tenant or None, name=name))
    return session.table(
        rows,
        {
            "PACKAGE": "name",
            "TENANT": "tenant",
            "TAGS": lambda row: ",".join(row["tags"]),
            "SIZE": lambda row: quantity("disk", row["size_bytes"]),
            "FORMAT": "format",
            "JOBS": lambda row: ",".join(row["jobs"]),
            "UPLOADED": lambda row: output.when(row["uploaded_at"]),
            "BY": "uploaded_by",
            "DIGEST": "digest",
        },
        empty="No packages. Upload one with `borgctl package upload FILE --name NAME`.",
    )


@package.command("show")
def package_show(
    ctx: typer.Context, reference: Reference, cell: CellOption = None, tenant: TenantOption = None
) -> None:
    """Show all details of a package, and the live jobs that may run it."""
    session = context.of(ctx)
    name, version = _split(reference)
    answer = session.client.get(f"{_path(session, cell, tenant)}{part(name)}/{part(version)}/")
    if session.json:
        return output.as_json(answer)
    shown = {
        **answer,
        "size_bytes": quantity("disk", answer["size_bytes"]),
        "tags": ", ".join(answer["tags"]),
        "jobs": ", ".join(answer["jobs"]),
        "uploaded_at": output.when(answer["uploaded_at"]),
    }
    for field, value in shown.items():
        if value not in ("", None):
            output.say(f"{field.removesuffix('_bytes'):<14}{value}")
    return None


@package.command("delete")
def package_delete(
    ctx: typer.Context,
    reference: Reference,
    cell: CellOption = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Delete a tag, or with a digest the package and all its tags. A package without tags is deleted too."""
    session = context.of(ctx)
    name, version = _split(reference)
    path = f"{_path(session, cell, tenant)}{part(name)}/{part(version)}/"
    answer = session.client.delete(path, **({"dry_run": "1"} if dry_run else {}))
    if session.json:
        return output.as_json(answer)
    would = "would be" if dry_run else "is"
    kept = "" if answer["deleted"] else "; the package stays, because it has other tags"
    return output.say(f"{name}@{version} {would} deleted{kept}.")


def _path(session: Context, cell: str | None, tenant: str | None) -> str:
    owner = tenant or session.profile.tenant
    if not owner:
        raise CommandFailed("no-tenant", "no tenant is given: use --tenant, or set `tenant` in the profile.", status=2)
    return f"/api/v1/cells/{part(session.cell(cell))}/packages/{part(owner)}/"


def _split(reference: str) -> tuple[str, str]:
    """Split a reference into name and tag or digest. Raises `CommandFailed`."""
    name, *rest = reference.split("@")
    version = rest[-1] if rest else LATEST
    if any(text in ("", ".", "..") or "/" in text for text in (name, version)):  # would lead to another path of the API
        raise bad_usage(
            f"{reference!r} is not a package: write name, name@tag or name@sha256:…", package="not a package name"
        )
    return name, version


def _opened(what: Path, packed: BinaryIO) -> BinaryIO:
    """Open the archive for reading. A folder is packed into `packed` first. Raises `CommandFailed`."""
    if what.is_dir():
        _pack(what, packed, "tar+gzip")
        return packed
    try:
        return what.open("rb")
    except OSError as error:
        raise CommandFailed("no-file", f"cannot read {what}: {error.strerror}", status=2) from error


def _pack(folder: Path, out: BinaryIO, format: str) -> dict[str, Any]:
    """Pack a folder and describe the archive. Raises `CommandFailed`."""
    # Imported here, because other commands do not need it.
    from borglet.packages.archives.build import CannotPack, pack

    try:
        built = pack(folder, out, format_=format)
    except CannotPack as error:
        raise CommandFailed("cannot-pack", str(error)) from error
    return {
        "digest": built.digest,
        "size_bytes": built.size_bytes,
        "entries": built.entries,
        "unpacked_bytes": built.unpacked_bytes,
        "format": format,
    }


def _measured(file: BinaryIO) -> tuple[str, int]:
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return f"sha256:{digest}", file.tell()


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(_CHUNK):
        yield chunk
