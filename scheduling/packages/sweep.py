"""Delete packages that no job may run any more: first their database rows, then their archives in the store. A Celery
task calls this.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from quota import records
from quota.vocabulary.permissions import system
from scheduling.models import Cell, Package, PackageTag
from scheduling.packages.jobs_using_packages import in_use
from scheduling.packages.packages import lock_store
from scheduling.packages.store import store
from scheduling.packages.uploads import sweep_drafts
from scheduling.policy import cell_settings

# An archive without a row is deleted after this time, because its upload may not be finished.
ORPHAN_S = 3600.0
SWEPT_AT_ONCE = 200
LOOKED_AT = 5_000
_SWEPT_AFTER_DELETION = dt.timedelta(days=7)


def cells_to_sweep(*, now: dt.datetime) -> list[Cell]:
    """Return the cells whose packages have to be swept: all operated cells, and the deleted cells that still have
    packages, or were deleted in the last seven days.
    """
    recent = Q(deleted_at=None) | Q(deleted_at__gt=now - _SWEPT_AFTER_DELETION)
    left = Exists(Package.objects.filter(cell=OuterRef("pk")))
    return list(Cell.with_history.filter(recent | Q(left)).order_by("id"))


def packages_sweep(cell: Cell, *, now: dt.datetime | None = None, at_once: int = SWEPT_AT_ONCE) -> int:
    """Delete packages that are untagged, that no live job may run, and that are older than the cell's
    `package_keep_days`; of a deleted cell, all packages.

    Then delete from the store the archives that have no row in the database. Return the number of deleted archives.
    Deletes at most `at_once` packages and `at_once` archives. Takes the exclusive lock of the cell's store. Raises
    `StoreAway` if the store cannot be reached.
    """
    now = now or timezone.now()
    _forget_unused(cell, now, at_once)
    held, folder = store(), cell.recorded_name
    owners = Cell.objects.filter(Q(pk=cell.pk) | Q(name=folder))  # a new cell may have the name of a deleted one
    sweep_drafts(held)
    gone = 0
    suspects = [blob.digest for blob in held.listing(folder) if blob.age_s > ORPHAN_S]
    for first in range(0, len(suspects), 1000):
        part = suspects[first : first + 1000]
        with transaction.atomic():
            lock_store(cell, exclusive=True)
            named = set(Package.objects.filter(cell__in=owners, digest__in=part).values_list("digest", flat=True))
            for digest in [digest for digest in part if digest not in named][: at_once - gone]:
                held.delete(folder, digest)
                gone += 1
        if gone >= at_once:
            break
    return gone


def _forget_unused(cell: Cell, now: dt.datetime, at_once: int) -> None:
    old = now - dt.timedelta(days=cell_settings.load(cell.settings).package_keep_days)
    unused = Q(~Exists(PackageTag.objects.filter(package=OuterRef("pk"))), uploaded_at__lt=old)
    if cell.deleted_at is not None:
        unused = Q()
    with records.write(system("packages")) as entry:
        Cell.objects.select_for_update().get(pk=cell.pk)
        old_ones = Package.objects.select_related("tenant").filter(unused, cell=cell)
        rows = list(old_ones.order_by("uploaded_at")[:LOOKED_AT])
        used = in_use(cell.pk, {row.digest for row in rows})
        gone = [row for row in rows if (row.tenant_id, row.digest) not in used][:at_once]
        Package.objects.filter(pk__in=[row.pk for row in gone]).delete()
        for row in gone:
            entry.append(
                "package.expired", tenant=row.tenant.name, cell=cell.recorded_name, name=row.name, digest=row.digest
            )
