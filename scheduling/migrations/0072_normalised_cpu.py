"""The CPU factor of machines, and their CPU before the factor."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0071_folders_and_dispatch_tokens")]

    operations = [
        migrations.AddField(
            model_name="machine",
            name="cpu_factor",
            field=models.PositiveIntegerField(db_default=1000, default=1000, verbose_name="CPU factor in thousandths"),
        ),
        migrations.AddField(
            model_name="machine",
            name="machine_cpu",
            field=models.BigIntegerField(blank=True, null=True, verbose_name="CPU in milli-cores of the machine"),
        ),
        migrations.AddConstraint(
            model_name="machine",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(cpu_factor=1000, machine_cpu__isnull=True),
                    models.Q(models.Q(cpu_factor=1000, _negated=True), machine_cpu__isnull=False),
                    _connector="OR",
                ),
                name="machine_cpu_with_factor",
            ),
        ),
    ]
