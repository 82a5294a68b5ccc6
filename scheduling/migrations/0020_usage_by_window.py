"""Windows of usage: partitioned by the hour they begin in."""

import django.contrib.postgres.fields
from django.db import migrations, models


CREATE = """
CREATE TABLE scheduling_instance_usage (
    collection_id bigint NOT NULL,
    instance_index integer NOT NULL,
    start_time timestamptz NOT NULL,
    end_time timestamptz NOT NULL,
    incarnation integer NOT NULL,
    cell_id bigint NOT NULL,
    machine_id bigint NOT NULL,
    average_usage_cpus real NOT NULL,
    average_usage_memory bigint NOT NULL,
    maximum_usage_cpus real NOT NULL,
    maximum_usage_memory bigint NOT NULL,
    random_sample_usage_cpus real NOT NULL,
    assigned_cpus real NOT NULL,
    assigned_memory bigint NOT NULL,
    page_cache_memory bigint NOT NULL,
    sample_rate real NOT NULL,
    cpu_usage_distribution real[] NOT NULL,
    tail_cpu_usage_distribution real[] NOT NULL,
    throttled_cpus real NOT NULL,
    disk_bytes bigint NOT NULL,
    read_bytes_s bigint NOT NULL,
    written_bytes_s bigint NOT NULL,
    received_bytes_s bigint NOT NULL,
    sent_bytes_s bigint NOT NULL,
    threads integer NOT NULL,
    oom_kills integer NOT NULL,
    PRIMARY KEY (collection_id, instance_index, start_time, incarnation)
) PARTITION BY RANGE (start_time);
"""


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0019_addresses_of_tasks'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(CREATE, "DROP TABLE scheduling_instance_usage")],
            state_operations=[
                migrations.CreateModel(
                    name='InstanceUsage',
                    fields=[
                        ('pk', models.CompositePrimaryKey('collection_id', 'instance_index', 'start_time', 'incarnation', blank=True, editable=False, primary_key=True, serialize=False)),
                        ('collection_id', models.BigIntegerField()),
                        ('instance_index', models.IntegerField()),
                        ('start_time', models.DateTimeField()),
                        ('end_time', models.DateTimeField()),
                        ('incarnation', models.IntegerField()),
                        ('cell_id', models.BigIntegerField()),
                        ('machine_id', models.BigIntegerField()),
                        ('average_usage_cpus', models.FloatField()),
                        ('average_usage_memory', models.BigIntegerField()),
                        ('maximum_usage_cpus', models.FloatField()),
                        ('maximum_usage_memory', models.BigIntegerField()),
                        ('random_sample_usage_cpus', models.FloatField()),
                        ('assigned_cpus', models.FloatField()),
                        ('assigned_memory', models.BigIntegerField()),
                        ('page_cache_memory', models.BigIntegerField()),
                        ('sample_rate', models.FloatField()),
                        ('cpu_usage_distribution', django.contrib.postgres.fields.ArrayField(base_field=models.FloatField(), size=None)),
                        ('tail_cpu_usage_distribution', django.contrib.postgres.fields.ArrayField(base_field=models.FloatField(), size=None)),
                        ('throttled_cpus', models.FloatField()),
                        ('disk_bytes', models.BigIntegerField()),
                        ('read_bytes_s', models.BigIntegerField()),
                        ('written_bytes_s', models.BigIntegerField()),
                        ('received_bytes_s', models.BigIntegerField()),
                        ('sent_bytes_s', models.BigIntegerField()),
                        ('threads', models.IntegerField()),
                        ('oom_kills', models.IntegerField()),
                    ],
                    options={
                        'db_table': 'scheduling_instance_usage',
                        'ordering': ['start_time'],
                    },
                ),
            ],
        ),
    ]
