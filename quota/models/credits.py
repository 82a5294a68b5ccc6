"""Tables of credits: what a tenant gets back because a cell broke its promise, and the evidence."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, WideVectorField
from quota.models.ledger import Posting
from quota.models.quota import PriorityBand
from quota.models.tenants import Tenant

PENDING, EVICTIONS, CORRECTION = "pending", "evictions", "correction"
BREACHES = [(PENDING, _("pending beyond the promise")), (EVICTIONS, _("evicted beyond the promise"))]
KINDS = [*BREACHES, (CORRECTION, _("correction"))]


class PromiseBreach(models.Model):
    """In one hour (UTC), tasks of a job were pending or evicted beyond the promise of their cell, as reported by
    scheduling.

    `kind`: pending or evictions. `cause`: the code of the verdict, or the cause of the evictions. `terms`: the promise
    in force (`quota.billing.credits.breach_rows`). `tasks`: the largest number of tasks at once, or of evicted
    tasks. `task_seconds`: how long the tasks were pending beyond the promise, together. `affected`: the amounts that
    are credited, in unit·seconds. `evidence`: the first tasks, with times and events.

    `settled_at`: when the breach was credited, or it was found that the job was charged nothing. Such a row never
    changes. It has no evidence, because the line of credit has it, and it is deleted when it cannot lower a later
    credit of the month any more (`quota.retention`). `credited`: the credited micro-credits.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, db_index=False, related_name="promise_breaches")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.PROTECT, db_index=False, related_name="+")
    job_uid = models.CharField(_("job UID"), max_length=32)
    job = models.CharField(_("job"), max_length=63)
    kind = models.CharField(_("kind"), max_length=16, choices=BREACHES)
    cause = models.CharField(_("cause"), max_length=32)
    hour = models.DateTimeField(_("hour"))
    terms = models.JSONField(_("promise"))
    tasks = models.PositiveIntegerField(_("tasks"), default=0)
    task_seconds = models.FloatField(_("seconds pending, all tasks"), default=0.0)
    evictions = models.PositiveIntegerField(_("evictions"), default=0)
    affected = WideVectorField(_("affected resources"))
    evidence = models.JSONField(_("evidence"), default=list)
    credited = models.BigIntegerField(_("credited"), default=0)
    settled_at = models.DateTimeField(_("settled"), null=True, blank=True)

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["tenant", "hour"], name="breach_by_tenant"),
            models.Index(fields=["tenant", "hour"], name="breach_to_settle", condition=Q(settled_at=None)),
            models.Index(fields=["settled_at"], name="breach_settled", condition=Q(settled_at__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["cell", "hour", "job_uid", "band", "kind", "cause", "terms"],
                condition=Q(settled_at=None),
                name="one_open_breach_per_hour",
            ),
            models.CheckConstraint(condition=Q(credited__gte=0), name="breach_credit_never_negative"),
        ]
        verbose_name = _("broken promise")
        verbose_name_plural = _("broken promises")

    def __str__(self) -> str:
        return f"{self.job}: {self.kind} at {self.hour:%F %H}h"


class Credit(models.Model):
    """A line of credit for one job: what its tenant gets back in a month for one kind of breach, or a correction of
    such a line. Append-only.

    `month`: the month of the invoice. `amount`: micro-credits that the tenant gets; negative if a correction takes them
    back. `posting`: the movement of money, which the lines of one tenant, cell and month share. `evidence`: one entry
    per hour and cause. It is kept for ever, also after the journal is archived. `corrects`, `reason`: of a correction.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, db_index=False, related_name="credits")
    cell = DnsLabelField(_("cell"))
    month = models.DateField(_("month"))  # its first day
    job_uid = models.CharField(_("job UID"), max_length=32)
    job = models.CharField(_("job"), max_length=63)
    kind = models.CharField(_("kind"), max_length=16, choices=KINDS)
    amount = models.BigIntegerField(_("credited"))
    posting = models.ForeignKey(Posting, models.PROTECT, related_name="credits")
    corrects = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="corrections")
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    actor = models.CharField(_("actor"), max_length=200)
    since = models.DateTimeField(_("first hour begins"))
    until = models.DateTimeField(_("last hour ends"))
    evidence = models.JSONField(_("evidence"), default=list)
    created_at = models.DateTimeField(_("credited at"))

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["month", "cell"], name="credit_by_month_and_cell"),
            models.Index(fields=["tenant", "-id"], name="credit_by_tenant"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "cell", "month", "job_uid", "kind"],
                condition=Q(corrects=None),
                name="one_credit_per_job_and_month",
            ),
            models.CheckConstraint(condition=~Q(amount=0), name="credit_never_zero"),
            models.CheckConstraint(
                condition=(Q(corrects=None) & ~Q(kind=CORRECTION)) | Q(corrects__isnull=False, kind=CORRECTION),
                name="correction_of_a_credit",
            ),
        ]
        verbose_name = _("credit")
        verbose_name_plural = _("credits")

    def __str__(self) -> str:
        return f"{self.kind} of {self.job} in {self.month:%Y-%m}"
