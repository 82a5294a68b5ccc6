"""Broken promises of cells, and the credits for them, which never change."""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
from django.db import migrations, models


ADD = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON quota_credit
    FOR EACH ROW EXECUTE FUNCTION quota_never_changed();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('quota', '0020_metered_hours_have_partitions'),
    ]

    operations = [
        migrations.CreateModel(
            name='Credit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('cell', quota.models.fields.DnsLabelField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z', 'Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.')], verbose_name='cell')),
                ('month', models.DateField(verbose_name='month')),
                ('job_uid', models.CharField(max_length=32, verbose_name='job UID')),
                ('job', models.CharField(max_length=63, verbose_name='job')),
                ('kind', models.CharField(choices=[('pending', 'pending beyond the promise'), ('evictions', 'evicted beyond the promise'), ('correction', 'correction')], max_length=16, verbose_name='kind')),
                ('amount', models.BigIntegerField(verbose_name='credited')),
                ('reason', models.CharField(blank=True, max_length=300, verbose_name='reason')),
                ('actor', models.CharField(max_length=200, verbose_name='actor')),
                ('since', models.DateTimeField(verbose_name='first hour begins')),
                ('until', models.DateTimeField(verbose_name='last hour ends')),
                ('evidence', models.JSONField(default=list, verbose_name='evidence')),
                ('created_at', models.DateTimeField(verbose_name='credited at')),
                ('corrects', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='corrections', to='quota.credit')),
                ('posting', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credits', to='quota.posting')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='credits', to='quota.tenant')),
            ],
            options={
                'verbose_name': 'credit',
                'verbose_name_plural': 'credits',
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['month', 'cell'], name='credit_by_month_and_cell'), models.Index(fields=['tenant', '-id'], name='credit_by_tenant')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('corrects', None)), fields=('tenant', 'cell', 'month', 'job_uid', 'kind'), name='one_credit_per_job_and_month'), models.CheckConstraint(condition=models.Q(('amount', 0), _negated=True), name='credit_never_zero'), models.CheckConstraint(condition=models.Q(models.Q(('corrects', None), models.Q(('kind', 'correction'), _negated=True)), models.Q(('corrects__isnull', False), ('kind', 'correction')), _connector='OR'), name='correction_of_a_credit')],
            },
        ),
        migrations.CreateModel(
            name='PromiseBreach',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('cell', quota.models.fields.DnsLabelField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z', 'Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.')], verbose_name='cell')),
                ('job_uid', models.CharField(max_length=32, verbose_name='job UID')),
                ('job', models.CharField(max_length=63, verbose_name='job')),
                ('kind', models.CharField(choices=[('pending', 'pending beyond the promise'), ('evictions', 'evicted beyond the promise')], max_length=16, verbose_name='kind')),
                ('cause', models.CharField(max_length=32, verbose_name='cause')),
                ('hour', models.DateTimeField(verbose_name='hour')),
                ('terms', models.JSONField(verbose_name='promise')),
                ('tasks', models.PositiveIntegerField(default=0, verbose_name='tasks')),
                ('task_seconds', models.FloatField(default=0.0, verbose_name='seconds pending, all tasks')),
                ('evictions', models.PositiveIntegerField(default=0, verbose_name='evictions')),
                ('affected', quota.models.fields.WideVectorField(size=None, verbose_name='affected resources')),
                ('evidence', models.JSONField(default=list, verbose_name='evidence')),
                ('credited', models.BigIntegerField(default=0, verbose_name='credited')),
                ('settled_at', models.DateTimeField(blank=True, null=True, verbose_name='settled')),
                ('band', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='quota.priorityband')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='promise_breaches', to='quota.tenant')),
            ],
            options={
                'verbose_name': 'broken promise',
                'verbose_name_plural': 'broken promises',
                'ordering': ['id'],
                'indexes': [models.Index(fields=['tenant', 'hour'], name='breach_by_tenant'), models.Index(condition=models.Q(('settled_at', None)), fields=['tenant', 'hour'], name='breach_to_settle'), models.Index(condition=models.Q(('settled_at__isnull', False)), fields=['settled_at'], name='breach_settled')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('settled_at', None)), fields=('cell', 'hour', 'job_uid', 'band', 'kind', 'cause', 'terms'), name='one_open_breach_per_hour'), models.CheckConstraint(condition=models.Q(('credited__gte', 0)), name='breach_credit_never_negative')],
            },
        ),
        migrations.RunSQL(ADD, "DROP TRIGGER append_only ON quota_credit;"),
    ]
