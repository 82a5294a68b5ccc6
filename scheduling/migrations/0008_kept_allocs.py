"""What allocs left on machines is kept for their log savers."""

import django.db.models.deletion
import quota.models.fields
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0007_gangs_are_found_quickly'),
    ]

    operations = [
        migrations.AddField(
            model_name='machine',
            name='kept',
            field=quota.models.fields.VectorField(blank=True, db_default=[], default=list, size=None, verbose_name='used by files of ended allocs'),
        ),
        migrations.CreateModel(
            name='KeptAlloc',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('job_id', models.BigIntegerField()),
                ('index', models.PositiveIntegerField()),
                ('incarnation', models.PositiveIntegerField()),
                ('key', models.CharField(max_length=80)),
                ('name', models.CharField(max_length=300, verbose_name='alloc')),
                ('limit', quota.models.fields.VectorField(size=None, verbose_name='limit of the alloc')),
                ('hold', quota.models.fields.VectorField(size=None, verbose_name='capacity in use')),
                ('savers', models.JSONField(default=list, verbose_name='tasks that save the logs')),
                ('waits', models.JSONField(default=list)),
                ('since', models.DateTimeField(verbose_name='kept since')),
                ('until', models.DateTimeField(verbose_name='kept until')),
                ('released', models.BooleanField(default=False, verbose_name='files no longer needed')),
                ('machine', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='kept_allocs', to='scheduling.machine')),
            ],
            options={
                'verbose_name': 'ended alloc with kept files',
                'verbose_name_plural': 'ended allocs with kept files',
                'ordering': ['machine', 'since'],
                'constraints': [models.UniqueConstraint(fields=('machine', 'key'), name='one_kept_alloc')],
            },
        ),
    ]
