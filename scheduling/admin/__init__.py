"""The SRE console's pages of sites, clusters, cells, machines, jobs, tasks and the journal. `portal.admin_site`
registers them.
"""

from __future__ import annotations

from django.db.models import Model
from unfold.admin import ModelAdmin

from scheduling import models
from scheduling.admin.archive import ArchiveFileAdmin
from scheduling.admin.cells import CellAdmin, JoinTokenAdmin, LeaseAdmin
from scheduling.admin.drains_and_brakes import BrakeAdmin, DrainAdmin, RepackingAdmin
from scheduling.admin.events import EventAdmin
from scheduling.admin.jobs import JobAdmin, SpecAdmin, UpdateAdmin, VerdictAdmin
from scheduling.admin.kept_allocs import KeptAllocAdmin
from scheduling.admin.machines import MachineAdmin
from scheduling.admin.maintenance.windows import MaintenanceWindowAdmin
from scheduling.admin.packages import PackageAdmin, PackageTagAdmin
from scheduling.admin.pools.pools import PoolAdmin
from scheduling.admin.shells import ShellAdmin
from scheduling.admin.sites import ClusterAdmin, SiteAdmin
from scheduling.admin.tasks import CrashedPairAdmin, DepartureAdmin, NoticeCountAdmin, TaskAdmin

PAGES: dict[type[Model], type[ModelAdmin]] = {
    models.Site: SiteAdmin,
    models.Cluster: ClusterAdmin,
    models.Cell: CellAdmin,
    models.Machine: MachineAdmin,
    models.Drain: DrainAdmin,
    models.MaintenanceWindow: MaintenanceWindowAdmin,
    models.Pool: PoolAdmin,
    models.Repacking: RepackingAdmin,
    models.Brake: BrakeAdmin,
    models.KeptAlloc: KeptAllocAdmin,
    models.NoticeCount: NoticeCountAdmin,
    models.Job: JobAdmin,
    models.Task: TaskAdmin,
    models.Event: EventAdmin,
    models.ArchiveFile: ArchiveFileAdmin,
    models.Update: UpdateAdmin,
    models.JobSpec: SpecAdmin,
    models.Package: PackageAdmin,
    models.PackageTag: PackageTagAdmin,
    models.PendingVerdict: VerdictAdmin,
    models.Departure: DepartureAdmin,
    models.CrashedPair: CrashedPairAdmin,
    models.Lease: LeaseAdmin,
    models.ShellSession: ShellAdmin,
    models.JoinToken: JoinTokenAdmin,
}
