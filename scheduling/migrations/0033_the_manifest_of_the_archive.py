"""The manifest of the archive: which rows are in which file. Cells know which events are only there."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0032_the_journal_has_partitions_per_cell'),
    ]

    operations = [
        migrations.AddField(
            model_name='cell',
            name='journal_floor',
            field=models.BigIntegerField(default=0, verbose_name='archived up to revision'),
        ),
        migrations.CreateModel(
            name='ArchiveFile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('table', models.CharField(max_length=63, verbose_name='table')),
                ('day', models.DateField(verbose_name='day')),
                ('first', models.BigIntegerField(verbose_name='first revision, time or id')),
                ('last', models.BigIntegerField(verbose_name='last revision, time or id')),
                ('rows', models.BigIntegerField(verbose_name='number of rows')),
                ('bytes', models.BigIntegerField(verbose_name='size in bytes')),
                ('sha256', models.CharField(max_length=64, verbose_name='SHA-256')),
                ('content', models.CharField(max_length=64, verbose_name='checksum of the rows')),
                ('schema_version', models.PositiveSmallIntegerField(verbose_name='version of the schema')),
                ('state', models.CharField(choices=[('stored', 'also in PostgreSQL'), ('sole', 'only in the archive'), ('deleted', 'deleted')], default='stored', max_length=16, verbose_name='state')),
                ('written_at', models.DateTimeField(verbose_name='written at')),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='archive_files', to='scheduling.cell')),
            ],
            options={
                'verbose_name': 'file of the archive',
                'verbose_name_plural': 'files of the archive',
                'ordering': ['cell', 'table', 'first'],
                'constraints': [models.UniqueConstraint(fields=('cell', 'table', 'first'), name='archived_once'), models.CheckConstraint(condition=models.Q(('last__gte', models.F('first'))), name='archive_range_is_forward')],
            },
        ),
    ]
