"""The usage of tasks in windows of five minutes (`scheduling.usage.usage_windows`); its metering for `quota`: which
hours were reported, and the sums of reservations in hours that are not reported yet; and what the autoscaler stores.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from quota.models.fields import VectorField
from scheduling.models.cells import Cell
from scheduling.models.jobs import Job


class InstanceUsage(models.Model):
    """The usage of one incarnation in one window of about five minutes. The table is partitioned by the hour of
    `start_time`.

    Table, columns and units are those of `instance_usage` in Google's trace of 2019 where possible: CPU in cores,
    memory in bytes. Ids are plain numbers, because the usage stays when a task is deleted. `sample_rate`: samples per
    second.
    """

    pk = models.CompositePrimaryKey("collection_id", "instance_index", "start_time", "incarnation")
    collection_id = models.BigIntegerField()  # the job
    instance_index = models.IntegerField()
    start_time = models.DateTimeField()
    end_time = models.DateTimeField()
    incarnation = models.IntegerField()
    cell_id = models.BigIntegerField()
    machine_id = models.BigIntegerField()
    average_usage_cpus = models.FloatField()
    average_usage_memory = models.BigIntegerField()
    maximum_usage_cpus = models.FloatField()
    maximum_usage_memory = models.BigIntegerField()
    random_sample_usage_cpus = models.FloatField()
    assigned_cpus = models.FloatField()
    assigned_memory = models.BigIntegerField()
    page_cache_memory = models.BigIntegerField()
    sample_rate = models.FloatField()
    cpu_usage_distribution = ArrayField(models.FloatField())
    tail_cpu_usage_distribution = ArrayField(models.FloatField())
    throttled_cpus = models.FloatField()
    disk_bytes = models.BigIntegerField()
    read_bytes_s = models.BigIntegerField()
    written_bytes_s = models.BigIntegerField()
    received_bytes_s = models.BigIntegerField()
    sent_bytes_s = models.BigIntegerField()
    threads = models.IntegerField()
    oom_kills = models.IntegerField()

    class Meta:
        db_table = "scheduling_instance_usage"
        ordering = ["start_time"]

    def __str__(self) -> str:
        return f"{self.collection_id}/{self.instance_index} at {self.start_time:%F %T}"


class MeteringHour(models.Model):
    """One hour of one cell. `looks`: how many samples of reservations were taken in the hour. `metered_at`: when the
    hour's usage was reported to `quota`.
    """

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
    """The reservations of a job's running tasks in one hour, summed over all samples. The row is deleted when the hour
    is reported.

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


class JobAutoscaling(models.Model):
    """What the autoscaler knows about a live job with `autoscale` in its spec (`scheduling.autoscaling`). A lost row is
    made again, and then usage is measured from scratch.

    `version`: the version of the spec from which `rules`, `vertical`, `horizontal` (the modes), `tasks`, `cpu` and
    `ram` (the limits of a task) come; 0: not read yet. `own_tasks`, `own_cpu`, `own_ram`: the values that a user set
    last. Only the update of a user changes them. `tasks_held_until`, `limits_held_until`: the autoscaler does not
    change the number of tasks or the limits before this time, because they were changed by an update that is not its.

    `cpu_weights`, `ram_weights`: decaying histograms of usage as `scheduling.autoscaling.rules.histograms` stores them,
    at the time `decayed_at`; windows that ended before it are in them. `first_at`: since when there is usage.
    `wanted_cpu`, `wanted_ram`: the recommended limits. `wanted_since`: since when they differ from the limits.
    `oom_at`: when it was seen last that a task ran out of memory. `oom_sum`: the sum of the times of such ends, by the
    clocks of machines; it grows with each further one. `limits_at`: the last change of the limits, by anybody.

    `needed`: the number of tasks that the smoothed load needs, at the time `needed_at`. `wanted_tasks`: the recommended
    number. `low_since`, `low_most`: since when fewer tasks are enough, and the largest number that was needed since.
    `scheduled`: the number by schedule, which changes at `schedule_at`. `tasks_at`: the last change of the number.

    `limited_code`, `limited_detail`: why the last change of the limits was rejected, since `limited_since`. `retry_at`:
    when the autoscaler tries again. `limited_of`: the resources whose rise was rejected, such as `cpu,ram`.
    `tasks_limited_code` and so on: the same for the number of tasks. See `scheduling.autoscaling.rejections`.
    """

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="autoscaling")
    version = models.PositiveIntegerField(default=0)
    rules = models.JSONField(default=dict)
    vertical = models.CharField(max_length=16, blank=True)
    tasks = models.PositiveIntegerField(default=0)
    cpu = models.BigIntegerField(default=0)
    ram = models.BigIntegerField(default=0)
    own_tasks = models.PositiveIntegerField(default=0)
    own_cpu = models.BigIntegerField(default=0)
    own_ram = models.BigIntegerField(default=0)
    tasks_held_until = models.DateTimeField(null=True)
    limits_held_until = models.DateTimeField(null=True)
    cpu_weights = models.BinaryField(default=b"")
    ram_weights = models.BinaryField(default=b"")
    decayed_at = models.DateTimeField(null=True)
    first_at = models.DateTimeField(null=True)
    wanted_cpu = models.BigIntegerField(null=True)
    wanted_ram = models.BigIntegerField(null=True)
    wanted_since = models.DateTimeField(null=True)
    oom_at = models.DateTimeField(null=True)
    oom_sum = models.FloatField(default=0.0)
    limits_at = models.DateTimeField(null=True)
    limited_code = models.CharField(max_length=64, blank=True)
    limited_detail = models.CharField(max_length=500, blank=True)
    limited_since = models.DateTimeField(null=True)
    retry_at = models.DateTimeField(null=True)
    limited_of = models.CharField(max_length=16, blank=True, default="", db_default="")
    tasks_limited_code = models.CharField(max_length=64, blank=True, default="", db_default="")
    tasks_limited_detail = models.CharField(max_length=500, blank=True, default="", db_default="")
    tasks_limited_since = models.DateTimeField(null=True)
    tasks_retry_at = models.DateTimeField(null=True)
    horizontal = models.CharField(max_length=16, blank=True, default="", db_default="")
    needed = models.FloatField(null=True)
    needed_at = models.DateTimeField(null=True)
    wanted_tasks = models.PositiveIntegerField(null=True)
    low_since = models.DateTimeField(null=True)
    low_most = models.PositiveIntegerField(null=True)
    scheduled = models.PositiveIntegerField(null=True)
    schedule_at = models.DateTimeField(null=True)
    tasks_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"autoscaling of job {self.job_id}"


class CellAutoscaling(models.Model):
    """The progress of the autoscaler in a cell. `folded_until`: the end of the newest windows that the last turn for
    limits could read; the rows of the jobs store which ones it has read. `turned_at`: when the last turn began.
    `claimed_until`: until then, its process has the turn, unless it ends before. `finished_at`: when the last turn
    without an error ended.
    """

    cell = models.OneToOneField(Cell, models.CASCADE, primary_key=True, related_name="autoscaling")
    folded_until = models.DateTimeField(null=True)
    turned_at = models.DateTimeField(null=True)
    claimed_until = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"autoscaling of cell {self.cell_id}"
