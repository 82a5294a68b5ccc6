"""Labels of templates and config files, by which `borgctl apply` finds those that it owns, the workflows that it has
submitted, and the templates that a token with the scope `dispatch` may dispatch.
"""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('quota', '0021_credits_for_broken_promises'),
        ('scheduling', '0070_broken_promises'),
    ]

    operations = [
        migrations.AddField(
            model_name='configfile',
            name='labels',
            field=models.JSONField(blank=True, db_default={}, default=dict, verbose_name='labels'),
        ),
        migrations.AddField(
            model_name='jobtemplate',
            name='labels',
            field=models.JSONField(blank=True, db_default={}, default=dict, verbose_name='labels'),
        ),
        migrations.CreateModel(
            name='AppliedWorkflow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', quota.models.fields.DnsLabelField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z', 'Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.')], verbose_name='name')),
                ('digest', models.CharField(max_length=64)),
                ('submitted_at', models.DateTimeField(verbose_name='submitted')),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.cell')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='quota.tenant')),
            ],
            options={
                'verbose_name': 'applied workflow',
                'verbose_name_plural': 'applied workflows',
                'ordering': ['tenant', 'cell', 'name'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'cell', 'name'), name='one_applied_file_per_name')],
            },
        ),
        migrations.CreateModel(
            name='TokenTemplate',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('template', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.jobtemplate')),
                ('token', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='quota.token')),
            ],
            options={
                'verbose_name': 'template of a token',
                'verbose_name_plural': 'templates of tokens',
                'ordering': ['token', 'template'],
                'constraints': [models.UniqueConstraint(fields=('token', 'template'), name='one_row_per_token_and_template')],
            },
        ),
    ]
