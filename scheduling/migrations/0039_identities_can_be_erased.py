"""Erasures of people and tenants from the history. The trigger of the journal lets an erasure replace names."""

import django.db.models.deletion
from django.db import migrations, models

# An erasure replaces names in `actor` and `data`, and nothing else. No other statement changes an event.
ERASABLE = """
CREATE OR REPLACE FUNCTION scheduling_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND current_setting('scheduling.erasing', true) = 'on' THEN
        OLD.actor := NEW.actor;
        OLD.data := NEW.data;
        IF NEW IS NOT DISTINCT FROM OLD THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'the journal is append-only: % of revision % refused', TG_OP, OLD.revision;
END $$;
"""
APPEND_ONLY = """
CREATE OR REPLACE FUNCTION scheduling_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the journal is append-only: % of revision % refused', TG_OP, OLD.revision;
END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('quota', '0016_expired_quota_by_its_name'),
        ('scheduling', '0038_ended_jobs_are_archived'),
    ]

    operations = [
        migrations.AddField(
            model_name='archivefile',
            name='generation',
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name='number of rewrites'),
        ),
        migrations.CreateModel(
            name='Erasure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('person', 'person'), ('tenant', 'tenant')], max_length=16, verbose_name='kind of name')),
                ('name', models.CharField(blank=True, max_length=200, verbose_name='name')),
                ('pseudonym', models.CharField(max_length=63, unique=True, verbose_name='pseudonym')),
                ('started_at', models.DateTimeField(verbose_name='started')),
                ('ended_at', models.DateTimeField(blank=True, null=True, verbose_name='ended')),
                ('tenant', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='erasure', to='quota.tenant')),
            ],
            options={
                'verbose_name': 'erasure of a name',
                'verbose_name_plural': 'erasures of names',
                'ordering': ['id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('name', ''), _negated=True), fields=('kind', 'name'), name='one_open_erasure_per_name'), models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('name', '')), models.Q(models.Q(('name', ''), _negated=True), ('ended_at__isnull', True)), _connector='OR'), name='an_ended_erasure_forgets_the_name')],
            },
        ),
        migrations.RunSQL(ERASABLE, APPEND_ONLY),
    ]
