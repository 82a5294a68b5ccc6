"""Sites, clusters and cells, and what belongs to a whole cell: leases, brakes and join tokens."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField
from scheduling.policy.brake_rules import BrakeKind, BrakeState


class Site(models.Model):
    """A collection of datacenter buildings at one place (§2.2). `location`: where the buildings are, as text for
    people, such as an address.
    """

    name = DnsLabelField(_("name"), unique=True)
    description = models.CharField(_("description"), max_length=200, blank=True, default="")
    location = models.CharField(_("location"), max_length=200, blank=True, default="")
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("site")
        verbose_name_plural = _("sites")

    def __str__(self) -> str:
        return str(self.name)


class Cluster(models.Model):
    """The machines that one network fabric connects, in one datacenter building (§2.2). A cluster usually has one large
    cell, and may have smaller ones for tests. `site`: None as long as nobody has recorded where the cluster is.
    """

    name = DnsLabelField(_("name"), unique=True)
    description = models.CharField(_("description"), max_length=200, blank=True, default="")
    site = models.ForeignKey(
        Site, models.PROTECT, null=True, blank=True, related_name="clusters", verbose_name=_("site")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("cluster")
        verbose_name_plural = _("clusters")

    def __str__(self) -> str:
        return str(self.name)

    @property
    def site_name(self) -> str:
        """Return the name of the site, or "" if the cluster has none."""
        return str(self.site or "")


class CellsWithHistory(models.Manager["Cell"]):
    """The cells whose history is archived and metered: all cells except study cells. Deleted cells are among them."""

    def get_queryset(self) -> models.QuerySet[Cell]:
        return super().get_queryset().filter(study_of__isnull=True)


class OperatedCells(models.Manager["Cell"]):
    """The cells with machines that run tasks: all cells except study cells and deleted cells."""

    def get_queryset(self) -> models.QuerySet[Cell]:
        return super().get_queryset().filter(study_of__isnull=True, deleted_at__isnull=True)


class Cell(models.Model):
    """A set of machines managed as a unit (§2.2). `cluster`: None as long as nobody has recorded it. The cell's site is
    that of its cluster. `revision`: the number of the newest change in the cell's journal. A transaction locks a cell
    by locking the cell's row in this table. `journal_floor`: events up to this revision may be only in the archive.

    `study_of`: None, or the origin of a *study cell*: a copy of a cell at one moment, which nobody can change
    (`scheduling.history.studies`). No scheduler, Borglet, DNS zone or meter serves a study cell.

    After the database is restored from a backup, or the cell is restored to an earlier moment, `history_id` is new and
    `history_ordinal` is higher. If Borglets then run tasks that this database does not contain, these tasks are
    quarantined and not killed. `earlier_histories`: the ids of histories that ended when the cell was restored in
    place. Their journal and checkpoints continue in the present history.

    `deleted_at`: None, or when an SRE deleted the cell (`scheduling.cells.deletion`). The row of a deleted cell stays,
    so that its history can be read, under another `name`. `deleted_name`: the name that it had before, else empty.
    `own_folder`: the folder of the cell's files, if a deleted cell of the same name has files too, else empty.
    """

    name = DnsLabelField(_("name"), unique=True)
    cluster = models.ForeignKey(
        Cluster, models.PROTECT, null=True, blank=True, related_name="cells", verbose_name=_("cluster")
    )
    revision = models.BigIntegerField(_("revision"), default=0)
    journal_floor = models.BigIntegerField(_("archived up to revision"), default=0)
    history_id = models.UUIDField(_("id of the history since the last restore"), default=uuid.uuid4)
    history_ordinal = models.PositiveIntegerField(default=1)
    earlier_histories = ArrayField(models.UUIDField(), default=list, db_default=[], editable=False)
    extra_resources = ArrayField(
        models.CharField(max_length=63), default=list, blank=True, verbose_name=_("other named resources")
    )
    settings = models.JSONField(_("settings"), default=dict, blank=True)
    study_of = models.JSONField(_("original cell, if this cell is a copy"), null=True, default=None, editable=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    deleted_at = models.DateTimeField(_("deleted"), null=True, default=None, editable=False)
    deleted_name = models.CharField(
        _("name before the deletion"), max_length=63, blank=True, default="", db_default="", editable=False
    )
    own_folder = models.CharField(max_length=80, blank=True, default="", db_default="", editable=False)

    objects: ClassVar[models.Manager[Cell]] = models.Manager()
    operated = OperatedCells()
    with_history = CellsWithHistory()

    class Meta:
        ordering = ["name"]
        verbose_name = _("cell")
        verbose_name_plural = _("cells")

    def __str__(self) -> str:
        return str(self.name)

    @property
    def cluster_name(self) -> str:
        """Return the name of the cluster, or "" if the cell has none."""
        return str(self.cluster or "")

    @property
    def site_name(self) -> str:
        """Return the name of the site of the cell's cluster, or "" if it is not recorded."""
        return self.cluster.site_name if self.cluster else ""

    @property
    def histories(self) -> frozenset[str]:
        """Return the ids of the present history and of those that it continues."""
        return frozenset(map(str, (self.history_id, *self.earlier_histories)))

    @property
    def recorded_name(self) -> str:
        """Return the name of the cell in metered hours, orders and the package store. A deletion does not change it."""
        return str(self.deleted_name or self.name)

    @property
    def folder(self) -> str:
        """Return the folder of the cell's archived files and checkpoints in the store. No other cell has it."""
        return str(self.own_folder or self.recorded_name)


