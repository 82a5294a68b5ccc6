"""Upload, tag and delete packages (§3.2). The archives of packages are in the package store (`packages.store`).

    upload ─► draft ─► archive in the store ─► row of the package + record of the change
    sweep ──► old packages that no job uses ──► row deleted ──► archives without a row are deleted from the store

Uploads and the sweep lock the store of a cell. Uploads share the lock. The sweep has the lock alone while it deletes
archives. If a tag is moved, running jobs do not change, because their specs are stored with digests
(`packages.pinning`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from django.db.models import Q, Sum
from django.utils import timezone

from quota import records
from quota.models import Tenant
from quota.vocabulary.errors import Conflict, NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.journal.sql import execute
from scheduling.models import Cell, Package, PackageTag
from scheduling.packages.jobs_using_packages import in_use
from scheduling.packages.store import ArchiveStore
from scheduling.packages.store import store as the_store
from scheduling.packages.uploads import Draft, Readable
from scheduling.policy import cell_settings
from scheduling.spec import package_names
from scheduling.storage.files import StoreAway

log = structlog.get_logger(__name__)

_LOCK = 0x70616B73  # "paks"; with the cell's id, the key of the lock between uploads and the sweep


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of an upload or of setting a tag. `outcome`: uploaded, moved (the tag was set to another archive) or
    unchanged.
    """

    package: Package
    tag: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many bytes a tenant may upload. `most`: for one package. `left`: for all packages that the tenant uploads
    from now on.
    """

    most: int
    left: int


def may_upload(*, principal: Principal, cell: Cell, tenant: str) -> Allowance:
    """Return how many bytes the caller may upload for a tenant now. Raises `NotFound` if the tenant does not exist or
    the caller may not see it, and `Forbidden` if the caller may not upload for it.
    """
    owner = _owner(principal, cell, tenant)
    loaded = cell_settings.load(cell.settings)
    used = Package.objects.filter(cell=cell, tenant=owner).aggregate(used=Sum("size_bytes"))["used"] or 0
    return Allowance(int(loaded.package_max_gib * 2**30), int(loaded.packages_per_tenant_gib * 2**30) - used)


def package_upload(
    *,
    principal: Principal,
    cell: Cell,
    tenant: str,
    name: str,
    tag: str,
    stream: Readable,
    digest: str = "",
    format: str = "",
    dry_run: bool = False,
) -> Stored:
    """Store an archive in the cell's store under `name@tag`. A repeated upload changes nothing.

    `digest`, `format`: must agree with the archive; "": not checked. `dry_run`: do not store the archive; the caller
    must roll back the transaction. Raises `Rejected` if an argument or the archive is wrong, or if the store cannot be
    reached (status 503). Raises `NotFound` if the tenant does not exist or the caller may not see it, and `Forbidden`
    if the caller may not upload for it. Locks: the cell's store, shared; the tenant's row; the stream of records.
    """
    owner = _owner(principal, cell, tenant)
    _check_names(name, tag, digest, format)
    allowed = may_upload(principal=principal, cell=cell, tenant=tenant)
    with _reachable_store() as store, Draft(store, most_bytes=allowed.most) as draft:
        draft.take(stream)
        draft.check(format=format, digest=digest)
        if draft.size_bytes > allowed.left and not _known(cell, owner, name, draft.digest):
            raise _over_quota(tenant, draft.size_bytes, allowed.left)
        if not dry_run:
            draft.keep(cell.name)
        with records.write(principal) as entry:
            lock_store(cell, exclusive=False)
            # The lock makes each of two simultaneous uploads count the other.
            Tenant.objects.select_for_update(no_key=True).get(pk=owner.pk)
            left = may_upload(principal=principal, cell=cell, tenant=tenant).left
            if draft.size_bytes > left and not _known(cell, owner, name, draft.digest):
                raise _over_quota(tenant, draft.size_bytes, left)
            if not dry_run and store.size(cell.name, draft.digest) != draft.size_bytes:
                # A sweep deleted the archive before its row existed. This is rare.
                raise Conflict(
                    "store-busy",
                    "the cell has just deleted this archive, because no package used it; send the package again",
                )
            package, made = Package.objects.get_or_create(
                cell=cell,
                tenant=owner,
                name=name,
                digest=draft.digest,
                defaults={"size_bytes": draft.size_bytes, "format": draft.format, "uploaded_by": principal.name},
            )
            if made:
                entry.append(
                    "package.uploaded",
                    tenant=tenant,
                    cell=cell.name,
                    name=name,
                    digest=package.digest,
                    size_bytes=package.size_bytes,
                    format=package.format,
                )
            outcome = _set_tag(entry, principal, package, tag)
    return Stored(package, tag, "uploaded" if made else outcome)


def package_tag(*, principal: Principal, cell: Cell, tenant: str, name: str, tag: str, digest: str) -> Stored:
    """Set the tag `name@tag` to the archive with this `digest`, which must be in the store. A repeated call changes
    nothing.

    Raises `Rejected` if an argument is wrong, and `NotFound` if the package does not exist. Locks: the cell's store,
    shared; then the stream of records.
    """
    owner = _owner(principal, cell, tenant)
    _check_names(name, tag, digest, "")
    with records.write(principal) as entry:
        lock_store(cell, exclusive=False)
        package = Package.objects.filter(cell=cell, tenant=owner, name=name, digest=digest).first()
        if package is None:
            raise NotFound("package", f"{name}@{digest}")
        outcome = _set_tag(entry, principal, package, tag)
    return Stored(package, tag, outcome)


def package_delete(*, principal: Principal, cell: Cell, tenant: str, name: str, reference: str) -> Package | None:
    """Delete a tag. If the package has no other tag, delete the package too. If `reference` is a digest, delete the
    package with all its tags.

    Return the deleted package, or None if only a tag was deleted. Raises `Conflict` if the package would be deleted
    and a live job may run it. A later sweep deletes the archive from the store. Locks: the cell's row, then the stream
    of records.
    """
    owner = _owner(principal, cell, tenant)
    with records.write(principal) as entry:
        Cell.objects.select_for_update().get(pk=cell.pk)
        rows = Package.objects.filter(cell=cell, tenant=owner, name=name)
        by_digest = package_names.is_digest(reference)
        package = rows.filter(Q(digest=reference) if by_digest else Q(tags__tag=reference)).first()
        if package is None:
            raise NotFound("package", f"{name}@{reference}")
        others = [] if by_digest else list(package.tags.exclude(tag=reference).values_list("tag", flat=True))
        if not others and (jobs := in_use(cell.pk, [package.digest]).get((owner.pk, package.digest))):
            detail = f"live jobs use {name}@{reference}: {', '.join(jobs[:5])}; kill or update these jobs first"
            raise Conflict("package-in-use", detail, figures={"jobs": jobs[:100]})
        if others:
            package.tags.filter(tag=reference).delete()
            entry.append(
                "package.untagged", tenant=tenant, cell=cell.name, name=name, tag=reference, digest=package.digest
            )
            return None
        package.delete()
        entry.append("package.deleted", tenant=tenant, cell=cell.name, name=name, digest=package.digest)
    return package


def _known(cell: Cell, owner: Tenant, name: str, digest: str) -> bool:
    return Package.objects.filter(cell=cell, tenant=owner, name=name, digest=digest).exists()


def _owner(principal: Principal, cell: Cell, tenant: str) -> Tenant:
    require_tenant(principal, Action.PACKAGE_WRITE, tenant, cell.name)
    owner = Tenant.objects.filter(name=tenant).first()
    if owner is None:
        raise NotFound("tenant", tenant)
    return owner


def _check_names(name: str, tag: str, digest: str, format: str) -> None:
    problems: dict[str, str] = {}
    if not package_names.is_name(name):
        problems["name"] = f"{name[:80]!r} is not a package name; {package_names.NAME_CURE}"
    if not package_names.is_tag(tag):
        problems["tag"] = f"{tag[:80]!r} is not a tag; {package_names.TAG_CURE}"
    if digest and not package_names.is_digest(digest):
        problems["digest"] = f"{digest[:80]!r} is not a digest; {package_names.DIGEST_CURE}"
    if format and format not in package_names.FORMATS:
        problems["format"] = f"{format[:80]!r} is unknown; give one of {', '.join(package_names.FORMATS)}"
    if problems:
        detail = "; ".join(f"{field}: {what}" for field, what in problems.items())
        raise Rejected("invalid", detail, fields=problems)


def _set_tag(entry: records.RecordEntry, principal: Principal, package: Package, tag: str) -> str:
    known = {"cell_id": package.cell_id, "tenant_id": package.tenant_id, "name": package.name, "tag": tag}
    row = PackageTag.objects.select_for_update().select_related("package").filter(**known).first()
    if row is not None and row.package_id == package.pk:
        return "unchanged"
    before = row.package.digest if row is not None else ""
    PackageTag.objects.update_or_create(
        **known,  # type: ignore[arg-type]
        defaults={"package": package, "moved_by": principal.name, "moved_at": timezone.now()},
    )
    entry.append(
        "package.tagged",
        tenant=package.tenant.name,
        cell=package.cell.name,
        name=package.name,
        tag=tag,
        digest=package.digest,
        before=before,
    )
    return "moved"


def _over_quota(tenant: str, size: int, left: int) -> Rejected:
    detail = (
        f"the package has {size} bytes, and tenant {tenant} may store {max(left, 0)} more bytes in this cell; "
        "delete packages with `borgctl package delete`, or ask an SRE for more"
    )
    return Rejected("store-quota-exceeded", detail, figures={"left_bytes": max(left, 0), "bytes": size}, status=403)


def lock_store(cell: Cell, *, exclusive: bool) -> None:
    """Lock the cell's store until the end of the transaction. `exclusive`: False for uploads, which share the lock;
    True for the sweep, which holds the lock alone.
    """
    function = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
    execute(f"SELECT {function}(%s, %s)", [_LOCK, cell.pk])


@contextmanager
def _reachable_store() -> Iterator[ArchiveStore]:
    """Yield the package store. Raises `Rejected` if the store cannot be reached in the `with` block."""
    try:
        yield the_store()
    except StoreAway as error:
        log.error("the package store is unreachable", error=str(error))
        detail = "the cell's package store is unreachable; try again later, or ask an SRE"
        raise Rejected("store-away", detail, status=503) from error
