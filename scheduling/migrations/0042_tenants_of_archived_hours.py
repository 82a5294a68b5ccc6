"""The manifest of the archive states the tenants in a file of metered hours, so that reports open fewer files."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0041_masters_are_processes")]

    operations = [
        migrations.AddField(
            model_name="archivefile",
            name="tenant_first",
            field=models.BigIntegerField(blank=True, null=True, verbose_name="first tenant"),
        ),
        migrations.AddField(
            model_name="archivefile",
            name="tenant_last",
            field=models.BigIntegerField(blank=True, null=True, verbose_name="last tenant"),
        ),
    ]