class Lease(models.Model):
    """The lease of a cell's scheduler (§3.1). Times are by the database's clock.

    A scheduler that has lost its lease does no harm, because every commit checks its assignments while the cell is
    locked.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="leases")
    scheduler = models.CharField(_("scheduler"), max_length=32, default="default")
    holder = models.CharField(_("holder of the lease"), max_length=200, blank=True)
    epoch = models.BigIntegerField(_("epoch of the lease"), default=0)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cell", "scheduler"], name="one_lease_per_scheduler")]
        verbose_name = _("lease")
        verbose_name_plural = _("leases")

    def __str__(self) -> str:
        return f"{self.cell}/{self.scheduler} by {self.holder or 'nobody'}"


class Standby(models.Model):
    """A process that keeps a warm state of a cell, and takes over when the scheduler's lease ends (§3.1).

    `holder`: the name with which the process takes the lease. `revision`: the newest event in its state. `seen_at`:
    when it last wrote this row, by the database's clock (`scheduling.master.standbys`).
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="standbys")
    scheduler = models.CharField(_("scheduler"), max_length=32)
    holder = models.CharField(_("process"), max_length=200)
    revision = models.BigIntegerField(_("revision of its state"))
    seen_at = models.DateTimeField(_("last seen"))

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cell", "scheduler", "holder"], name="one_row_per_standby")]
        verbose_name = _("standby master")
        verbose_name_plural = _("standby masters")

    def __str__(self) -> str:
        return f"{self.cell}/{self.scheduler} on {self.holder}"


class Brake(models.Model):
    """A limit on how many tasks of a cell may be stopped or moved in a short time (`scheduling.policy.brake_rules`).

    `level`: the tokens in the brake's token bucket at the time `at`. `wanted`: how many tasks the brake kept from being
    stopped when it was last checked. `pulled_at`: when the brake last kept tasks from being stopped. Times are by the
    database's clock.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="brakes")
    kind = models.CharField(_("brake"), max_length=16, choices=[(kind.value, kind.value) for kind in BrakeKind])
    state = models.CharField(
        _("state"),
        max_length=16,
        default=BrakeState.OPEN.value,
        choices=[(state.value, state.value) for state in BrakeState],
    )
    since = models.DateTimeField(_("in this state since"))
    level = models.FloatField(null=True)
    at = models.DateTimeField()
    wanted = models.PositiveIntegerField(_("tasks protected from a stop"), default=0)
    pulled_at = models.DateTimeField(_("time when tasks were last protected from a stop"), null=True)
    until = models.DateTimeField(_("released until"), null=True)
    calm_since = models.DateTimeField(null=True)  # since then, only few machines are missing
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    decided_by = models.CharField(_("SRE who decided"), max_length=200, blank=True)

    class Meta:
        ordering = ["cell", "kind"]
        constraints = [models.UniqueConstraint(fields=["cell", "kind"], name="one_brake_of_a_kind")]
        verbose_name = _("brake")
        verbose_name_plural = _("brakes")

    def __str__(self) -> str:
        return f"{self.cell}/{self.kind}"


class JoinToken(models.Model):
    """A token with which `uses_left` machines can still join a cell. Only a hash of the secret is stored."""

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="join_tokens")
    key = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    uses_left = models.PositiveIntegerField(_("machines that can still join"), default=1)
    created_by = models.CharField(_("created by"), max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        verbose_name = _("join token")
        verbose_name_plural = _("join tokens")

    def __str__(self) -> str:
        return f"{self.key} for {self.cell}"
