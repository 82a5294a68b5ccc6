"""The package store cleared up: what nobody names any more goes, first rows, then bytes. In small parts, by Celery."""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from quota import records
from quota.vocabulary.permissions import system
from scheduling.models import Cell, Package, PackageTag
from scheduling.packages.choice import store
from scheduling.packages.packages import lock_store
from scheduling.packages.uploads import sweep_drafts
from scheduling.packages.users import in_use
from scheduling.policy import cell_settings

# What no row names is removed when it has been in the store for this long: its upload may be under way.
ORPHAN_S = 3600.0
SWEPT_AT_ONCE = 200
LOOKED_AT = 5_000


def packages_sweep(cell: Cell, *, now: dt.datetime | None = None, at_once: int = SWEPT_AT_ONCE) -> int:
    """Let go of archives without a tag that no live job may run and that are old (the cell's `package_keep_days`),
    and of bytes that no row names. At most `at_once` of each; returns how many archives went from the store.

    Locks: uploads and the sweep of a cell, exclusively. Raises `StoreAway`.
    """
    now = now or timezone.now()
    _forget_untagged(cell, now, at_once)
    held = store()
    sweep_drafts(held)
    gone = 0
    suspects = [blob.digest for blob in held.listing(cell.name) if blob.age_s > ORPHAN_S]
    for first in range(0, len(suspects), 1000):
        part = suspects[first : first + 1000]
        with transaction.atomic():
            lock_store(cell, exclusive=True)
            named = set(Package.objects.filter(cell=cell, digest__in=part).values_list("digest", flat=True))
            for digest in [digest for digest in part if digest not in named][: at_once - gone]:
                held.delete(cell.name, digest)
                gone += 1
        if gone >= at_once:
            break
    return gone


def _forget_untagged(cell: Cell, now: dt.datetime, at_once: int) -> None:
    old = now - dt.timedelta(days=cell_settings.load(cell.settings).package_keep_days)
    untagged = ~Exists(PackageTag.objects.filter(package=OuterRef("pk")))
    with records.write(system("packages")) as entry:
        Cell.objects.select_for_update().get(pk=cell.pk)
        old_ones = Package.objects.select_related("tenant").filter(untagged, cell=cell, uploaded_at__lt=old)
        rows = list(old_ones.order_by("uploaded_at")[:LOOKED_AT])
        used = in_use(cell.pk, {row.digest for row in rows})
        gone = [row for row in rows if (row.tenant_id, row.digest) not in used][:at_once]
        Package.objects.filter(pk__in=[row.pk for row in gone]).delete()
        for row in gone:
            entry.append("package.expired", tenant=row.tenant.name, cell=cell.name, name=row.name, digest=row.digest)
