"""Metering: the hours, with the time when their usage was reported to `quota`, and the amounts that jobs reserved in
the hours that are not reported yet.
"""

from __future__ import annotations

from django.db import models

from quota.models.fields import VectorField
from scheduling.models.cells import Cell


class MeteringHour(models.Model):
    """One hour of one cell. `looks`: the number of samples. `metered_at`: when its usage was reported to `quota`."""

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="metering_hours")
    hour = models.DateTimeField()
    looks = models.PositiveIntegerField(default=0)
    looked_at = models.DateTimeField(null=True)
    metered_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["cell", "hour"]
        constraints = [models.UniqueConstraint(fields=["cell", "hour"], name="one_metering_per_cell_hour")]

    def __str__(self) -> str:
        return f"{self.cell} at {self.hour:%F %H}h"


class ReservedInHour(models.Model):
    """The sum of the reservations of a job's running tasks over all samples of an hour that is not reported yet.

    `job_id` is a plain number, because the row may exist longer than the job.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="+", db_index=False)
    hour = models.DateTimeField()
    job_id = models.BigIntegerField()
    reserved = VectorField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cell", "hour", "job_id"], name="one_reserved_per_job_hour")]

    def __str__(self) -> str:
        return f"{self.job_id} at {self.hour:%F %H}h"
