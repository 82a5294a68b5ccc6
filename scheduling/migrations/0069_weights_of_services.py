"""The weights of the tracks of a service, and its switch from one track to another."""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
from django.db import migrations, models

NAME = django.core.validators.RegexValidator(
    "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z",
    "Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.",
)


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0068_config_files"),
    ]

    operations = [
        migrations.CreateModel(
            name="ServiceWeighting",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("service", quota.models.fields.DnsLabelField(max_length=63, validators=[NAME], verbose_name="service")),
                ("weights", models.JSONField(blank=True, default=dict, verbose_name="weights")),
                ("revision", models.BigIntegerField(default=0, verbose_name="revision")),
                ("switch", models.JSONField(blank=True, null=True, verbose_name="switch")),
                ("by", models.CharField(blank=True, default="", max_length=200, verbose_name="switch begun by")),
                ("due_at", models.DateTimeField(blank=True, null=True, verbose_name="next step")),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="service_weightings",
                        to="scheduling.cell",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="service_weightings",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "weights of a service",
                "verbose_name_plural": "weights of services",
            },
        ),
        migrations.AddConstraint(
            model_name="serviceweighting",
            constraint=models.UniqueConstraint(
                fields=("cell", "tenant", "service"), name="one_weighting_per_service"
            ),
        ),
        migrations.AddIndex(
            model_name="serviceweighting",
            index=models.Index(
                condition=models.Q(("due_at__isnull", False)), fields=["cell"], name="switches_in_progress"
            ),
        ),
    ]
