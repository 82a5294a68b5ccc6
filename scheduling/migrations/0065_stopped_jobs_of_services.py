"""Jobs that a stop of their service has ended, and that its start submits again."""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
from django.db import migrations, models

NAME = django.core.validators.RegexValidator(
    "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z",
    "Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.",
)


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0064_maintenance_windows")]

    operations = [
        migrations.CreateModel(
            name="StoppedJob",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="stopped",
                        serialize=False,
                        to="scheduling.job",
                    ),
                ),
                ("service", quota.models.fields.DnsLabelField(max_length=63, validators=[NAME], verbose_name="service")),
                ("version", models.PositiveIntegerField(verbose_name="version of the spec")),
                ("seen", models.PositiveIntegerField(verbose_name="version at the stop")),
                ("at", models.DateTimeField(verbose_name="stopped")),
                ("by", models.CharField(max_length=200, verbose_name="stopped by")),
            ],
            options={
                "verbose_name": "stopped job of a service",
                "verbose_name_plural": "stopped jobs of services",
            },
        ),
    ]
