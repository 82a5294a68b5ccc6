"""Commands for packages: build, upload, tag, list, show and delete."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Context, DryRun, OptionGroup, TenantOption
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import quantity, would_be
from portal.cli.paths import part

package = Commands(help="Packages that tasks install: build, upload, list, show, tag, delete.")

_CHUNK = 1 << 20
LATEST = "latest"

Reference = Annotated[
    str, typer.Argument(metavar="PACKAGE", help="Package: name, name@tag or name@sha256:DIGEST. Default tag: latest.")
]
FormatOption = Annotated[str, typer.Option("--format", help="Format of the archive: tar or tar+gzip.")]


@dataclass(kw_only=True)
class Store(OptionGroup):
    """The options that choose a cell and a tenant for a command. The command uses the tenant's packages in the cell's
    store.
    """

    cell: CellOption = None
    tenant: TenantOption = None

    def path(self, session: Context, name: str, version: str) -> str:
        """Return the API path of the package `name` in the store that the options choose. `version`: the tag or digest.
        Raises `CommandFailed` if no tenant or no cell is given.
        """
        if not (owner := self.tenant or session.profile.tenant):
            problem = "no tenant is given: use --tenant, or set `tenant` in the profile."
            raise CommandFailed("no-tenant", problem, status=2)
        return f"{session.cell_path(self.cell)}packages/{part(owner)}/{part(name)}/{part(version)}/"


@package.command("build")
def package_build(
    session: Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the files of the package.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="File to which the archive is written.")],
    format: FormatOption = "tar+gzip",
) -> None:
    """Pack a folder into an archive. Folders with equal content produce equal archives."""
    try:
        with out.open("w+b") as file:
            built = _pack(folder, file, format)
    except OSError as error:
        raise CommandFailed(
            "output", f"cannot write {out}: {error.strerror}; choose another file with --output"
        ) from error
    size = quantity("disk", built["size_bytes"])
    return session.say({"file": str(out), **built}, f"{out}: {built['digest']}, {size}, {built['entries']} entries.")


@package.command("upload")
def package_upload(
    session: Context,
    what: Annotated[
        Path, typer.Argument(metavar="FILE", help="Archive file, tar file with an OCI image layout, or folder.")
    ],
    name: Annotated[str, typer.Option(help="Name of the package.")],
    tag: Annotated[str, typer.Option(help="Tag for the uploaded version.")] = LATEST,
    *,
    store: Store,
    dry_run: DryRun = False,
) -> None:
    """Upload an archive to the cell's package store as name@tag. A second upload of the same archive changes
    nothing.
    """
    path = store.path(session, name, tag)
    with tempfile.TemporaryFile() as packed, _opened(what, packed) as file:
        digest, size = _measured(file)
        with output.progress(size, f"{name}@{tag}") as sent:
            answer = session.client.upload(path, _chunks(file, sent), size, digest=digest, dry_run=dry_run)
    outcomes = {"uploaded": "uploaded", "moved": "moved to this version", "unchanged": "unchanged, it exists already"}
    done = f"{would_be(dry_run)} {outcomes[answer['outcome']]}"
    return session.say(answer, f"{name}@{tag} {done}: {digest}, {quantity('disk', size)}.")


@package.command("tag")
def package_tag(
    session: Context,
    reference: Reference,
    tag: Annotated[str, typer.Argument(help="New tag for the package.")],
    store: Store,
    dry_run: DryRun = False,
) -> None:
    """Add a tag to a package in the store. If another package has this tag, move the tag to this package.

    Jobs whose job file contains the tag use this package after their next update.
    """
    name, version = _split(reference)
    found = session.client.get(store.path(session, name, version))
    answer = session.client.put(store.path(session, name, tag), {"digest": found["digest"]}, dry_run=dry_run)
    return session.say(answer, f"{name}@{tag} {would_be(dry_run)} {found['digest']}.")


@package.command("list")
def package_list(
    session: Context,
    name: Annotated[str | None, typer.Option(help="List only packages with this name.")] = None,
    *,
    store: Store,
) -> None:
    """List the packages in a cell's store."""
    path = f"{session.cell_path(store.cell)}packages/"
    return session.table(
        session.client.pages(path, tenant=store.tenant or session.profile.tenant or None, name=name),
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
def package_show(session: Context, reference: Reference, store: Store) -> None:
    """Show all details of a package, and the live jobs that may run it."""
    answer = session.client.get(store.path(session, *_split(reference)))
    if session.json:
        return output.as_json(answer)
    shown = {
        **answer,
        "size_bytes": quantity("disk", answer["size_bytes"]),
        "tags": ", ".join(answer["tags"]),
        "jobs": ", ".join(answer["jobs"]),
        "uploaded_at": output.when(answer["uploaded_at"]),
    }
    return output.details(((name.removesuffix("_bytes"), value) for name, value in shown.items()), width=14, indent="")


@package.command("delete")
def package_delete(session: Context, reference: Reference, store: Store, dry_run: DryRun = False) -> None:
    """Delete a tag of a package. If PACKAGE contains a digest, delete the package. A package that has no tag left is
    also deleted.
    """
    name, version = _split(reference)
    answer = session.client.delete(store.path(session, name, version), dry_run=dry_run)
    kept = "" if answer["deleted"] else "; the package stays, because it has other tags"
    return session.say(answer, f"{name}@{version} {would_be(dry_run)} deleted{kept}.")


def _split(reference: str) -> tuple[str, str]:
    """Split a reference such as `web@latest` into the name of the package and its tag or digest. Raises `CommandFailed`
    if a part is not valid.
    """
    name, *rest = reference.split("@")
    version = rest[-1] if rest else LATEST
    if any(text in ("", ".", "..") or "/" in text for text in (name, version)):  # such a text is another API path
        raise bad_usage(
            f"{reference!r} is not a package: write name, name@tag or name@sha256:DIGEST", package="not valid"
        )
    return name, version


def _opened(what: Path, packed: BinaryIO) -> BinaryIO:
    """Return a file that contains the archive of a package. If `what` is a folder, pack it into the file `packed`
    first. Raises `CommandFailed` if the archive cannot be read or the folder cannot be packed.
    """
    if what.is_dir():
        _pack(what, packed, "tar+gzip")
        return packed
    try:
        return what.open("rb")
    except OSError as error:
        raise CommandFailed(
            "no-file", f"cannot read {what}: {error.strerror}; check the path of the archive", status=2
        ) from error


def _pack(folder: Path, out: BinaryIO, format: str) -> dict[str, Any]:
    """Write the archive of a folder to the file `out`. Return the archive's digest, size, number of entries and format.
    Raises `CommandFailed` if the folder cannot be packed.
    """
    from borglet.packages.archives.build import CannotPack, pack  # other commands do not need this import

    try:
        built = pack(folder, out, format_=format)
    except CannotPack as error:
        raise CommandFailed("cannot-pack", str(error)) from error
    return {**asdict(built), "format": format}


def _measured(file: BinaryIO) -> tuple[str, int]:
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return f"sha256:{digest}", file.tell()


def _chunks(file: BinaryIO, sent: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the content of the file. Call `sent` with the size of each part when the next one is needed."""
    file.seek(0)
    while chunk := file.read(_CHUNK):
        yield chunk
        sent(len(chunk))
