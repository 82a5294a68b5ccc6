"""How far broken promises of cells were reported, and the evictions of the last 30 days for which a cell answers."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0069_weights_of_services'),
    ]

    operations = [
        migrations.CreateModel(
            name='PromiseReader',
            fields=[
                ('cell', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='promise_reader', serialize=False, to='scheduling.cell')),
                ('revision', models.BigIntegerField(default=0)),
                ('looked_at', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name': 'how far broken promises are reported',
                'verbose_name_plural': 'how far broken promises are reported',
            },
        ),
        migrations.CreateModel(
            name='PromisedEviction',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision', models.BigIntegerField()),
                ('seq', models.IntegerField()),
                ('job_uid', models.UUIDField(verbose_name='job UID')),
                ('index', models.PositiveIntegerField(verbose_name='task index')),
                ('at', models.DateTimeField(verbose_name='time')),
                ('cause', models.CharField(max_length=32, verbose_name='cause')),
                ('cell', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.cell')),
            ],
            options={
                'verbose_name': 'eviction that counts for the promise',
                'verbose_name_plural': 'evictions that count for the promise',
                'indexes': [models.Index(fields=['job_uid', 'index', 'at'], name='promised_eviction_by_task'), models.Index(fields=['cell', 'at'], name='promised_eviction_by_time')],
                'constraints': [models.UniqueConstraint(fields=('cell', 'revision', 'seq'), name='one_row_per_eviction')],
            },
        ),
    ]
